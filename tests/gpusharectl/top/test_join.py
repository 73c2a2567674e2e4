"""Allotted and used side by side, with flags and warnings."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpushare.domain.model import Amount, CardUUID, Share
from gpushare.kube.cluster import Json
from gpusharectl.output import encode
from gpusharectl.state.read import CLAIMS, Trouble
from gpusharectl.state.view import build_overview
from gpusharectl.top.join import join_exporters
from gpusharectl.top.rows import PodRow, Sign, order_rows
from tests.builders import allocation_json, bound_json, claim_json, placement, share
from tests.gpusharectl.cluster_states import (
    A,
    B,
    asking,
    cluster_state,
    held,
    in_order,
    making_room,
    node_2,
)
from tests.gpusharectl.exporter_pages import HOUR, TICK, Says, Shown, Use, page
from tests.gpusharectl.top_states import Scene, at_work, exporter, scene


def node_with(*shown: Shown, told: Says | None = None, units: int = 20) -> Scene:
    """node-2, whose pod ``p`` has these units of its first card."""
    body = page(*shown, told=told, node="node-2")
    return scene([node_2()], [held("p", A, units)], {"node-2": body})


def only_pod(found: Scene) -> PodRow:
    (row,) = found.top().pods
    return row


def side(mib: float | None, sm: float | None = 0, **more: Any) -> Use:
    return Use("p", mib, sm, container="side", **more)


@pytest.mark.parametrize(
    ("uses", "used", "words"),
    [
        # The exporter's word on what is allotted counts for nothing.
        ([Use("p", 700, 12, allocated=99999)], (700, 12), []),
        ([], (None, None), []),
        # 20 units are 5120 MiB. The exporter judges: CUDA's contexts come on top.
        ([Use("p", 5700)], (5700, 0), []),
        ([Use("p", 5377, over=True)], (5377, 0), ["uses 257 MiB more than its share"]),
        ([Use("p", 6400, over=True)], (6400, 0), ["uses 1.25 GiB more than its share"]),
        (
            [Use("p", 10, over=True)],
            (10, 0),
            ["its exporter reports that it exceeds its share"],
        ),
        # Containers on one card are added up; with an unknown part the sum is unknown.
        ([Use("p", 700, 12), side(50)], (750, 12), []),
        ([Use("p", 700, 12), side(None, 3)], (None, 15), []),
        (
            [Use("p", 100), side(300, over=True)],
            (400, 0),
            ["container side uses 300 MiB, but requested none"],
        ),
        ([Use("p", 9, held=1), side(9)], (18, 0), []),
        (
            [Use("p", 9, held=1), side(9, held=0)],
            (18, 0),
            ["not held to its share by its tier: container side"],
        ),
        ([Use("p", 9, idle_s=2 * HOUR - 1)], (9, 0), []),
        ([Use("p", 9, idle_s=2 * HOUR)], (9, 0), ["idle for 120m"]),
        ([Use("p", 9, idle_s=None)], (9, 0), []),
        ([Use("p", 9, idle_s=9 * HOUR), side(9, 5, idle_s=3)], (18, 5), []),
    ],
)
def test_the_row_of_a_pod(
    uses: Sequence[Use], used: tuple[float | None, float | None], words: list[str]
) -> None:
    row = only_pod(node_with(Shown(A, uses=tuple(uses))))
    assert row.allotted == Amount(1, 20)
    assert (row.used_mib, row.sm_percent) == used
    assert [flag.words for flag in row.flags] == words


def test_without_memory_of_its_own_no_share_is_exceeded() -> None:
    """Cores alone say nothing about memory; a whole card is all that there is."""
    row = only_pod(node_with(Shown(A, uses=(Use("p", 300),)), units=0))
    assert row.flags == ()
    whole = placement("p", shares=[share(A, 29, 100)], node="node-2")
    body = page(Shown(A, uses=(Use("p", 99999, over=True),)), node="node-2")
    row = only_pod(scene([node_2()], [bound_json(whole)], {"node-2": body}))
    assert (row.whole, row.flags) == (True, ())


def test_a_pod_of_unknown_card_is_where_its_processes_are() -> None:
    """A card of which it uses nothing is not named, nor one that is only listed."""
    pod = asking("byhand", 5, node="node-2", phase="Running")
    first = Shown(A, uses=(Use("byhand", 0, 0),))
    second = Shown(B, 1, uses=(Use("byhand", 900, 7),))
    body = page(first, second, node="node-2")
    (row,) = scene([node_2()], [pod], {"node-2": body}).top().pods
    assert row.flags[0].words.endswith(". It uses card 1")
    assert row.used_mib == 900


def test_without_a_reading_of_processes_nobody_is_idle() -> None:
    told = Says(times={"memory": TICK})
    shown = Shown(A, uses=(Use("p", 9, 0, idle_s=9 * HOUR),))
    assert only_pod(node_with(shown, told=told)).idle_s is None


def test_pods_without_a_share_have_a_row_if_they_use_the_card() -> None:
    """Not those of which an exporter is a moment behind; also on an unknown card."""
    gone = (Use("before", 0, 0), Use("blind", None, None))
    uses = (Use("p", 10), *gone, Use("computes", None, 5))
    strange = Shown("GPU-new", 7, uses=(Use("q", 10, 1),))
    rows = node_with(Shown(A, uses=uses), strange).top().pods
    assert {(row.name, row.card, row.index) for row in rows} == {
        ("p", A, 0),
        ("q", "GPU-new", None),
        ("computes", A, 0),
    }


def test_a_nominated_pod_has_no_row() -> None:
    """It does not run yet."""
    rows = Scene(making_room()).top().pods
    assert sorted(row.name for row in rows) == ["old", "stays"]


@pytest.mark.parametrize(("mib", "flagged"), [(512, False), (513, True), (None, False)])
def test_what_the_driver_keeps_for_itself_is_no_flag(
    mib: float | None, flagged: bool
) -> None:
    """Up to as much as the alert lets pass."""
    card = node_with(Shown(A, unattributed=mib)).top().cards[0]
    assert bool(card.flags) is flagged


def test_the_order() -> None:
    """Most first; where two are alike, by name; the unknown last."""
    by_mem, by_sm = at_work().top(sort="mem"), at_work().top(sort="sm")
    names = "app-1 app-2 cuda-2 cuda-3 app-3"
    assert [row.name for row in by_mem.pods] == names.split()
    names = "app-1 cuda-2 app-2 app-3 cuda-3"
    assert [row.name for row in by_sm.pods] == names.split()
    for sort, names in (
        ("allotted", "app-1 app-2 cuda-3 cuda-2 app-3"),
        ("name", "app-1 app-2 app-3 cuda-2 cuda-3"),
    ):
        found = order_rows(by_sm, sort)
        assert [row.name for row in found.pods] == names.split()
    assert [row.where for row in by_sm.cards] == ["node-1 0", "node-2 0", "node-2 1"]
    found = node_with(Shown(A, mib=None), Shown(B, 1)).top(sort="mem")
    assert [row.where for row in found.cards] == ["node-2 1", "node-2 0"]


def parted(*shown: Shown, web: str = A, model: str = A) -> Scene:
    """Pod ``p``, of which ``web`` has 4 units of a card and ``model`` 8."""
    parts = [share(web, 4, container="web"), share(model, 8, container="model")]
    if web == model:
        amounts = [one for part in parts for one in part.containers]
        parts = [Share(CardUUID(web), Amount(0, 12), tuple(amounts))]
    pod = bound_json(placement("p", shares=parts, node="node-2"))
    return scene([node_2()], [pod], {"node-2": page(*shown, node="node-2")})


def test_containers_on_cards_of_their_own() -> None:
    """Each card's row has those that were allotted a part of it."""
    first = Shown(A, uses=(Use("p", 900, container="web"),))
    second = Shown(B, 1, uses=(Use("p", 100, container="model"),))
    found = parted(first, second, model=B).top().pods
    rows = {row.index: (row.used_mib, row.containers[0].name) for row in found}
    assert rows == {0: (900, "web"), 1: (100, "model")}


