"""The stand-in for kubelet's device manager, against a plugin that a test plays."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kube.proto import podresources_pb2 as held_pb
from gpushare.kubelet.services import POD_RESOURCES, make_stub
from gpusharectl.demo.devices import (
    CannotStartYetError,
    ContainerConfig,
    Devices,
    Rejection,
)
from tests.builders import container_json, pod_json
from tests.gpusharectl.fake_plugin import FakePlugin, ids_of
from tests.testbed.waiting import wait_until

M, C = names.MEMORY, names.CORE


class Node:
    """Devices with a memory plugin and a core plugin that know 20 ids each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.devices = stack.enter_context(Devices(folder))
        self.memory = self._plugin(stack, M)
        self.core = self._plugin(stack, C)
        self.stack = stack

    def admit(self, *args: Any, **how: Any) -> dict[str, ContainerConfig]:
        admitted = self.devices.admit(pod_json(*args, **how))
        assert not isinstance(admitted, Rejection), admitted
        return dict(admitted)

    def refuse(self, *args: Any, **how: Any) -> Rejection:
        refused = self.devices.admit(pod_json(*args, **how))
        assert isinstance(refused, Rejection)
        return refused

    def listed(self) -> dict[str, dict[str, set[str]]]:
        with self._lister() as lister:
            pods = lister.List(held_pb.ListPodResourcesRequest()).pod_resources
        return {pod.name: _containers(pod) for pod in pods}

    def get(self, name: str) -> dict[str, set[str]]:
        asked = held_pb.GetPodResourcesRequest(pod_name=name, pod_namespace="default")
        with self._lister() as lister:
            return _containers(lister.Get(asked).pod_resources)

    @contextmanager
    def _lister(self) -> Iterator[Any]:
        path = self.devices.pod_resources / "kubelet.sock"
        with grpc.insecure_channel(f"unix:{path}") as channel:
            yield make_stub(channel, POD_RESOURCES)

    def _plugin(self, stack: ExitStack, resource: str) -> FakePlugin:
        plugin = FakePlugin(self.devices.plugins, resource)
        stack.enter_context(plugin.served())
        plugin.register()
        plugin.offer(*ids_of(resource, 20))
        self.until(resource, 20)
        return plugin

    def until(self, resource: str, allocatable: int, capacity: int = 20) -> None:
        wanted = (allocatable, capacity)
        wait_until(
            lambda: (
                self.devices.allocatable().get(resource),
                self.devices.capacity().get(resource),
            ),
            f"{resource} {wanted}",
            accept=lambda seen: seen == wanted,
        )


def _containers(pod: Any) -> dict[str, set[str]]:
    for container in pod.containers:
        for entry in container.devices:
            assert len(entry.device_ids) == 1
    return {
        container.name: {entry.device_ids[0] for entry in container.devices}
        for container in pod.containers
    }


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def node(tmp_path: Path, stack: ExitStack) -> Node:
    return Node(tmp_path, stack)


def test_it_clears_the_folder_as_kubelet_does(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    (folder / "kubelet_internal_checkpoint").touch()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(folder / "old.sock"))
    with Devices(tmp_path):
        found = {path.name for path in folder.iterdir()}
    assert found == {"kubelet_internal_checkpoint", "kubelet.sock"}


def test_a_path_too_long_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most"), Devices(tmp_path / ("x" * 100)):
        pass


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"version": "v1"}, 'requested API version "v1" is not supported by kubelet'),
        ({"resource_name": "memory"}, 'the ResourceName "memory" is invalid'),
        ({"resource_name": "kubernetes.io/gpu"}, "is invalid"),
    ],
)
def test_wrong_registrations(node: Node, wrong: dict[str, str], words: str) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        node.memory.register(**wrong)
    assert words in failed.value.details()  # type: ignore[attr-defined]


def test_sick_devices_are_capacity_and_not_allocatable(node: Node) -> None:
    """And each list replaces the one before (contracts 2.2)."""
    ids = ids_of(M, 20)
    node.memory.offer(*ids[:12], sick=ids[12:])
    node.until(M, 12)
    node.memory.offer(*ids[:12])
    node.until(M, 12, capacity=12)


def test_a_stream_that_ends_makes_all_devices_sick(node: Node) -> None:
    node.memory.hang_up()
    node.until(M, 0)
    for units in (1, 0):
        # Also a pod that asks for none (contracts 2.4).
        assert node.refuse(units=units).because == (
            "Allocate failed due to no healthy devices present; "
            f"cannot allocate unhealthy devices {M}, which is unexpected"
        )
    node.memory.register()
    node.memory.offer(*ids_of(M, 20))
    node.until(M, 20)
    node.admit(units=1)


