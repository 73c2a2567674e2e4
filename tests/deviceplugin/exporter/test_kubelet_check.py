"""Whether kubelet's record agrees with the placements, asked pod by pod."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import grpc
import pytest
from prometheus_client import generate_latest

from deviceplugin.exporter import kubelet_check
from deviceplugin.exporter.collector import Exposition, Site
from deviceplugin.exporter.kubelet_check import KubeletCheck, disagrees
from deviceplugin.exporter.owners import Tenancy, tenant
from deviceplugin.exporter.run import Tenants
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.node_pods import PodResources
from gpushare.kube import names
from gpushare.kube.proto import podresources_pb2 as pb
from tests.builders import bound_json, container_json, page, placement, pod_json
from tests.deviceplugin.exporter_data import A, B, held, tenancy, with_ids
from tests.deviceplugin.node_fixture import UUIDS, NodeFixture, found_card
from tests.deviceplugin.test_node_pods import Serve, WithGet, serve
from tests.testbed.waiting import wait_until

__all__ = ["serve"]

M, C = names.MEMORY, names.CORE
ON_A, ON_B = "aaaaaaaa-m0000", "bbbbbbbb-m0000"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be late with any answer."""
    monkeypatch.setattr(kubelet_check, "_GET_WITHIN_S", 60.0)


def given(**containers: str) -> dict[str, dict[str, frozenset[str]]]:
    return {name: {M: frozenset([one])} for name, one in containers.items()}


def test_devices_of_the_placements_card_agree() -> None:
    """Another's do not, nor does having some of each."""
    one = tenant(held("a", on=A))
    assert not disagrees(one, given(main=ON_A))
    assert disagrees(one, given(main=ON_B))
    assert disagrees(one, {"main": {M: frozenset([ON_A, ON_B])}})


def test_a_pod_on_two_cards_must_have_both() -> None:
    """Of whole cards it is not told which is whose."""
    two = held("a", containers={"x": (0, 100), "y": (0, 100)}, charged=(29, 100))
    halves = [
        held("a", on=on, containers={name: (0, 100)}, charged=(29, 100))
        for on, name in ((A, "x"), (B, "y"))
    ]
    shares = [share for half in halves for share in tenant(half).shares()]
    body = bound_json(placement("a", shares=shares))
    body["spec"]["containers"] = two["spec"]["containers"]
    one = tenant(with_ids(body))
    assert not disagrees(one, given(x=ON_B, y=ON_A))
    assert disagrees(one, given(x=ON_A, y=ON_A))
    # What an init container that ended had, kubelet does not list.
    body["spec"]["initContainers"] = [container_json("first", 1)]
    assert not disagrees(tenant(with_ids(body)), given(x=ON_A, y=ON_A))


def test_what_init_containers_had_is_not_listed() -> None:
    """So a part of the placement's cards is enough, and others are too many."""
    body = held("a", on=A)
    body["spec"]["initContainers"] = [container_json("first", 1)]
    one = tenant(with_ids(body))
    assert one.pod.passing
    assert not disagrees(one, given(main=ON_A))
    assert disagrees(one, given(main=ON_B))


def test_a_container_that_runs_without_devices() -> None:
    """Disagrees; one that starts only now has none yet."""
    assert disagrees(tenant(held("a")), {"main": {}})
    assert not disagrees(tenant(held("a", running=False)), {"main": {}})


def test_a_pod_without_a_placement_disagrees_with_nothing() -> None:
    """Nobody said where it should be."""
    assert not disagrees(tenant(with_ids(pod_json("a", units=1))), given(main=ON_A))


def checked(check: KubeletCheck, pods: Tenancy) -> tuple[int, tuple[str, ...], str]:
    found = check.check(pods, Event())
    assert found is not None
    return found.asked, tuple(name for _, name in found.misplaced), found.failure


def check_of(resources: PodResources, *pods: str) -> KubeletCheck:
    return KubeletCheck(resources, lambda: tenancy(*(held(one) for one in pods)))


