"""Whom inspect asks, and what it does when nobody answers."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gpushare.cache.snapshot import snapshot
from gpushare.domain.policies import Choice
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden, Unavailable
from gpushare.kube.objects import Objects, Ref
from gpusharectl.state.read import everything, look
from tests.builders import bound_json, card, node, placement, pod_json
from tests.gpusharectl.pictures import NOW, extender, kube_scheduler, node_of

PAGE = node(card(0, 7, uuid="GPU-told"), name="told")
SERVED = orjson.dumps(snapshot([PAGE], [], Choice("spread")))


class Hands:
    """Stands in for ``Objects``: what each extender answers, and who leads."""

    def __init__(
        self, answers: Mapping[str, bytes | ClusterError], leader: str = ""
    ) -> None:
        self._answers = answers
        self._leader = leader
        self.asked: list[str] = []

    def fetch(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        assert (namespace, port, path) == ("kube-system", 39999, "/snapshot")
        self.asked.append(pod)
        answer = self._answers[pod]
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    def get(self, ref: Ref) -> Json | None:
        lease, _, host = self._leader.rpartition(":")
        if not host:
            raise Forbidden("leases is forbidden")
        if ref.name != (lease or "kube-scheduler"):
            return None
        return {"spec": {"holderIdentity": f"{host}_0f3c"}}


class World:
    """A cluster in memory, and hands for it."""

    def __init__(self, hands: Hands, *pods: Json) -> None:
        self.embedded = Embedded()
        self.hands = hands
        self.embedded.create(Kind.NODES, node_of("n", card(0, 29)))
        for pod in pods:
            self.embedded.create(Kind.PODS, pod)
            status: Any = {"status": pod["status"]}
            place, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            self.embedded.patch(Kind.PODS, place, name, status, subresource="status")

    @property
    def cluster(self) -> Cluster:
        return self.embedded

    @property
    def objects(self) -> Objects:
        return self.hands  # type: ignore[return-value]


def test_the_extenders_own_books_come_first() -> None:
    """With its own choice of policy; nothing is said of a source."""
    world = World(Hands({"x": SERVED}), extender("x"))
    found = look(world, NOW)
    assert [page.name for page in found.books.pages] == ["told"]
    assert found.books.unasked == ""
    assert found.books.choice.default == "spread"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Forbidden("pods/portforward is forbidden"), "x: pods/portforward"),
        (Unavailable("connection refused"), "x: connection refused"),
        (b"<html>", "x: snapshot: is not JSON"),
    ],
)
def test_without_an_answer_it_is_reckoned_here(
    answer: bytes | ClusterError, words: str
) -> None:
    """And said so, with the reason; the policy is read off the extender's pod."""
    pod = extender("x")
    settings = [{"name": "GPUSHARE_POLICY", "value": "best-fit"}]
    pod["spec"]["containers"][0]["env"] = settings
    found = look(World(Hands({"x": answer}), pod), NOW)
    assert [page.name for page in found.books.pages] == ["n"]
    assert found.books.unasked.startswith(words)
    assert found.books.choice.default == "best-fit"


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([], "no pod of it is in kube-system"),
        ([extender("x", ready=False)], "none of its pods is ready"),
    ],
    ids=["none", "not-ready"],
)
def test_nobody_is_asked_in_vain(pods: list[Json], words: str) -> None:
    """Where no extender is ready, no port-forward is tried."""
    hands = Hands({})
    assert look(World(hands, *pods), NOW).books.unasked == words
    assert hands.asked == []


@pytest.mark.parametrize(
    ("leader", "order"),
    [
        ("cp-2", ["y"]),
        ("cp-1", ["x"]),
        ("vcuda-scheduler:y", ["y"]),
        ("", ["x"]),
    ],
)
def test_the_one_beside_the_leader_is_asked_first(
    leader: str, order: list[str]
) -> None:
    """It has seen the last bind; where nobody knows who leads, any is right."""
    hands = Hands({"x": SERVED, "y": SERVED}, leader)
    world = World(hands, extender("x", node="cp-1"), extender("y", node="cp-2"))
    assert look(world, NOW).books.unasked == ""
    assert hands.asked == order


def test_another_is_asked_when_one_does_not_answer() -> None:
    """All ready ones, before it is reckoned here."""
    hands = Hands({"x": Unavailable("reset"), "y": SERVED})
    found = look(World(hands, extender("x"), extender("y")), NOW)
    assert hands.asked == ["x", "y"]
    assert found.books.unasked == ""


def test_what_is_kept_of_the_pods() -> None:
    """Those that ask, our own, and kube-scheduler; of thousands of others nothing."""
    pods = [
        bound_json(placement("ours", node="n")),
        pod_json("zero", units=0),
        pod_json("plain"),
        pod_json("done", units=3, phase="Succeeded"),
        kube_scheduler(),
    ]
    found = look(World(Hands({}), *pods), NOW)
    assert [pod["metadata"]["name"] for pod in found.pods] == ["ours", "zero"]
    assert [pod["metadata"]["name"] for pod in found.parts] == ["kube-scheduler-cp"]


def test_long_lists_are_read_to_their_end() -> None:
    """Page by page."""
    world = World(Hands({}))
    for number in range(1203):
        world.embedded.create(Kind.PODS, pod_json(f"p-{number}", uid=f"u{number}"))
    assert len(list(everything(world.embedded, Kind.PODS))) == 1203