def test_a_plugin_that_left_before_its_first_list_offered_nothing(
    tmp_path: Path,
) -> None:
    """A resource without plugin is unknown: a pod runs without it (contracts 2.4)."""
    with Devices(tmp_path) as devices:
        plugin = FakePlugin(devices.plugins)
        with plugin.served():
            plugin.register()
            plugin.hang_up()
            assert plugin.gone.wait(10)
        assert devices.capacity() == {}
        assert devices.admit(pod_json(units=4)) == {"main": ContainerConfig()}


def test_overlapping_registrations_end_the_newer_one(node: Node) -> None:
    """kubelet's mistake that a plugin must not run into (contracts 2.7)."""
    second = FakePlugin(node.devices.plugins, M)
    second.endpoint = "second.sock"
    node.stack.enter_context(second.served())
    second.register()
    second.offer(*ids_of(M, 10))
    node.until(M, 10, capacity=10)
    node.memory.hang_up()
    node.until(M, 0, capacity=10)


def test_the_plugin_is_asked_and_obeyed(node: Node) -> None:
    node.memory.prefer = lambda _: ["m007", "m003", "m011"]
    node.admit("a", units=3)
    assert node.memory.names_of_calls() == ["options", "prefer", "allocate"]
    asked = node.memory.last("prefer")
    assert set(asked.available_deviceIDs) == set(ids_of(M, 20))
    assert list(asked.must_include_deviceIDs) == []
    assert asked.allocation_size == 3
    assert set(node.memory.last("allocate")) == {"m003", "m007", "m011"}
    node.memory.prefer = lambda _: []
    node.admit("b", units=17)
    assert len(node.memory.last("prefer").available_deviceIDs) == 17
    assert node.listed()["a"] == {"main": {"m003", "m007", "m011"}}
    assert node.devices.allocatable()[M] == 20


@pytest.mark.parametrize(
    ("prefer", "least", "most"),
    [(["m001", "m999"], {"m001"}, ids_of(M, 20)), (ids_of(M, 6), set(), ids_of(M, 6))],
    ids=["too short, and foreign", "too long"],
)
def test_another_number_is_preferred(
    node: Node, prefer: list[str], least: set[str], most: list[str]
) -> None:
    node.memory.prefer = lambda _: prefer
    node.admit(units=4)
    chosen = set(node.memory.last("allocate"))
    assert len(chosen) == 4
    assert least <= chosen <= set(most)


def test_a_plugin_without_options_is_not_asked(tmp_path: Path) -> None:
    with Devices(tmp_path) as devices:
        plugin = FakePlugin(devices.plugins)
        plugin.options = pb.DevicePluginOptions()
        with plugin.served():
            plugin.register()
            plugin.offer(*ids_of(M, 4))
            wait_until(lambda: devices.allocatable().get(M), "devices")
            devices.admit(pod_json(uid="u", units=4))
            devices.start("u", "main")
    assert plugin.names_of_calls() == ["options", "allocate"]


def test_containers_come_in_order_and_resources_by_chance(node: Node) -> None:
    """{prefer, allocate} of one resource, then of the other (contracts 2.3)."""
    told: list[str] = []
    node.memory.during = lambda call: told.append(f"m {call}")
    node.core.during = lambda call: told.append(f"c {call}")
    orders = set()
    for number in range(40):
        told.clear()
        name = f"p{number}"
        node.admit(name, units=2, cores=2)
        node.devices.release(f"uid-{name}")
        orders.add(tuple(told))
    one, other = ("m prefer", "m allocate"), ("c prefer", "c allocate")
    assert orders == {one + other, other + one}


def test_nothing_asked_nothing_given(node: Node) -> None:
    assert node.admit("plain") == {"main": ContainerConfig()}
    assert node.admit("zero", units=0) == {"main": ContainerConfig()}
    node.devices.start("uid-zero", "main")
    assert node.memory.names_of_calls() == ["options"]
    with pytest.raises(ValueError, match="whole"):
        node.devices.admit(pod_json("unreadable", units="1.5"))
    assert node.listed() == {"plain": {"main": set()}, "zero": {"main": set()}}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("allocate", ""),
        ("prefer", "device plugin GetPreferredAllocation rpc failed with err: "),
    ],
)
def test_a_failed_call_is_the_pods_end(node: Node, call: str, words: str) -> None:
    node.memory.errors = {call: "no turn explains these ids"}
    refused = node.refuse("a", units=20)
    assert refused.reason == "UnexpectedAdmissionError"
    assert refused.message == (
        f"Pod was rejected: Allocate failed due to {words}rpc error: code = Internal "
        "desc = no turn explains these ids, which is unexpected"
    )
    node.memory.errors = {}
    node.admit("b", units=20)
    assert set(node.listed()) == {"b"}


def test_too_few_devices(node: Node) -> None:
    node.admit("a", units=15)
    assert node.refuse("b", units=6).because == (
        f"Allocate failed due to requested number of devices unavailable for {M}. "
        "Requested: 6, Available: 5, which is unexpected"
    )
    node.devices.release("uid-a")
    node.admit("b", units=6)