def test_a_container_that_has_ended_uses_nothing() -> None:
    """Its exporter does not report it any more; what the others use is known."""
    found = parted(Shown(A, uses=(Use("p", 900, 5, container="model"),)))
    row = only_pod(found)
    assert (row.used_mib, row.sm_percent) == (900, 5)
    web, model = encode(found.top())["pods"][0]["containers"]
    assert (web["name"], web["over"], model["over"]) == ("web", None, False)


def test_the_container_that_is_over_is_named_once() -> None:
    """Though the pod is over its share, too."""
    uses = (
        Use("p", 9000, 3, container="web", over=True),
        Use("p", 900, 30, container="model"),
    )
    row = only_pod(parted(Shown(A, uses=uses)))
    assert [flag.words for flag in row.flags] == [
        "container web uses 7.79 GiB more than its share"
    ]


def no_sm(mib: float, sm: float | None = None, source: str = "none") -> Shown:
    return Shown(A, source=source, uses=(Use("p", mib, sm, allocated=None),))


LATE = {"memory": TICK - 99, "processes": TICK - 99}
BEHIND = {"memory": TICK, "processes": TICK - 61}
FAILED = "its exporter could not read these groups of every card: memory, utilization"


@pytest.mark.parametrize(
    ("shown", "says", "words"),
    [
        (Shown(A), Says(), ""),
        (Shown(A), Says(times={}), "its exporter has read nothing yet"),
        (Shown(A), Says(times={"memory": TICK}), "its exporter reads no processes"),
        (Shown(A), Says(times=BEHIND), "its values of processes are 61s"),
        (Shown(A), Says(times={"memory": TICK - 59, "processes": TICK}), ""),
        (Shown(A), Says(times=LATE), "by this computer's clock"),
        (Shown(A), Says(("cards",)), "finds no card, or the driver does not answer"),
        (Shown(A), Says(("pods",)), "its exporter cannot read the pods of its node"),
        (Shown(A), Says(("processes",)), "cannot assign processes to pods"),
        (Shown(A), Says(("tomorrow",)), "its exporter reports: tomorrow"),
        (Shown(A), Says(failed=("memory", "utilization")), FAILED),
        (no_sm(10), Says(), "SM use by process on card 0"),
        (no_sm(0), Says(), ""),
        (no_sm(10, 5), Says(), ""),
        (no_sm(10, source="card"), Says(), ""),
        # Only pods have a row in which it could be shown.
        (Shown(A, source="none", outside=900), Says(), ""),
    ],
)
def test_what_is_said_of_an_exporter(shown: Shown, says: Says, words: str) -> None:
    body = page(shown, told=says, node="node-2")
    found = scene([node_2()], [], {"node-2": body}).top().troubles
    assert [one.about for one in found] == (["node-2"] if words else [])
    assert not words or words in found[0].what


