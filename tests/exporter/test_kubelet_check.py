"""Whether kubelet's record agrees with the placements, asked pod by pod."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import grpc
import pytest

from exporter import kubelet_check
from exporter.kubelet_check import KubeletCheck, disagrees
from exporter.owners.owner_pods import OwnerPods, read_owner_pod
from exporter.run import WatchedPods
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.proto import podresources_pb2 as pb
from gpushare.kubelet.node_pods import PodResources
from tests.builders import bound_json, container_json, page, placement, pod_json
from tests.deviceplugin.node_fixture import UUIDS, NodeFixture, found_card
from tests.exporter.exporter_data import A, B, held, owner_pods, with_ids
from tests.gpushare.kubelet.test_node_pods import Serve, WithGet, serve
from tests.testbed.waiting import wait_until

Log = pytest.LogCaptureFixture
__all__ = ["serve"]

M = names.MEMORY
ON_A, ON_B = "aaaaaaaa-m0000", "bbbbbbbb-m0000"
FIRST = [container_json("first", 1)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be late with any answer."""
    monkeypatch.setattr(kubelet_check, "_GET_WITHIN_S", 60.0)


def on_two_cards() -> Json:
    halves = [
        held("a", on=on, containers={name: (0, 100)}, charged=(29, 100))
        for on, name in ((A, "x"), (B, "y"))
    ]
    shares = [share for half in halves for share in read_owner_pod(half).shares()]
    body = bound_json(placement("a", shares=shares))
    body["spec"]["containers"] = [half["spec"]["containers"][0] for half in halves]
    return with_ids(body)


def with_init(body: Json) -> Json:
    body["spec"]["initContainers"] = FIRST
    return with_ids(body)


@pytest.mark.parametrize(
    ("body", "given", "differs"),
    [
        (held("a"), {"main": [ON_A]}, False),
        (held("a"), {"main": [ON_B]}, True),
        (held("a"), {"main": [ON_A, ON_B]}, True),
        # Of whole cards it is not told which is whose.
        (on_two_cards(), {"x": [ON_B], "y": [ON_A]}, False),
        (on_two_cards(), {"x": [ON_A], "y": [ON_A]}, True),
        # What an init container that ended had, kubelet does not list.
        (with_init(on_two_cards()), {"x": [ON_A], "y": [ON_A]}, False),
        (with_init(held("a")), {"main": [ON_A]}, False),
        (with_init(held("a")), {"main": [ON_B]}, True),
        # One that runs must have devices; one that starts only now has none yet.
        (held("a"), {"main": []}, True),
        (held("a", running=False), {"main": []}, False),
        # Nobody said where it should be.
        (with_ids(pod_json("a", units=1)), {"main": [ON_A]}, False),
    ],
)
def test_devices_of_the_placements_cards_agree(
    body: Json, given: dict[str, list[str]], *, differs: bool
) -> None:
    devices = {name: {M: frozenset(ids)} for name, ids in given.items()}
    assert disagrees(read_owner_pod(body), devices) is differs


def checked(resources: PodResources, *pods: Json) -> tuple[int, tuple[str, ...], str]:
    check = KubeletCheck(resources, lambda: None)
    found = check.check(owner_pods(*pods), Event())
    assert found is not None
    return found.answered, tuple(name for _, name in found.misplaced), found.failure


def listed(name: str, device: str) -> pb.PodResources:
    devices = [pb.ContainerDevices(resource_name=M, device_ids=[device])]
    main = pb.ContainerResources(name="main", devices=devices)
    return pb.PodResources(namespace="default", name=name, containers=[main])


