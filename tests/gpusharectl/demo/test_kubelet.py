"""The stand-in for kubelet, from the binding to Running; a test plays the plugin."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.errors import NotFound
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpusharectl.demo import kubelet
from gpusharectl.demo.devices import ContainerConfig
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.demo.kubelet import StandInKubelet
from tests.builders import container_json, pod_json
from tests.gpusharectl.demo.rounds import Rounds
from tests.gpusharectl.fake_plugin import FakePlugin, ids_of
from tests.testbed.waiting import wait_until

M = names.MEMORY


class Town:
    """A cluster of one node ``n`` and its kubelet, which looks when it is told."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.cluster = Embedded()
        self.kubelet = StandInKubelet(self.cluster, folder)
        self.stack = stack
        stack.callback(self.kubelet.close)
        self.kubelet.join("n")

    def plugin(self) -> FakePlugin:
        folder = self.kubelet.folder_of("n") / "device-plugins"
        plugin = FakePlugin(folder, M)
        self.stack.enter_context(plugin.served())
        plugin.register()
        plugin.offer(*ids_of(M, 20))
        self.until_offered("20")
        return plugin

    def look(self) -> None:
        self.kubelet.run(Rounds())

    def until_offered(self, count: str) -> None:
        def offered() -> str | None:
            self.look()
            return self.node()["status"]["allocatable"].get(M)

        wait_until(offered, count, accept=lambda seen: seen == count)

    def node(self) -> Json:
        return self.cluster.get(Kind.NODES, "", "n")

    def bound(self, name: str = "pod", **how: Any) -> Json:
        """Bind a new pod; return its status after kubelet has looked."""
        made = self.cluster.create(Kind.PODS, pod_json(name, **how))
        target = PodTarget("default", name, made["metadata"]["uid"])
        self.cluster.bind(target, "n", {})
        return self.status(name)

    def status(self, name: str = "pod") -> Json:
        self.look()
        found: Json = self.pod(name)["status"]
        return found

    def phase(self, name: str = "pod", **how: Any) -> str:
        return str(self.bound(name, **how)["phase"])

    def pod(self, name: str = "pod") -> Json:
        return self.cluster.get(Kind.PODS, "default", name)

    def said(self) -> list[tuple[str, str]]:
        events = self.cluster.list_page(Kind.EVENTS, limit=0).items
        return [(event["reason"], event["message"]) for event in events]

    def given(self, name: str = "pod") -> Mapping[str, ContainerConfig]:
        return self.kubelet.given(self.pod(name)["metadata"]["uid"])


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.setattr(kubelet, "AGAIN_AFTER_S", 0.0)
    with ExitStack() as stack:
        yield Town(tmp_path, stack)


def test_a_node_has_what_its_plugin_offers(town: Town) -> None:
    """And before that only the label that brings the plugin there."""
    metadata = town.node()["metadata"]
    assert metadata["labels"][names.GPU_NODE_LABEL] == "true"
    assert "annotations" not in metadata
    assert set(town.node()["status"]["allocatable"]) == {"cpu", "memory", "pods"}
    plugin = town.plugin()
    plugin.hang_up()
    town.until_offered("0")
    assert town.node()["status"]["capacity"][M] == "20"


def test_a_bound_pod_gets_its_devices_and_runs(town: Town) -> None:
    plugin = town.plugin()
    plugin.answer = pb.ContainerAllocateResponse(envs={"CARDS": "x"})
    status = town.bound(units=4)
    assert status["phase"] == "Running"
    assert plugin.names_of_calls() == ["options", "prefer", "allocate", "start"]
    assert status["containerStatuses"][0]["ready"] is True
    assert town.given()["main"].envs == {"CARDS": "x"}
    assert town.kubelet.given("nobody") == {}


def test_a_rejected_pod_fails_for_good(town: Town) -> None:
    plugin = town.plugin()
    plugin.errors = {"allocate": "unknown ids"}
    status = town.bound(units=4)
    because = (
        "Allocate failed due to rpc error: code = Internal desc = unknown ids, "
        "which is unexpected"
    )
    assert status["phase"] == "Failed"
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"] == f"Pod was rejected: {because}"
    assert town.said() == [("UnexpectedAdmissionError", because)]
    plugin.errors = {}
    assert town.phase("next", units=20) == "Running"


def test_a_pod_no_api_server_would_store_fails(town: Town) -> None:
    town.plugin()
    assert town.bound(units="1.5")["reason"] == "InvalidPod"
    assert town.phase("next", units=1) == "Running"


def test_a_container_that_may_not_start_yet_waits(town: Town) -> None:
    """It is told once and tried again and again, until the plugin lets it."""
    plugin = town.plugin()
    plugin.errors = {"start": "no room yet"}
    status = town.bound(units=4)
    complaint = (
        "device plugin PreStartContainer rpc failed with err: "
        "rpc error: code = Internal desc = no room yet"
    )
    waits = {"reason": "CreateContainerConfigError", "message": complaint}
    assert status["containerStatuses"][0]["state"] == {"waiting": waits}
    assert town.status()["phase"] == "Pending"
    assert plugin.names_of_calls().count("start") == 2
    assert town.said() == [("Failed", f"Error: {complaint}")]
    assert town.given() == {}
    plugin.errors = {}
    assert town.status()["phase"] == "Running"
    assert list(town.given()) == ["main"]


def test_one_that_may_not_start_does_not_keep_its_neighbour(town: Town) -> None:
    town.plugin().errors = {"start": "no"}
    status = town.bound(containers=[container_json("a", 4), container_json("b")])
    states = [set(one["state"]) for one in status["containerStatuses"]]
    assert states == [{"waiting"}, {"running"}]
    assert list(town.given()) == ["b"]


def test_an_init_container_keeps_all_others_waiting(town: Town) -> None:
    plugin = town.plugin()
    plugin.errors = {"start": "no"}
    sidecar = container_json("side", restart="Always")
    status = town.bound(init=[container_json("init", 4), sidecar])
    first, second = (one["state"] for one in status["initContainerStatuses"])
    assert first["waiting"]["reason"] == "CreateContainerConfigError"
    assert second == {"waiting": {"reason": "ContainerCreating"}}
    assert town.given() == {}
    plugin.errors = {}
    first, second = (one["state"] for one in town.status()["initContainerStatuses"])
    assert first["terminated"]["reason"] == "Completed"
    assert "running" in second


@pytest.mark.parametrize("how", ["deleted", "forced", "finished"])
def test_the_end_of_a_pod_frees_its_devices(town: Town, how: str) -> None:
    """A deleted one holds them while it ends, as long as its program takes."""
    town.plugin()
    assert town.phase("old", units=20) == "Running"
    where = (Kind.PODS, "default", "old")
    if how == "deleted":
        town.kubelet.hold("old")
        town.cluster.delete(*where)
        assert town.phase("early", units=1) == "Failed"
        town.kubelet.release("old")
    elif how == "forced":
        town.cluster.delete(*where, grace_period_s=0)
    else:
        body = {"status": {"phase": "Succeeded"}}
        town.cluster.patch(*where, body, subresource="status")
    town.look()
    if how != "finished":
        with pytest.raises(NotFound):
            town.pod("old")
    assert town.phase("next", units=20) == "Running"


def test_a_node_that_leaves_hangs_up(town: Town) -> None:
    plugin = town.plugin()
    assert town.phase(units=4) == "Running"
    town.kubelet.leave("n")
    assert town.cluster.list_page(Kind.NODES, limit=0).items == ()
    assert plugin.gone.wait(10)