def test_mig_instances_have_the_numbers_of_their_rows() -> None:
    """For the exporter both are of card 0, the books call them 0 and 1."""
    both = [replace(no_sm(10), uuid=uuid, index=0) for uuid in (A, B)]
    body = page(*both, node="node-2")
    (trouble,) = scene([node_2()], [], {"node-2": body}).top().troubles
    assert trouble.what.endswith("SM use by process on card 0, 1")


def with_claims(*claims: Json, uses: Sequence[Use], unknown: bool = False) -> Scene:
    """A node with claims on its card A, and what its exporter reports of pods there."""
    parts = [*in_order(node_2()), exporter("node-2")]
    state = cluster_state([node_2()], parts=parts, claims=claims)
    if unknown:
        placements = replace(state.placements, users={})
        state = replace(state, placements=placements)
    return Scene(state, {"node-2": page(Shown(A, uses=tuple(uses)), node="node-2")})


def of_a(name: str, units: int = 8, pods: Sequence[str] = ()) -> Json:
    allocation = allocation_json(A.lower(), units=units, cores=4, node="node-2")
    return claim_json(name, allocation, pods=pods)


def test_a_pod_with_a_claim_is_one_row() -> None:
    """Its name, its share by the claim, and what it uses: as of a classic pod."""
    scene = with_claims(of_a("own", pods=["user"]), uses=[Use("user", 700, 12)])
    (row,) = scene.top().pods
    assert (row.full_name, row.index) == ("default/user", 0)
    assert row.uid == "uid-user"
    assert (row.allotted, row.used_mib, row.sm_percent) == (Amount(4, 8), 700, 12)
    assert row.claims == ("own",)
    assert [flag.words for flag in row.flags] == ["by claim own"]