class Kubelet(WithGet):
    """It counts questions; one before 1.34 does not answer about one pod."""

    lists = asked = 0
    old: tuple[grpc.StatusCode, str] | None = None

    def List(  # noqa: N802
        self, request: pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        self.lists += 1
        return super().List(request, context)

    def Get(  # noqa: N802
        self, request: pb.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.GetPodResourcesResponse:
        self.asked += 1
        if self.old:
            context.abort(*self.old)
        return super().Get(request, context)


def test_pods_are_asked_for_one_by_one(serve: Serve) -> None:
    """Never by the list, which makes kubelet forget devices in flight."""
    kubelet = Kubelet()
    kubelet.pods = [listed("a", ON_A), listed("b", ON_B), listed("going", ON_B)]
    going = held("going")
    going["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    unplaced = with_ids(pod_json("d"))
    pods = [held("a"), held("b"), held("unknown"), going, unplaced]
    assert checked(serve(kubelet), *pods) == (3, ("b",), "")
    assert (kubelet.asked, kubelet.lists) == (3, 0)
    kubelet.pods = []
    assert checked(serve(kubelet), held("a")) == (1, (), "")


@contextmanager
def running(check: KubeletCheck) -> Iterator[None]:
    stop = Event()
    thread = Thread(target=check.run, args=(stop, 0.02))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


OLD = (grpc.StatusCode.UNIMPLEMENTED, "unknown method Get")
GATE_OFF = (grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")


@pytest.mark.parametrize("words", [OLD, GATE_OFF], ids=["old", "off"])
def test_a_kubelet_before_1_34_is_no_trouble(
    serve: Serve, caplog: Log, words: tuple[grpc.StatusCode, str]
) -> None:
    """No round, nothing on the page and no failure; once upgraded it is heard."""
    caplog.set_level("INFO")
    kubelet = Kubelet()
    kubelet.old = words
    kubelet.pods = [listed("p0", ON_B)]
    pods = [owner_pods(*(held(f"p{i}") for i in range(50)))]
    rounds: list[int] = []

    def now() -> OwnerPods:
        rounds.append(kubelet.asked)
        return pods[0]

    check = KubeletCheck(serve(kubelet), now)
    assert check.check(pods[0], Event()) is None
    assert kubelet.asked == 1
    with running(check):
        wait_until(lambda: kubelet.asked > 3, "rounds")
        assert check.latest() is None
        # Without pods there is nobody to ask about, and that is no answer either.
        pods[0] = owner_pods()
        seen = len(rounds)
        wait_until(lambda: len(rounds) > seen + 3, "rounds without pods")
        assert check.latest() is None
        (line,) = caplog.records
        assert line.levelname == "INFO"
        assert line.message.startswith("kubelet cannot be asked what one pod holds")
        assert "1.34" in line.message
        kubelet.old, pods[0] = None, owner_pods(held("p0"))
        found = wait_until(check.latest, "a round")
    assert found is not None
    assert found.misplaced == (("default", "p0"),)


def test_rounds_follow_the_switch(serve: Serve, caplog: Log) -> None:
    caplog.set_level("INFO")
    kubelet = Kubelet()
    kubelet.pods = [listed("a", ON_B)]
    watched, switch = WatchedPods(), [True]
    check = KubeletCheck(serve(kubelet), watched.current, enabled=lambda: switch[0])
    with running(check):
        assert check.latest() is None
        watched.replace(iter([page(held("a"))]))
        first = wait_until(check.latest, "a round")
        assert first is not None
        assert first.misplaced == (("default", "a"),)
        wait_until(lambda: check.latest() not in (None, first), "another round")
        switch[0] = False
        assert check.latest() is None
        switch[0] = True
        kubelet.pods = [listed("a", ON_A)]
        wait_until(lambda: (now := check.latest()) and not now.misplaced, "agreement")
    assert [message for message in caplog.messages if "placements" in message] == [
        "kubelet's record and the placements differ",
        "kubelet's record and the placements agree",
    ]


def test_a_kubelet_that_does_not_tell_is_given_up(tmp_path: Path, caplog: Log) -> None:
    """Its socket is missing: it says so once, and guesses not."""
    resources = PodResources(tmp_path / "kubelet.sock")
    pods = owner_pods(*(held(f"p{i}") for i in range(50)))
    check = KubeletCheck(resources, lambda: pods)
    with running(check):
        first = wait_until(check.latest, "a round")
        wait_until(lambda: check.latest() is not first, "another round")
    resources.close()
    assert first is not None
    assert (first.answered, first.misplaced) == (0, ())
    words = "kubelet does not say which devices a pod has: UNAVAIL"
    assert first.failure.startswith(words)
    assert caplog.messages == ["kubelet cannot be asked"]


def test_a_real_plugins_pods_agree(tmp_path: Path) -> None:
    """Shares, whole cards and init containers, as our plugin hands them out."""
    with NodeFixture(tmp_path, found_card(0), found_card(1)) as node:
        node.run(node.bind("a", 8, 20, card=0))
        node.run(node.bind("b", 29, 100, card=1))
        main, init = [container_json("main", 4)], [container_json("first", 6)]
        node.run(node.bind("c", containers=main, init=init, card=0))
        resources = PodResources(tmp_path / "pod-resources" / "kubelet.sock")
        pods = [with_ids(node.pod(name)) for name in "abc"]
        asked = checked(resources, *pods)
        notes = pods[0]["metadata"]["annotations"]
        notes[names.PLACEMENT] = notes[names.PLACEMENT].replace(UUIDS[0], UUIDS[1])
        lied = checked(resources, *pods)
        resources.close()
    assert (asked, lied) == ((3, (), ""), (3, ("a",), ""))
