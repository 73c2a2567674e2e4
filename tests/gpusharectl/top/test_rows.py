"""How the books and the exporters' pages come together."""

import pytest

from gpusharectl.top.rows import PodRow, Sign, Wish
from tests.builders import bound_json, placement, share
from tests.gpusharectl.pages import HOUR, TICK, Says, Shown, Use, page
from tests.gpusharectl.scenes import A, B, asking, held, making_room, node_2
from tests.gpusharectl.topscenes import (
    Scene,
    at_work,
    elsewhere,
    no_exporters,
    scene,
    silent,
    unknown,
)


def node_with(*shown: Shown, told: Says | None = None, units: int = 20) -> Scene:
    """node-2, whose pod ``p`` has these units of its first card."""
    body = page(*shown, told=told, node="node-2")
    return scene([node_2()], [held("p", A, units, node="node-2")], {"node-2": body})


def only_pod(found: Scene) -> PodRow:
    (row,) = found.top().pods
    return row


def signs(row: PodRow) -> list[Sign]:
    return [flag.sign for flag in row.flags]


def test_allotted_is_by_the_books_and_used_by_the_exporter() -> None:
    """What the exporter believes to be allotted counts for nothing."""
    use = Use("p", 700, 12, allocated=99999)
    row = only_pod(node_with(Shown(A, uses=(use,))))
    assert row.allotted is not None
    assert (row.allotted.units, row.used_mib, row.sm) == (20, 700, 12)
    assert row.flags == ()


def test_of_what_the_exporter_does_not_name_nothing_is_known() -> None:
    """As just after a pod has come."""
    row = only_pod(node_with(Shown(A)))
    assert (row.used_mib, row.sm, row.idle_s) == (None, None, None)


@pytest.mark.parametrize(
    ("mib", "over", "words"),
    [
        (5120, False, []),
        (5700, False, []),
        (5377, True, ["uses 257 MiB more than its share"]),
        (6400, True, ["uses 1.25 GiB more than its share"]),
        (None, False, []),
    ],
)
def test_over_its_share(mib: float | None, *, over: bool, words: list[str]) -> None:
    """20 units are 5120 MiB. The exporter judges: CUDA's contexts come on top."""
    row = only_pod(node_with(Shown(A, uses=(Use("p", mib, over=over),))))
    assert [flag.words for flag in row.flags] == words


def test_the_exporter_may_find_it_over_for_reasons_of_its_own() -> None:
    """It has watched it for longer than we have."""
    row = only_pod(node_with(Shown(A, uses=(Use("p", 10, over=True),))))
    assert [flag.words for flag in row.flags] == [
        "its exporter finds it over its share"
    ]


def test_who_asked_for_cores_alone_has_no_share_to_exceed() -> None:
    """Nobody has said how much memory it may use; nor whoever has the whole card."""
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


@pytest.mark.parametrize(
    ("idle_s", "found"),
    [(0, []), (2 * HOUR - 1, []), (2 * HOUR, [Sign.IDLE]), (None, [])],
)
def test_idle_is_counted_by_the_nodes_own_clock(
    idle_s: float | None, found: list[Sign]
) -> None:
    """A clock that is years behind ours makes nobody busy."""
    times = {"memory": TICK, "processes": TICK}
    shown = Shown(A, uses=(Use("p", 9, 0, idle_s=idle_s),))
    row = only_pod(node_with(shown, told=Says(times=times)))
    assert row.idle_s == idle_s
    assert signs(row) == found


def test_one_busy_container_is_enough() -> None:
    """The pod works."""
    uses = (Use("p", 9, 0, idle_s=9 * HOUR), Use("p", 9, 5, container="b", idle_s=3))
    assert only_pod(node_with(Shown(A, uses=uses))).idle_s == 3


def test_without_a_round_of_processes_nobody_is_idle() -> None:
    """Nothing was looked at."""
    told = Says(times={"memory": TICK})
    shown = Shown(A, uses=(Use("p", 9, 0, idle_s=9 * HOUR),))
    assert only_pod(node_with(shown, told=told)).idle_s is None