def test_pods_that_share_a_claim_have_a_row_each() -> None:
    """Which names the others, since the part of the card is there only once."""
    scene = with_claims(of_a("own", pods=["a", "b"]), uses=[Use("a", 1), Use("b", 2)])
    rows = {row.name: row for row in scene.top().pods}
    assert {name: row.used_mib for name, row in rows.items()} == {"a": 1, "b": 2}
    (flag,) = rows["a"].flags
    assert flag.words == "by claim own, shared with b"
    assert scene.top().cards[0].allotted == Amount(4, 8)
    placements = scene.seen.placements
    unseen = replace(placements, reserved=frozenset(placements.users))
    scene = replace(scene, seen=replace(scene.seen, placements=unseen))
    rows = {row.name: row for row in scene.top().pods}
    assert rows["a"].flags[0].words == "by claim own, reserved, shared with b"


def test_a_pod_with_two_claims_on_one_card_is_one_row() -> None:
    """Otherwise what it uses would be there twice."""
    claims = [of_a("one", 8, ["user"]), of_a("two", 3, ["user"])]
    found = with_claims(*claims, uses=[Use("user", 700)]).top()
    (row,) = found.pods
    assert (row.allotted, row.used_mib) == (Amount(8, 11), 700)
    assert row.claims == ("one", "two")
    assert encode(found)["pods"][0]["claims"] == ["one", "two"]


def test_a_pod_above_its_claim_is_over_its_share() -> None:
    """By how much as a whole: what each container has of the claim is not known."""
    uses = [
        Use("user", 1500, over=True),
        Use("user", 1000, container="side", over=True),
    ]
    (row,) = with_claims(of_a("own", pods=["user"]), uses=uses).top().pods
    over, by_claim = sorted(row.flags, key=lambda flag: flag.sign != Sign.OVER)
    assert over.words == "uses 452 MiB more than its share"
    assert by_claim.words == "by claim own"


def test_a_claim_without_a_pod_has_a_row_of_its_own() -> None:
    """Whoever uses the card beside it has no share of it."""
    scene = with_claims(of_a("own"), uses=[Use("user", 700)])
    rows = {row.name: row for row in scene.top().pods}
    assert rows["own"].used_mib is None
    words = [flag.words for flag in rows["own"].flags]
    assert words == ["claim, allocated for no pod"]
    assert [flag.words for flag in rows["user"].flags] == ["has no share of this card"]


def test_who_uses_a_claim_of_unknown_pods_is_no_thief() -> None:
    """An older extender does not name them."""
    scene = with_claims(of_a("own"), uses=[Use("user", 700)], unknown=True)
    rows = {row.name: row for row in scene.top().pods}
    assert [flag.words for flag in rows["own"].flags] == ["claim, allocated"]
    (flag,) = rows["user"].flags
    assert flag.words.endswith("; it may use that of a ResourceClaim here")


def test_what_is_not_known_of_claims_is_said_here_too() -> None:
    """A card that claims may hold would look free otherwise."""
    trouble = Trouble(CLAIMS, "what they hold is not known", "get the right")
    state = cluster_state([node_2()], troubles=[trouble])
    top = join_exporters(build_overview(state), {})
    assert trouble in top.troubles
    assert top.elsewhere == 0