def listed(name: str, device: str) -> pb.PodResources:
    devices = [pb.ContainerDevices(resource_name=M, device_ids=[device])]
    main = pb.ContainerResources(name="main", devices=devices)
    return pb.PodResources(namespace="default", name=name, containers=[main])


class NoList(WithGet):
    """A kubelet that takes it ill to be asked for its list."""

    lists = 0

    def List(  # noqa: N802
        self, request: pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        self.lists += 1
        return super().List(request, context)


def test_pods_are_asked_for_one_by_one(serve: Serve) -> None:
    """Never by the list, which makes kubelet forget devices in flight."""
    kubelet = NoList()
    kubelet.pods = [listed("a", ON_A), listed("b", ON_B), listed("c", ON_A)]
    pods = tenancy(held("a"), held("b"), held("c"))
    assert checked(check_of(serve(kubelet)), pods) == (3, ("b",), "")
    assert kubelet.lists == 0


def test_one_that_kubelet_does_not_know_says_nothing(serve: Serve) -> None:
    """The others are counted."""
    kubelet = WithGet()
    kubelet.pods = [listed("b", ON_B)]
    pods = tenancy(held("a"), held("b"))
    assert checked(check_of(serve(kubelet)), pods) == (2, ("b",), "")


def test_that_kubelet_knows_none_of_them_is_an_answer(serve: Serve) -> None:
    """It may hear of a new pod later than we do: that is no trouble of kubelet's."""
    pods = tenancy(held("a"))
    kubelet = WithGet()
    kubelet.pods = []
    assert checked(check_of(serve(kubelet)), pods) == (1, (), "")


def test_who_ends_or_asks_nothing_is_not_asked_about(serve: Serve) -> None:
    """Devices of a pod that ends may be another's already."""
    kubelet = WithGet()
    kubelet.pods = [listed("a", ON_B), listed("b", ON_B)]
    going = held("a")
    going["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    pods = tenancy(going, with_ids(pod_json("b")))
    assert checked(check_of(serve(kubelet)), pods) == (0, (), "")


def test_a_kubelet_that_does_not_tell_is_given_up(tmp_path: Path) -> None:
    """Its socket is missing: it says so, and guesses not."""
    resources = PodResources(tmp_path / "kubelet.sock")
    pods = tenancy(*(held(f"p{i}") for i in range(50)))
    asked, misplaced, failure = checked(check_of(resources), pods)
    resources.close()
    assert (asked, misplaced) == (0, ())
    assert failure.startswith("kubelet does not say which devices a pod has: UNAVAIL")


class NoGet(WithGet):
    """A kubelet before 1.34, in the words of before 1.27 or of later ones."""

    asked = 0
    upgraded = False
    answers = (grpc.StatusCode.UNIMPLEMENTED, "unknown method Get")

    def Get(  # noqa: N802
        self, request: pb.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.GetPodResourcesResponse:
        self.asked += 1
        if self.upgraded:
            return super().Get(request, context)
        context.abort(*self.answers)
        raise AssertionError


GATE_OFF = (grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")


@pytest.mark.parametrize("answers", [NoGet.answers, GATE_OFF], ids=["old", "off"])
def test_a_kubelet_before_1_34_is_no_trouble(
    serve: Serve,
    stop: Event,
    caplog: pytest.LogCaptureFixture,
    answers: tuple[grpc.StatusCode, str],
) -> None:
    """No round, so nothing on the page and nothing that failed; one line in the log.

    It is asked once a round: it answers a hundred questions a second in all.
    """
    caplog.set_level("INFO")
    kubelet = NoGet()
    kubelet.answers = answers
    pods = [tenancy(*(held(f"p{i}") for i in range(50)))]
    rounds: list[int] = []

    def now() -> Tenancy:
        rounds.append(kubelet.asked)
        return pods[0]

    check = KubeletCheck(serve(kubelet), now)
    assert check.check(pods[0], Event()) is None
    assert kubelet.asked == 1
    site = Site("n", "n", "hostname", "0")
    page = Exposition(site, Snapshot, UsageBook(Snapshot), kubelet=check.latest)
    thread = Thread(target=check.run, args=(stop, 0.02))
    thread.start()
    wait_until(lambda: kubelet.asked > 3, "rounds")
    assert check.latest() is None
    assert "kubelet" not in page.troubles()
    assert "kubelet" not in generate_latest(page).decode()
    # Without pods there is nobody to ask about, and that is no answer either.
    pods[0] = tenancy()
    seen = len(rounds)
    wait_until(lambda: len(rounds) > seen + 3, "rounds without pods")
    assert check.latest() is None
    stop.set()
    thread.join(30)
    (line,) = caplog.records
    assert line.levelname == "INFO"
    assert line.message.startswith("kubelet cannot be asked what one pod holds")
    assert "1.34" in line.message


def test_a_kubelet_that_was_upgraded_is_heard(serve: Serve, stop: Event) -> None:
    """The exporter goes on running meanwhile, and asks again each round."""
    kubelet = NoGet()
    kubelet.pods = [listed("a", ON_B)]
    check = check_of(serve(kubelet), "a")
    thread = Thread(target=check.run, args=(stop, 0.02))
    thread.start()
    wait_until(lambda: kubelet.asked > 1, "rounds")
    kubelet.upgraded = True
    found = wait_until(check.latest, "a round")
    stop.set()
    thread.join(30)
    assert found is not None
    assert found.misplaced == (("default", "a"),)


@pytest.fixture
def stop() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def test_rounds_follow_the_switch(
    serve: Serve, stop: Event, caplog: pytest.LogCaptureFixture
) -> None:
    """On, a round is made and a difference is logged once; off, nothing is known."""
    caplog.set_level("INFO")
    kubelet = WithGet()
    kubelet.pods = [listed("a", ON_B)]
    tenants = Tenants()
    switch = [True]
    check = KubeletCheck(serve(kubelet), tenants.current, enabled=lambda: switch[0])
    thread = Thread(target=check.run, args=(stop, 0.02))
    thread.start()
    assert check.latest() is None
    tenants.replace(iter([page(held("a"))]))
    first = wait_until(check.latest, "a round")
    assert first is not None
    assert first.misplaced == (("default", "a"),)
    wait_until(lambda: check.latest() not in (None, first), "another round")
    switch[0] = False
    assert check.latest() is None
    switch[0] = True
    kubelet.pods = [listed("a", ON_A)]
    wait_until(
        lambda: (now := check.latest()) is not None and not now.misplaced,
        "a round that agrees",
    )
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert [one for one in caplog.messages if "placements" in one] == [
        "kubelet's record and the placements differ",
        "kubelet's record and the placements agree",
    ]


def test_a_real_plugins_pods_agree(tmp_path: Path) -> None:
    """Shares, whole cards and pods with init containers, as our plugin hands them out.

    One whose annotation then names another card is found.
    """
    with NodeFixture(tmp_path, found_card(0), found_card(1)) as node:
        node.run(node.bind("a", 8, 20, card=0))
        node.run(node.bind("b", 29, 100, card=1))
        node.run(
            node.bind(
                "c",
                containers=[container_json("main", 4)],
                init=[container_json("first", 6)],
                card=0,
            )
        )
        resources = PodResources(tmp_path / "pod-resources" / "kubelet.sock")
        pods = [with_ids(node.pod(name)) for name in "abc"]
        asked = checked(KubeletCheck(resources, lambda: None), tenancy(*pods))
        notes = pods[0]["metadata"]["annotations"]
        notes[names.PLACEMENT] = notes[names.PLACEMENT].replace(UUIDS[0], UUIDS[1])
        lied = checked(KubeletCheck(resources, lambda: None), tenancy(*pods))
        resources.close()
    assert asked == (3, (), "")
    assert lied == (3, ("a",), "")
