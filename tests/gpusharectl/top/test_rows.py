"""Allotted and used side by side, with flags and warnings."""

import pytest

from gpushare.domain.model import Amount, CardUUID, Share
from gpusharectl.top.rows import PodRow, Query, Sign
from gpusharectl.top.serialize import top_data
from tests.builders import bound_json, placement, share
from tests.gpusharectl.cluster_states import A, B, asking, held, making_room, node_2
from tests.gpusharectl.exporter_pages import HOUR, TICK, Says, Shown, Use, page
from tests.gpusharectl.top_states import (
    Scene,
    at_work,
    containers,
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
        "its exporter reports that it exceeds its share"
    ]


def test_who_asked_for_cores_alone_has_no_share_to_exceed() -> None:
    """Nobody has said how much memory it may use; nor whoever has the whole card."""
    row = only_pod(node_with(Shown(A, uses=(Use("p", 300),)), units=0))
    assert row.flags == ()
    whole = placement("p", shares=[share(A, 29, 100)], node="node-2")
    body = page(Shown(A, uses=(Use("p", 99999, over=True),)), node="node-2")
    row = only_pod(scene([node_2()], [bound_json(whole)], {"node-2": body}))
    assert row.share is not None
    assert (row.share.whole, row.flags) == (True, ())


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
    assert top.used_mib == []
    assert {row.used_mib for row in top.pods} == {None}
    assert sum(row.view.charged.units for row in top.cards) == 91
    assert all(top.nodes.values())


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
    rows = at_work().top(Query(sort=sort)).pods  # type: ignore[arg-type]
    assert [row.name for row in rows] == names


def test_the_order_of_cards() -> None:
    """By node and index, or the one asked for; the unknown last."""
    assert [row.where for row in at_work().top(Query(sort="sm")).cards] == [
        "node-1 0",
        "node-2 0",
        "node-2 1",
    ]
    assert [row.where for row in unknown().top(Query(sort="mem")).cards][
        -1
    ] == "node-2 1"
    with_dark_first = node_with(Shown(A, mib=None), Shown(B, 1)).top(Query(sort="mem"))
    assert [row.where for row in with_dark_first.cards] == ["node-2 1", "node-2 0"]


def test_one_namespace() -> None:
    """Its pods alone; the cards stay everybody's."""
    top = elsewhere().top(Query("edge"))
    assert [row.full_name for row in top.pods] == ["edge/spy"]
    assert len(top.cards) == 2


def test_one_node() -> None:
    """Others are not even asked."""
    top = silent().top(only="node-d")
    assert list(top.nodes) == ["node-d"]
    assert top.troubles == ()


def test_containers_of_a_pod_are_added_up() -> None:
    """On one card."""
    uses = (Use("p", 700, 12), Use("p", 50, 0, container="side"))
    row = only_pod(node_with(Shown(A, uses=uses)))
    assert (row.used_mib, row.sm) == (750, 12)
    assert [one.name for one in row.containers] == ["main", "side"]


def test_of_an_unknown_part_the_sum_is_unknown() -> None:
    """It would else be less than what is used."""
    uses = (Use("p", 700, 12), Use("p", None, 3, container="side"))
    row = only_pod(node_with(Shown(A, uses=uses)))
    assert (row.used_mib, row.sm) == (None, 15)


def test_a_container_that_asked_for_nothing() -> None:
    """It uses what others of its pod were allotted."""
    uses = (Use("p", 100), Use("p", 300, container="side", over=True))
    row = only_pod(node_with(Shown(A, uses=uses)))
    assert [flag.words for flag in row.flags] == [
        "container side uses 300 MiB, but requested none"
    ]


def test_one_container_over_while_the_pod_is_not() -> None:
    """Each was allotted its own part."""
    rows = {row.name: row for row in containers().top().pods}
    (first, second) = rows["pair"].flags
    assert first.words == "container web uses 576 MiB more than its share"
    assert second.sign is Sign.LEAVING
    assert rows["alone"].flags == ()


def parted(*shown: Shown, web: str = A, model: str = A) -> list[PodRow]:
    """Pod ``p``, of which ``web`` has 4 units of a card and ``model`` 8."""
    shares = [share(web, 4, container="web"), share(model, 8, container="model")]
    pod = bound_json(placement("p", shares=shares, node="node-2"))
    answers = {"node-2": page(*shown, node="node-2")}
    return list(scene([node_2()], [pod], answers).top().pods)


def test_containers_on_cards_of_their_own() -> None:
    """Each card's row has those that were allotted a part of it."""
    rows = parted(
        Shown(A, uses=(Use("p", 900, container="web"),)),
        Shown(B, 1, uses=(Use("p", 100, container="model"),)),
        model=B,
    )
    named = {row.index: [one.name for one in row.containers] for row in rows}
    assert named == {0: ["web"], 1: ["model"]}
    assert {row.index: row.used_mib for row in rows} == {0: 900, 1: 100}


