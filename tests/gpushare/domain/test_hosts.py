"""The nodes' own CPU and memory, as the policy frag sees them."""

import pytest

from gpushare.cache.nodes import NodeBook
from gpushare.cache.pods import PodBook
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import HostAmount, NodeName, PodUID
from gpushare.domain.policies import Choice
from gpushare.domain.quantity import NotAQuantity, mebibytes, thousandths
from gpushare.kube.cluster import Json
from gpushare.kube.facts import host_capacity
from gpushare.kube.request_cache import Asked
from tests.builders import event, node_json, page, pod_json

N = NodeName("n")


def asking(cpu: str = "", memory: str = "", **more: object) -> Json:
    """A container that asks this of its node."""
    asked = {"cpu": cpu, "memory": memory}
    requests = {name: value for name, value in asked.items() if value}
    return {"name": "c", "resources": {"requests": requests}, **more}


def pod(*containers: Json, **spec: object) -> Json:
    """A pod without cards."""
    return {"spec": {"containers": list(containers), **spec}}


@pytest.mark.parametrize(
    ("text", "milli"),
    [("2", 2000), ("250m", 250), ("0.1", 100), (4, 4000), ("1e3", 10**6), ("1n", 1)],
)
def test_cpu_in_thousandths(text: object, milli: int) -> None:
    """Rounded up, as Kubernetes does."""
    assert thousandths(text) == milli


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("1Gi", 1024),
        ("512Mi", 512),
        ("1G", 954),
        ("1048576", 1),
        (1, 1),
        ("2Ti", 2**21),
    ],
)
def test_memory_in_mib(text: object, mib: int) -> None:
    """Rounded up, too."""
    assert mebibytes(text) == mib


@pytest.mark.parametrize("text", ["-1", "much", "", "1.5.2", "-1m", "-1Gi", None])
def test_what_is_no_quantity_is_none(text: object) -> None:
    """No API server would let it through."""
    with pytest.raises(NotAQuantity):
        thousandths(text)
    with pytest.raises(NotAQuantity):
        mebibytes(text)


@pytest.mark.parametrize(
    ("asked", "amount"),
    [
        (pod(asking("500m", "1Gi"), asking("1")), HostAmount(1500, 1024)),
        (pod({"name": "c"}), HostAmount()),
        (pod(asking("1"), overhead={"cpu": "250m"}), HostAmount(1250, 0)),
        (
            pod(asking("1"), initContainers=[asking("3", "64Mi"), asking("2")]),
            HostAmount(3000, 64),
        ),
        (
            pod(
                asking("1"),
                initContainers=[asking("1", restartPolicy="Always"), asking("2")],
            ),
            HostAmount(3000, 0),
        ),
        (
            pod(asking("1"), resources={"requests": {"cpu": "4"}}),
            HostAmount(4000, 0),
        ),
        (pod({"name": "c", "resources": {"limits": {"cpu": "2"}}}), HostAmount(2000)),
        (pod(asking("what")), None),
        ({}, None),
    ],
)
def test_what_a_pod_asks_of_its_node(asked: Json, amount: HostAmount | None) -> None:
    """Its peak: containers and sidecars, or an init container that asks more."""
    assert Asked(asked).host() == amount


def test_what_a_node_has() -> None:
    """What it says of itself, and nothing where it says nothing."""
    has = {"status": {"allocatable": {"cpu": "7910m", "memory": "32Gi"}}}
    assert host_capacity(has) == HostAmount(7910, 32768)
    assert host_capacity({"status": {}}) is None


def test_what_is_not_asked_is_never_short() -> None:
    """As with kube-scheduler: a pod without requests fits a full node."""
    full = HostAmount(-1, 0)
    assert HostAmount().fits(full)
    assert not HostAmount(1, 0).fits(full)
    assert HostAmount(1, 1).fits(None)


class FollowedCluster:
    """Books of pods and nodes over one ledger."""

    def __init__(self) -> None:
        self.ledger, self.hosts = Ledger(), Hosts()
        self.pods = PodBook(self.ledger, Choice(), hosts=self.hosts)
        self.nodes = NodeBook(self.ledger, hosts=self.hosts)
        body = node_json("n")
        body["status"] = {"allocatable": {"cpu": "8", "memory": "16Gi"}}
        self.nodes.apply(event("ADDED", body))

    def hear(self, name: str, cpu: str, *, phase: str = "Running") -> Json:
        body = pod_json(name, node="n", phase=phase)
        body["spec"]["containers"] = [asking(cpu, "1Gi")]
        self.pods.apply(event("MODIFIED", body))
        return body

    @property
    def free(self) -> HostAmount | None:
        return self.hosts.free(N)


@pytest.fixture
def followed() -> FollowedCluster:
    return FollowedCluster()


def test_pods_without_cards_have_their_part(followed: FollowedCluster) -> None:
    """All of them: a CPU that is gone is gone for a pod with cards, too."""
    followed.hear("a", "2")
    followed.hear("b", "500m")
    assert followed.free == HostAmount(5500, 14 * 1024)


def test_a_pod_counts_once_and_by_what_it_asks_now(followed: FollowedCluster) -> None:
    """Its requests may change while it runs."""
    followed.hear("a", "2")
    followed.hear("a", "3")
    assert followed.free == HostAmount(5000, 15 * 1024)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_frees(followed: FollowedCluster, phase: str) -> None:
    """Its containers have ended for good."""
    followed.hear("a", "2")
    followed.hear("a", "2", phase=phase)
    assert followed.free == HostAmount(8000, 16 * 1024)


def test_a_pod_that_is_gone_frees(followed: FollowedCluster) -> None:
    """By its deletion, or because a new list does not have it."""
    gone = followed.hear("a", "2")
    kept = followed.hear("b", "1")
    followed.hear("c", "1")
    followed.pods.apply(event("DELETED", gone))
    followed.pods.replace(iter([page(kept)]))
    assert followed.free == HostAmount(7000, 15 * 1024)


def test_a_node_that_is_gone_says_nothing(followed: FollowedCluster) -> None:
    """Unknown is not zero."""
    followed.nodes.apply(event("DELETED", node_json("n")))
    assert followed.free is None


def test_the_same_value_until_it_changes(followed: FollowedCluster) -> None:
    """And the one reader is told of each change once."""
    followed.hosts.changes()
    before = followed.free
    assert followed.free is before
    assert followed.hosts.changes() == frozenset()
    followed.hear("a", "1")
    assert followed.hosts.changes() == {N}
    followed.hosts.release(PodUID("nobody"))
    assert followed.hosts.changes() == frozenset()


def test_pods_that_ask_nothing_come_and_go() -> None:
    """Several on one node, as daemons are."""
    hosts = Hosts()
    hosts.set_allocatable(N, HostAmount(1000, 1000))
    for name in ("a", "b"):
        hosts.hold(PodUID(name), N, HostAmount())
    for name in ("a", "b"):
        hosts.release(PodUID(name))
    assert hosts.free(N) == HostAmount(1000, 1000)
    assert hosts.holders() == frozenset()