def test_pods_that_are_elsewhere() -> None:
    """Without a share there, of unknown card, on a card that is gone."""
    rows = {(row.name, row.index): row for row in elsewhere().top().pods}
    assert signs(rows["mover", 1]) == [Sign.NO_SHARE]
    assert "its share is on card 0" in rows["mover", 1].flags[0].words
    assert rows["mover", 1].allotted is None
    assert signs(rows["mover", 0]) == []
    assert signs(rows["byhand", None]) == [Sign.UNPLACED]
    assert rows["byhand", None].used_mib == 900
    assert signs(rows["spy", 1]) == [Sign.NO_SHARE]
    assert signs(rows["left-behind", None]) == [Sign.GONE]


def test_who_uses_nothing_of_a_card_is_not_on_it() -> None:
    """An exporter that is a moment behind names pods that have gone."""
    gone = (Use("before", 0, 0), Use("blind", None, None))
    uses = (Use("p", 10), *gone, Use("computes", None, 5))
    rows = node_with(Shown(A, uses=uses)).top().pods
    assert [row.name for row in rows] == ["p", "computes"]


def test_a_card_that_the_books_do_not_know() -> None:
    """Its users are shown all the same."""
    strange = Shown("GPU-new", 7, uses=(Use("q", 10, 1),))
    rows = node_with(Shown(A, uses=(Use("p", 20),)), strange).top().pods
    assert [(row.name, row.uuid, row.index) for row in rows] == [
        ("p", A, 0),
        ("q", "GPU-new", None),
    ]


def test_room_that_is_only_kept_is_no_row() -> None:
    """The pod does not run yet."""
    rows = Scene(making_room()).top().pods
    assert sorted(row.name for row in rows) == ["old", "stays"]


def test_of_a_silent_node_everything_is_unknown() -> None:
    """What was allotted there is known all the same."""
    top = no_exporters().top()
    assert {row.used_mib for row in (*top.cards, *top.pods)} == {None}
    assert sum(row.allotted.units for row in top.cards) == 91
    assert [row.told for row in top.nodes] == [False, False]


def test_cards_and_their_flags() -> None:
    """Who is outside Kubernetes, and what belongs to nobody."""
    first, second, third = at_work().top().cards
    assert [flag.sign for flag in first.flags] == [Sign.UNATTRIBUTED]
    assert second.flags == ()
    assert [flag.sign for flag in third.flags] == [Sign.OUTSIDE]
    assert (third.outside_mib, third.unattributed_mib) == (1300, 300)


@pytest.mark.parametrize(("mib", "flagged"), [(512, False), (513, True), (None, False)])
def test_what_the_driver_keeps_for_itself_is_no_flag(
    mib: float | None, flagged: bool
) -> None:
    """Up to as much as the alert lets pass."""
    card = node_with(Shown(A, unattributed=mib)).top().cards[0]
    assert bool(card.flags) is flagged


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        (None, ["app-1", "app-2", "cuda-2", "cuda-3", "app-3"]),
        ("mem", ["app-1", "app-2", "cuda-2", "cuda-3", "app-3"]),
        ("sm", ["app-1", "cuda-2", "app-2", "app-3", "cuda-3"]),
    ],
)
def test_the_order_of_pods(sort: str | None, names: list[str]) -> None:
    """Most first; where two are alike, by name."""
    rows = at_work().top(Wish(sort=sort)).pods  # type: ignore[arg-type]
    assert [row.name for row in rows] == names


def test_the_order_of_cards() -> None:
    """By node and index, or the one asked for; the unknown last."""
    assert [row.where for row in at_work().top(Wish(sort="sm")).cards] == [
        "node-1 0",
        "node-2 0",
        "node-2 1",
    ]
    assert [row.where for row in unknown().top(Wish(sort="mem")).cards][
        -1
    ] == "node-2 1"
    with_dark_first = node_with(Shown(A, mib=None), Shown(B, 1)).top(Wish(sort="mem"))
    assert [row.where for row in with_dark_first.cards] == ["node-2 1", "node-2 0"]


def test_one_namespace() -> None:
    """Its pods alone; the cards stay everybody's."""
    top = elsewhere().top(Wish("edge"))
    assert [row.full_name for row in top.pods] == ["edge/spy"]
    assert len(top.cards) == 2


def test_one_node() -> None:
    """Others are not even asked."""
    top = silent().top(only="node-d")
    assert [row.name for row in top.nodes] == ["node-d"]
    assert top.troubles == ()