def test_init_containers_leave_their_devices(node: Node) -> None:
    """Contracts 2.3: reused without asking; one more is must_include plus one new."""
    containers = [container_json("a", 3, 3), container_json("b", 2, 1)]
    node.admit(init=[container_json("init", 4, 4)], containers=containers)
    calls = node.memory.names_of_calls()
    assert calls == ["options", "prefer", *["allocate"] * 2, "prefer", "allocate"]
    _, init, a, b = (x for call, x in node.memory.calls if call != "prefer")
    assert set(a) < set(init)
    assert len(set(b) & set(init)) == 1
    assert not set(a) & set(b)
    prefer = node.memory.last("prefer")
    assert set(prefer.must_include_deviceIDs) == set(b) & set(init)
    assert set(prefer.must_include_deviceIDs) < set(prefer.available_deviceIDs)
    assert node.core.names_of_calls().count("prefer") == 1
    held = node.listed()["pod"]
    assert list(held) == ["a", "b"]
    assert {one for one in held["a"] if one.startswith("m")} == set(a)
    sidecar = container_json("side", 4, restart="Always")
    node.admit("with", init=[sidecar], containers=[container_json("a", 4)])
    held = node.listed()["with"]
    assert list(held) == ["side", "a"]
    assert not held["side"] & held["a"]


def test_answers_are_merged_and_the_first_wins(node: Node) -> None:
    node.memory.answer = pb.ContainerAllocateResponse(
        envs={"CARDS": "x", "MEMORY": "1"},
        mounts=[pb.Mount(container_path="/etc/vcuda", host_path="/m")],
        cdi_devices=[pb.CDIDevice(name="nvidia.com/gpu=0")],
    )
    node.core.answer = pb.ContainerAllocateResponse(
        envs={"CARDS": "x", "CORES": "2"},
        mounts=[pb.Mount(container_path="/etc/vcuda", host_path="/c", read_only=True)],
        devices=[pb.DeviceSpec(container_path="/dev/a", host_path="/dev/b")],
        annotations={"k": "v"},
        cdi_devices=[pb.CDIDevice(name="nvidia.com/gpu=0")],
    )
    given = node.admit(units=1, cores=1)["main"]
    assert given.envs == {"CARDS": "x", "MEMORY": "1", "CORES": "2"}
    assert given.mounts["/etc/vcuda"].host_path in ("/m", "/c")
    assert given.devices["/dev/a"].host_path == "/dev/b"
    assert given.annotations == {"k": "v"}
    assert given.cdi == ("nvidia.com/gpu=0",)


def test_before_each_start_both_plugins_are_asked(node: Node) -> None:
    node.admit(uid="u", units=3, cores=2)
    for _ in range(2):
        node.devices.start("u", "main")
    for plugin in (node.memory, node.core):
        assert plugin.names_of_calls()[-2:] == ["start", "start"]
        assert set(plugin.last("start")) == set(plugin.last("allocate"))
    node.memory.hang_up()
    node.until(M, 0)
    with pytest.raises(CannotStartYetError, match="client connection is closing"):
        node.devices.start("u", "main")


def test_what_runs_is_not_admitted_again(node: Node) -> None:
    """A restarted kubelet without its checkpoint lists it without devices."""
    pod = pod_json("a", containers=[container_json("x", 2), container_json("y", 2)])
    assert set(node.devices.admit(pod, running={"x"})) == {"y"}
    listed = node.listed()["a"]
    assert (listed["x"], len(listed["y"])) == (set(), 2)


def test_what_is_listed_while_a_pod_is_being_admitted(node: Node) -> None:
    """It is there; of its resources only the ones done have devices (contracts 3)."""
    seen: list[dict[str, dict[str, set[str]]]] = []
    node.admit("old", units=1, cores=1)
    for plugin in (node.memory, node.core):
        plugin.during = lambda _call: seen.append(node.listed())
    node.admit("new", units=2, cores=2)
    first, *_, last = seen
    assert first["new"] == {"main": set()}
    assert len(last["new"]["main"]) == len(last["old"]["main"]) == 2


def test_get_knows_active_pods_alone(node: Node) -> None:
    node.admit("a", units=2)
    assert len(node.get("a")["main"]) == 2
    node.devices.release("uid-a")
    with pytest.raises(grpc.RpcError) as failed:
        node.get("a")
    assert "pod a in namespace default not found" in failed.value.details()  # type: ignore[attr-defined]


def test_a_list_during_allocate_forgets_what_is_in_flight(node: Node) -> None:
    """Where a pod ended meanwhile: kubelet's mistake (contracts 2.7), kept."""
    node.admit("old", units=1)

    def list_now(call: str) -> None:
        if call == "allocate":
            node.devices.release("uid-old")
            node.listed()

    node.memory.during = list_now
    node.admit("a", units=5)
    node.memory.during = lambda _: None
    assert len(node.listed()["a"]["main"]) == 5
    node.admit("b", units=1)
    assert len(node.memory.last("prefer").available_deviceIDs) == 20
