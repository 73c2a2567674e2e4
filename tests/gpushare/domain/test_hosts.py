"""The nodes' own CPU and memory, as the policy frag sees them."""

from collections.abc import Callable

import pytest

from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import HostAmount, NodeName, PodUID
from gpushare.domain.policies import PolicyChoice
from gpushare.domain.quantity import NotAQuantity, parse_mebibytes, parse_thousandths
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import PodInformer
from gpushare.kube.cluster import Json
from gpushare.kube.codec import RequestedResources
from tests.builders import event, node_json, page, pod_json

N = NodeName("n")


def asking(cpu: str = "", memory: str = "", **more: object) -> Json:
    """A container that asks this of its node."""
    amounts = {"cpu": cpu, "memory": memory}
    requests = {name: value for name, value in amounts.items() if value}
    return {"name": "c", "resources": {"requests": requests}, **more}


def pod(*containers: Json, **spec: object) -> Json:
    """A pod without cards."""
    return {"spec": {"containers": list(containers), **spec}}


SIDECAR = asking("1", restartPolicy="Always")


@pytest.mark.parametrize(
    ("read", "text", "rounded"),
    [
        *(
            (parse_thousandths, "2", 2000),
            (parse_thousandths, "250m", 250),
            (parse_thousandths, 4, 4000),
        ),
        *(
            (parse_thousandths, "0.1", 100),
            (parse_thousandths, "1e3", 10**6),
            (parse_thousandths, "1n", 1),
        ),
        *(
            (parse_mebibytes, "1Gi", 1024),
            (parse_mebibytes, "512Mi", 512),
            (parse_mebibytes, "1G", 954),
        ),
        *(
            (parse_mebibytes, "1048576", 1),
            (parse_mebibytes, 1, 1),
            (parse_mebibytes, "2Ti", 2**21),
        ),
    ],
)
def test_cpu_and_memory_are_rounded_up(
    read: Callable[[object], int], text: object, rounded: int
) -> None:
    assert read(text) == rounded


@pytest.mark.parametrize("text", ["-1", "much", "", "1.5.2", "-1m", "-1Gi", None])
def test_what_is_no_quantity_is_none(text: object) -> None:
    with pytest.raises(NotAQuantity):
        parse_thousandths(text)
    with pytest.raises(NotAQuantity):
        parse_mebibytes(text)


@pytest.mark.parametrize(
    ("amounts", "amount"),
    [
        (pod(asking("500m", "1Gi"), asking("1")), (1500, 1024)),
        (pod({"name": "c"}), (0, 0)),
        (pod(asking("1"), overhead={"cpu": "250m"}), (1250, 0)),
        (
            pod(asking("1"), initContainers=[asking("3", "64Mi"), asking("2")]),
            (3000, 64),
        ),
        (pod(asking("1"), initContainers=[SIDECAR, asking("2")]), (3000, 0)),
        (pod(asking("1"), resources={"requests": {"cpu": "4"}}), (4000, 0)),
        (pod({"name": "c", "resources": {"limits": {"cpu": "2"}}}), (2000, 0)),
        (pod(asking("what")), None),
        ({}, None),
    ],
)
def test_what_a_pod_asks_of_its_node(
    amounts: Json, amount: tuple[int, int] | None
) -> None:
    """Its peak: containers and sidecars, or an init container that asks more."""
    assert RequestedResources(amounts).host() == (amount and HostAmount(*amount))


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
        self.pods = PodInformer(self.ledger, PolicyChoice(), hosts=self.hosts)
        self.nodes = NodeInformer(self.ledger, hosts=self.hosts)
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
    """Each once, by what it asks now and until it ends: requests may change."""
    followed.hear("a", "1")
    followed.hear("a", "2")
    followed.hear("b", "500m")
    assert followed.free == HostAmount(5500, 14 * 1024)
    followed.hear("a", "2", phase="Succeeded")
    followed.hear("b", "500m", phase="Failed")
    assert followed.free == HostAmount(8000, 16 * 1024)


def test_pods_that_ask_the_same_share_what_is_kept(followed: FollowedCluster) -> None:
    """A hundred thousand pods are of few kinds."""
    uids = [followed.hear(name, "2")["metadata"]["uid"] for name in "ab"]
    first_pod, other = (followed.hosts.pod(PodUID(uid)) for uid in uids)
    assert first_pod is other is not None


def test_a_pod_that_is_gone_frees(followed: FollowedCluster) -> None:
    """By its deletion, or because a new list does not have it."""
    gone = followed.hear("a", "2")
    kept = followed.hear("b", "1")
    followed.hear("c", "1")
    followed.pods.apply(event("DELETED", gone))
    followed.pods.replace(iter([page(kept)]))
    assert followed.free == HostAmount(7000, 15 * 1024)


def test_the_same_value_until_it_changes(followed: FollowedCluster) -> None:
    """And the one reader is told of each change once; unknown is not zero."""
    followed.hosts.changes()
    before = followed.free
    assert followed.free is before
    assert followed.hosts.changes() == frozenset()
    followed.hear("a", "1")
    assert followed.hosts.changes() == {N}
    followed.hosts.release(PodUID("nobody"))
    assert followed.hosts.changes() == frozenset()
    followed.nodes.apply(event("DELETED", node_json("n")))
    assert followed.free is None