def test_a_container_that_has_ended_uses_nothing() -> None:
    """Its exporter does not tell of it any more; what the others use is known."""
    shares = [share(A, 4, container="web"), share(A, 8, container="init")]
    amounts = [one for held in shares for one in held.containers]
    both = Share(CardUUID(A), Amount(0, 12), tuple(amounts))
    pod = bound_json(placement("p", shares=[both], node="node-2"))
    shown = Shown(A, uses=(Use("p", 900, 5, container="web"),))
    answers = {"node-2": page(shown, node="node-2")}
    found = scene([node_2()], [pod], answers)
    row = only_pod(found)
    assert (row.used_mib, row.sm) == (900, 5)
    assert {one.name: one.seen is not None for one in row.containers} == {
        "web": True,
        "init": False,
    }
    web, init = top_data(found.top())["pods"][0]["containers"]
    assert (web["over"], init["over"]) == (False, None)


def test_a_pod_over_its_share_by_one_of_its_containers() -> None:
    """That one is named, and it is said once."""
    found = containers()
    uses = (
        Use("pair", 9000, 3, container="web", over=True),
        Use("pair", 900, 30, container="model"),
    )
    body = page(Shown(A, uses=uses), node="node-2")
    rows = Scene(found.seen, {"node-2": body}).top().pods
    (pair,) = (row for row in rows if row.name == "pair")
    assert [flag.words for flag in pair.flags if flag.sign is Sign.OVER] == [
        "container web uses 7.79 GiB more than its share"
    ]


def told(*shown: Shown, says: Says | None = None) -> list[str]:
    """What is said of node-2 with such a page."""
    body = page(*shown, told=says, node="node-2")
    found: Scene = scene([node_2()], [], {"node-2": body})
    troubles = found.top().troubles
    assert {one.about for one in troubles} <= {"node-2"}
    return [one.what for one in troubles]


def test_an_exporter_that_is_well_is_no_trouble() -> None:
    """Nothing is to be looked at."""
    assert told(Shown(A), Shown(B, 1)) == []


def test_nodes_with_the_same_reason_are_named_together() -> None:
    """A cluster without exporters is one thing to look at."""
    (trouble,) = no_exporters().top().troubles
    assert trouble.about == "node-1, node-2"


def test_why_sm_is_unknown() -> None:
    """Where the driver does not tell it of each process."""
    (trouble,) = unknown().top().troubles
    assert trouble.about == "node-2"
    assert trouble.what.endswith("SM use by process on card 0")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({}, "its exporter has read nothing yet"),
        ({"memory": TICK}, "its exporter reads no processes"),
        ({"memory": TICK, "processes": TICK - 61}, "its values of processes are 61s"),
        ({"memory": TICK - 59, "processes": TICK}, ""),
        ({"memory": TICK - 99, "processes": TICK - 99}, "by this computer's clock"),
    ],
)
def test_old_numbers_are_said_to_be_old(times: dict[str, float], words: str) -> None:
    """Against the node's own newest, and against our clock."""
    found = told(Shown(A), says=Says(times=times))
    assert [words in one for one in found] == ([True] if words else [])


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ("cards", "its exporter finds no card, or the driver does not answer"),
        ("pods", "its exporter cannot read the pods of its node"),
        ("processes", "its exporter cannot assign processes to pods"),
        ("tomorrow", "its exporter reports: tomorrow"),
    ],
)
def test_what_the_exporter_misses(about: str, words: str) -> None:
    """In a sentence, where we know the word."""
    assert told(says=Says((about,))) == [words]


def test_cards_that_did_not_answer_it() -> None:
    """Some of its rounds did not come round."""
    assert told(says=Says(failed=("memory", "utilization"))) == [
        "its exporter could not read these groups of every card: memory, utilization"
    ]


@pytest.mark.parametrize(
    ("source", "sm", "mib", "said"),
    [
        ("none", None, 10, 1),
        ("none", None, 0, 0),
        ("none", 5, 10, 0),
        ("card", None, 10, 0),
    ],
)
def test_unknown_sm_is_explained_where_somebody_computes(
    source: str, sm: float | None, mib: float, said: int
) -> None:
    """Not where a card has nobody at work."""
    use = Use("p", mib, sm, allocated=None)
    assert len(told(Shown(A, source=source, uses=(use,)))) == said


def test_what_strangers_compute_is_nobodys_question() -> None:
    """Only pods have a row in which it could stand."""
    assert told(Shown(A, source="none", outside=900)) == []
