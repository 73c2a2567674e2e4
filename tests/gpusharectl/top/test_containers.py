"""Pods of several containers: what each was allotted, and what each uses."""

from gpushare.domain.model import Amount, CardUUID, Share
from gpusharectl.top.rows import PodRow, Sign
from gpusharectl.top.serialize import top_data
from tests.builders import bound_json, placement, share
from tests.gpusharectl.pages import Shown, Use, page
from tests.gpusharectl.scenes import A, B, node_2
from tests.gpusharectl.top.test_rows import node_with, only_pod
from tests.gpusharectl.topscenes import Scene, containers, scene


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
        "container side uses 300 MiB, and asked for none"
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
    assert {one.name: one.seen for one in row.containers} == {
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
