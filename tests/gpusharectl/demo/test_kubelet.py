"""The stand-in for kubelet, from the binding to Running; a test plays the plugin."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, Target
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpusharectl.demo import kubelet
from gpusharectl.demo.devices import ContainerConfig
from gpusharectl.demo.kubelet import StandInKubelet
from tests.builders import container_json, pod_json
from tests.gpusharectl.fake_plugin import FakePlugin, ids_of
from tests.testbed.waiting import wait_until

M, C = names.MEMORY, names.CORE


class Town:
    """A cluster of one node ``n``, its kubelet, and the plugins that register."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.moment = datetime(2026, 1, 2, tzinfo=UTC)
        self.cluster = Embedded(now=lambda: self.moment)
        self.kubelet = StandInKubelet(self.cluster, folder)
        self.stack = stack
        stack.callback(self.kubelet.close)
        self.kubelet.join("n")
        stop = Event()
        thread = Thread(target=self.kubelet.run, args=(stop,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)

    def plugin(self, resource: str = M, count: int = 20) -> FakePlugin:
        folder = self.kubelet.folder_of("n") / "device-plugins"
        plugin = FakePlugin(folder, resource)
        self.stack.enter_context(plugin.served())
        plugin.register()
        plugin.offer(*ids_of(resource, count))
        self.until_offered(resource, count)
        return plugin

    def until_offered(self, resource: str, count: int) -> None:
        wait_until(
            lambda: self.amounts("allocatable").get(resource),
            f"{count} of {resource}",
            accept=lambda seen: seen == str(count),
        )

    def amounts(self, which: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self.node()["status"][which]
        return found

    def node(self) -> Json:
        return self.cluster.get(Kind.NODES, "", "n")

    def create(self, name: str = "pod", **how: Any) -> None:
        self.cluster.create(Kind.PODS, pod_json(name, **how))

    def bind(self, name: str = "pod") -> None:
        uid = self.pod(name)["metadata"]["uid"]
        self.cluster.bind(Target("default", name, uid), "n", {})

    def bound(self, name: str = "pod", **how: Any) -> None:
        self.create(name, **how)
        self.bind(name)

    def pod(self, name: str = "pod") -> Json:
        return self.cluster.get(Kind.PODS, "default", name)

    def names(self) -> list[str]:
        items = self.cluster.list_page(Kind.PODS, limit=0).items
        return [pod["metadata"]["name"] for pod in items]

    def until_phase(self, phase: str, name: str = "pod") -> Json:
        return wait_until(
            lambda: self.pod(name)["status"],
            phase,
            accept=lambda status: status["phase"] == phase,
        )

    def until_waiting(self, key: str = "containerStatuses") -> list[Json]:
        """Wait until a container may not start; give what they all wait for."""
        status = wait_until(
            lambda: self.pod()["status"],
            "complaint",
            accept=lambda status: "CreateContainerConfigError" in str(status.get(key)),
        )
        return [one["state"] for one in status[key]]

    def said(self) -> list[tuple[str, str]]:
        events = self.cluster.list_page(Kind.EVENTS, limit=0).items
        return [(event["reason"], event["message"]) for event in events]

    def given(self, name: str = "pod") -> Mapping[str, ContainerConfig]:
        return self.kubelet.given(self.pod(name)["metadata"]["uid"])


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.setattr(kubelet, "AGAIN_AFTER_S", 0.01)
    with ExitStack() as stack:
        yield Town(tmp_path, stack)


def test_a_node_has_nothing_until_a_plugin_registers(town: Town) -> None:
    metadata = town.node()["metadata"]
    assert metadata["labels"][names.GPU_NODE_LABEL] == "true"
    assert "annotations" not in metadata
    assert set(town.amounts("allocatable")) == {"cpu", "memory", "pods"}
    plugin = town.plugin()
    assert town.amounts("capacity")[M] == "20"
    plugin.hang_up()
    town.until_offered(M, 0)
    assert town.amounts("capacity")[M] == "20"


def test_a_bound_pod_gets_its_devices_and_runs(town: Town) -> None:
    plugin = town.plugin()
    plugin.answer = pb.ContainerAllocateResponse(envs={"CARDS": "x"})
    town.bound(units=4)
    status = town.until_phase("Running")
    assert plugin.names_of_calls() == ["options", "prefer", "allocate", "start"]
    assert status["containerStatuses"][0]["ready"] is True
    assert town.given()["main"].envs == {"CARDS": "x"}
    assert town.kubelet.given("nobody") == {}


def test_a_rejected_pod_fails_for_good(town: Town) -> None:
    plugin = town.plugin()
    plugin.errors = {"allocate": "unknown ids"}
    town.bound(units=4)
    status = town.until_phase("Failed")
    because = (
        "Allocate failed due to rpc error: code = Internal desc = unknown ids, "
        "which is unexpected"
    )
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"] == f"Pod was rejected: {because}"
    assert wait_until(town.said, "event") == [("UnexpectedAdmissionError", because)]
    plugin.errors = {}
    town.bound("next", units=20)
    town.until_phase("Running", "next")


def test_a_pod_no_api_server_would_store_fails(town: Town) -> None:
    town.plugin()
    town.bound(units="1.5")
    assert town.until_phase("Failed")["reason"] == "InvalidPod"
    town.bound("next", units=1)
    town.until_phase("Running", "next")


def test_a_container_that_may_not_start_yet_waits(town: Town) -> None:
    """It is told once and tried again and again, until the plugin lets it."""
    plugin = town.plugin()
    plugin.errors = {"start": "no room yet"}
    town.bound(units=4)
    complaint = (
        "device plugin PreStartContainer rpc failed with err: "
        "rpc error: code = Internal desc = no room yet"
    )
    waits = {"reason": "CreateContainerConfigError", "message": complaint}
    assert town.until_waiting() == [{"waiting": waits}]
    assert town.pod()["status"]["phase"] == "Pending"
    wait_until(
        lambda: plugin.names_of_calls().count("start"),
        "tries",
        accept=lambda count: count > 3,
    )
    assert town.said() == [("Failed", f"Error: {complaint}")]
    assert town.given() == {}
    plugin.errors = {}
    town.until_phase("Running")
    assert list(town.given()) == ["main"]


def test_one_that_may_not_start_does_not_keep_its_neighbour(town: Town) -> None:
    town.plugin().errors = {"start": "no"}
    town.bound(containers=[container_json("a", 4), container_json("b")])
    assert [set(state) for state in town.until_waiting()] == [{"waiting"}, {"running"}]
    assert list(town.given()) == ["b"]


def test_an_init_container_keeps_all_others_waiting(town: Town) -> None:
    plugin = town.plugin()
    plugin.errors = {"start": "no"}
    sidecar = container_json("side", restart="Always")
    town.bound(init=[container_json("init", 4), sidecar])
    first, second = town.until_waiting("initContainerStatuses")
    assert first["waiting"]["reason"] == "CreateContainerConfigError"
    assert second == {"waiting": {"reason": "ContainerCreating"}}
    assert town.given() == {}
    plugin.errors = {}
    inits = town.until_phase("Running")["initContainerStatuses"]
    assert inits[0]["state"]["terminated"]["reason"] == "Completed"
    assert "running" in inits[1]["state"]


def test_a_deleted_pod_holds_its_devices_while_it_ends(town: Town) -> None:
    town.plugin()
    town.bound("old", units=20)
    town.until_phase("Running", "old")
    town.kubelet.hold("old")
    town.cluster.delete(Kind.PODS, "default", "old")
    town.bound("early", units=1)
    town.until_phase("Failed", "early")
    assert "old" in town.names()
    town.kubelet.release("old")
    wait_until(town.names, "end", accept=lambda found: "old" not in found)
    town.bound("next", units=20)
    town.until_phase("Running", "next")


@pytest.mark.parametrize("how", ["forced", "finished"])
def test_other_ends_free_devices_too(town: Town, how: str) -> None:
    town.plugin()
    town.bound("old", units=20)
    town.until_phase("Running", "old")
    if how == "forced":
        town.cluster.delete(Kind.PODS, "default", "old", grace_period_s=0)
    else:
        body = {"status": {"phase": "Succeeded"}}
        town.cluster.patch(Kind.PODS, "default", "old", body, subresource="status")
    # One look of kubelet's later, whatever that look was at.
    town.bound("look")
    town.until_phase("Running", "look")
    town.bound("next", units=20)
    town.until_phase("Running", "next")


def test_a_node_that_leaves_hangs_up(town: Town) -> None:
    plugin = town.plugin()
    town.bound(units=4)
    town.until_phase("Running")
    town.kubelet.leave("n")
    assert town.cluster.list_page(Kind.NODES, limit=0).items == ()
    assert plugin.gone.wait(10)
