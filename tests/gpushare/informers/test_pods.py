"""Pods of the API server, recorded in the ledger: what each is charged."""

from collections.abc import Iterable
from itertools import permutations
from typing import Any

import pytest

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Card, NodeName, Placement, PodUID
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import PodInformer
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from gpushare.kube.codec import read_pod_record
from tests.builders import (
    AT,
    FIRST_FIT,
    bound_json,
    card,
    cards,
    container_json,
    event,
    node_json,
    page,
    placement,
    pod_json,
    ref,
    request,
)

N = NodeName("n")


TWO = node_json("n", *cards(29, 29))


class FollowedCluster:
    """A ledger with its two books, and a clock."""

    def __init__(self, *things: Json, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.now = 0.0
        self.gone: list[PodUID] = []
        self.pods = PodInformer(
            self.ledger,
            PolicyChoice(),
            on_gone=self.gone.append,
            clock=lambda: self.now,
        )
        self.nodes = NodeInformer(self.ledger, set_cards=self.pods.set_cards)
        self.hear(*things)

    def hear(self, *things: Json) -> None:
        for thing in things:
            book = self.nodes if thing["kind"] == "Node" else self.pods
            book.apply(event("MODIFIED", thing))

    def relist(self, *pods: Json) -> None:
        self.pods.replace(iter([page(*pods[:1], token="t"), page(*pods[1:])]))

    def without_placement(self) -> list[str]:
        """The names of the pods that were bound without the extender."""
        missed = filter(self.pods.is_without_placement, self.pods.records())
        return [record.pod.name for record in missed]

    @property
    def free(self) -> list[int]:
        page = self.ledger.node(N)
        return [room.units for room in page.free.values()]


@pytest.fixture
def followed() -> FollowedCluster:
    return FollowedCluster(TWO)


def test_a_pod_is_charged_until_its_phase_is_terminal(
    followed: FollowedCluster,
) -> None:
    for ended in ("Succeeded", "Failed"):
        for phase in ("Pending", "Running", "Unknown"):
            followed.hear(bound_json(placement("a", 1, 20), phase=phase))
            assert followed.free == [29, 9]
        followed.hear(bound_json(placement("a", 1, 20), phase=ended))
        assert followed.free[1] == 29
        assert followed.pods.records() == ()


def test_a_deletion_timestamp_frees_nothing(followed: FollowedCluster) -> None:
    """The containers still run; only the object's end counts."""
    followed.hear(bound_json(placement("a", 0, 20), terminating=True))
    assert followed.free[0] == 9
    followed.pods.apply(event("DELETED", bound_json(placement("a", 0, 20))))
    assert followed.free[0] == 29


def test_an_event_without_our_annotation_erases_nothing(
    followed: FollowedCluster,
) -> None:
    """The watch may be behind our own bind, or somebody took the annotation off."""
    followed.ledger.reserve(request("a", 20), N, FIRST_FIT)
    for node in ("", "n"):
        followed.hear(pod_json("a", units=20, node=node))
        assert followed.free[0] == 9
    followed.hear(bound_json(placement("a", 0, 20)))
    for notes in ({}, {names.ACTUAL: "{"}):
        followed.hear(pod_json("a", units=20, node="n", annotations=notes))
        assert followed.free[0] == 9
    followed.pods.apply(event("DELETED", pod_json("a", units=20, node="n")))
    assert followed.free[0] == 29


def test_a_relist_drops_what_is_gone(followed: FollowedCluster) -> None:
    placed = [bound_json(placement(name, 0, 5)) for name in "abc"]
    followed.hear(*placed)
    followed.relist(placed[0], placed[2])
    assert followed.free[0] == 19
    assert followed.gone == [ref("b").uid]


def test_a_pod_bound_without_a_placement_is_counted(
    followed: FollowedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The sign that kube-scheduler does not ask us any more."""
    followed.hear(pod_json("a", units=4))
    assert caplog.records == []
    followed.hear(pod_json("a", units=4, node="n"), pod_json("b", node="n"))
    followed.hear(pod_json("z", units=0, node="n"), pod_json("p", units=4))
    assert followed.without_placement() == ["a"]
    assert [r.message for r in caplog.records] == ["pod bound without a placement"]
    followed.pods.apply(event("DELETED", pod_json("a", units=4, node="n")))
    assert followed.without_placement() == []


def test_a_pod_made_again_under_its_name_is_another(followed: FollowedCluster) -> None:
    old = pod_json("a", uid="uid-1", units=4)
    followed.hear(old, pod_json("a", uid="uid-2", units=4))
    followed.pods.apply(event("DELETED", old))
    record = followed.pods.find("default", "a")
    assert record.pod.uid == "uid-2"


def test_only_pods_that_ask_for_cards_are_kept(followed: FollowedCluster) -> None:
    followed.hear(pod_json("plain"), pod_json("gpu", units=4), pod_json("z", units=0))
    assert [record.pod.name for record in followed.pods.records()] == ["gpu", "z"]
    assert followed.pods.find("default", "plain") is None


def test_what_is_not_understood_is_left_out_and_logged(
    followed: FollowedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on; a pod with a broken placement counts as bound without us."""
    broken = pod_json("a", units=4, node="n")
    broken["metadata"]["labels"] = []
    followed.hear(broken, bound_json(placement("b", 0, 5)))
    assert followed.free[0] == 24
    followed.hear(pod_json("c", units=4, node="n", annotations={names.PLACEMENT: "{"}))
    assert followed.without_placement() == ["c"]
    assert [r.message for r in caplog.records] == [
        *("pod not understood", "placement not understood"),
        "pod bound without a placement",
    ]
    assert "metadata.labels" in vars(caplog.records[0])["because"]
    assert names.PLACEMENT in vars(caplog.records[1])["because"]


def test_a_placement_read_by_others_is_taken_unless_the_pod_has_ended(
    followed: FollowedCluster,
) -> None:
    """It would stay on the books for ever."""
    read = read_pod_record(bound_json(placement("a", 0, 5)))
    assert followed.pods.settle(read)
    assert followed.free[0] == 24
    followed.pods.apply(event("DELETED", bound_json(placement("a", 0, 5))))
    assert not followed.pods.settle(read)
    assert followed.free[0] == 29


def test_a_holder_that_no_list_names_has_gone(followed: FollowedCluster) -> None:
    followed.ledger.reserve(request("a", 20), N, FIRST_FIT)
    followed.pods.replace(iter([page()]))
    assert followed.free[0] == 29


@pytest.mark.parametrize("ends", ["DELETED", "Succeeded", "relist"])
def test_what_is_charged_everywhere_is_freed_everywhere(
    followed: FollowedCluster, ends: str
) -> None:
    followed.hear(pod())
    if ends == "DELETED":
        followed.pods.apply(event("DELETED", pod()))
    elif ends == "relist":
        followed.relist()
    else:
        followed.hear({**pod(), "status": {"phase": ends}})
    assert followed.free == [29, 29]
    assert followed.ledger.holders() == frozenset()


def test_what_was_read_of_a_pod_bound_bare_charges_it(
    followed: FollowedCluster,
) -> None:
    assert not followed.pods.settle(read_pod_record(pod()))
    assert followed.free == [9, 9]
    assert not followed.pods.settle(read_pod_record(pod_json("b", units=4)))
    assert followed.free == [9, 9]


PLAN = placement("a", 0, 20)
ACTUAL = placement("a", 1, 20)
IMPOSSIBLE = placement("a", "GPU-9", 20)


class Hasty(Ledger):
    """A ledger that is asked for room as soon as a node's cards are written down."""

    def set_cards(self, name: NodeName, cards: Iterable[Card]) -> None:
        super().set_cards(name, cards)
        self.reserve(request("hasty", 20), name, FIRST_FIT)


def pod(
    plan: Placement | None = None, actual: Placement | None = None, **more: Any
) -> Json:
    """A pod of 20 units bound to n, with these placements and annotations."""
    both = ((names.PLACEMENT, plan), (names.ACTUAL, actual))
    notes = {
        key: encode_placement(record, AT) for key, record in both if record is not None
    }
    notes |= more.pop("notes", {})
    return pod_json("a", **({"units": 20} | more), node="n", annotations=notes)


def test_no_bind_comes_between_the_cards_and_what_is_held_of_them() -> None:
    """One that saw the plan would find room where the pod is in truth."""
    followed = FollowedCluster(pod(PLAN, ACTUAL), TWO, ledger=Hasty())
    assert followed.free == [9, 9]


APART = [container_json("a", 3, 100), container_json("b", 9, 80)]
ODD = {names.CONTAINERS: "asunder"}


@pytest.mark.parametrize(
    ("messages", "free", "missed"),
    [
        pytest.param(pod(), [9, 9], True, id="nothing"),
        pytest.param(pod(PLAN), [9, 29], False, id="plan"),
        pytest.param(pod(PLAN, ACTUAL), [29, 9], False, id="actual wins"),
        pytest.param(pod(None, ACTUAL), [29, 9], False, id="actual alone"),
        pytest.param(pod(PLAN, IMPOSSIBLE), [9, 29], False, id="impossible"),
        pytest.param(pod(None, IMPOSSIBLE), [9, 9], True, id="impossible alone"),
        pytest.param(
            pod(None, placement("a", 0, 20, 200)), [9, 9], True, id="above a card"
        ),
        pytest.param(pod(placement("other")), [9, 9], True, id="another pod's uid"),
        pytest.param(
            pod(placement("a", 1, 2), notes=ODD), [9, 9], True, id="too little"
        ),
        pytest.param(pod(cores=150), [29, 29], False, id="invalid by its spec"),
        pytest.param(pod(notes=ODD), [9, 9], True, id="invalid containers"),
        pytest.param(pod(notes={names.UUIDS: ","}), [9, 9], True, id="invalid uuids"),
        pytest.param(pod(notes={names.MODELS: "a*b"}), [9, 9], True, id="models"),
        pytest.param(pod(containers=APART), [0, 0], True, id="no longer apart"),
    ],
)
def test_the_most_believable_placement_is_charged(
    messages: Json, free: list[int], missed: bool
) -> None:
    """Whatever its user makes of its annotations, in any order, by watch or list."""
    for things in permutations([messages, TWO, TWO]):
        followed = FollowedCluster(*things)
        assert followed.free == free
        followed.hear(*things)
        followed.relist(messages)
        assert followed.free == free
        assert bool(followed.without_placement()) == missed


def test_an_impossible_card_frees_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Users may write into their own pods; what was wrong is told once."""
    followed = FollowedCluster(TWO, pod(PLAN))
    for _ in range(3):
        followed.hear(pod(PLAN, IMPOSSIBLE), TWO)
        assert followed.free == [9, 29]
    followed.hear(pod(None, IMPOSSIBLE))
    assert followed.free == [9, 29]
    assert [r.message for r in caplog.records] == [
        "vcuda-actual is ignored: it does not fit the node's cards"
    ]


def test_a_card_that_comes_later_is_believed_then() -> None:
    """The device plugin writes a node's cards and a pod's card one after the other."""
    followed = FollowedCluster(TWO, pod(None, IMPOSSIBLE))
    assert followed.free == [9, 9]
    followed.hear(node_json("n", *cards(29, 29), card(9)))
    assert followed.free == [29, 29, 9]


def test_a_card_that_goes_takes_its_pod_with_it() -> None:
    """The pod holds nothing of the cards that are left, whatever was planned."""
    followed = FollowedCluster(TWO, pod(PLAN, ACTUAL))
    followed.hear(node_json("n", card(0)))
    assert followed.free == [29]
    followed.hear(TWO)
    assert followed.free == [29, 9]


@pytest.mark.parametrize("notes", [{names.CARDS: "{"}, {names.CORDON: "GPU-0"}])
def test_a_closed_node_moves_no_charge(notes: dict[str, str]) -> None:
    """When it is open again all is as before; who has ended stays so."""
    followed = FollowedCluster(TWO, pod(PLAN, ACTUAL))
    its_cards = () if names.CARDS in notes else cards(29, 29)
    followed.hear(node_json("n", *its_cards, annotations=notes), pod(PLAN, ACTUAL), TWO)
    assert followed.free == [29, 9]
    followed.pods.apply(event("DELETED", pod(None, ACTUAL)))
    followed.hear(TWO)
    assert followed.free == [29, 29]
