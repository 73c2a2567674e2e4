"""What is left of a node while one pod is placed, and who has what of whole cards."""

import pytest

from gpushare.domain.carving import Room, whole_shares
from gpushare.domain.model import Amount, Claim, ContainerAmount
from gpushare.domain.policies import Policy
from tests.builders import (
    BEST_FIT,
    FIRST_FIT,
    SPREAD,
    card,
    cards,
    claim,
    node,
    placement,
)


def whole(
    *containers: tuple[str, int, int], passing: tuple[str, ...] = (), cores: int = 0
) -> Claim:
    """A claim of whole cards by containers of (name, cores, units)."""
    held = tuple(ContainerAmount(n, Amount(c, u)) for n, c, u in containers)
    total = Amount(cores or sum(c for _, c, _ in containers))
    return Claim(total, held, frozenset(passing))


def carved(asked: Claim, *units: int) -> dict[str, dict[str, tuple[int, int]]]:
    """What each container has of each card, as (cores, units)."""
    return {
        one.card: {
            held.name: (held.amount.cores, held.amount.units) for held in one.containers
        }
        for one in whole_shares(asked, cards(*units))
    }


@pytest.mark.parametrize(
    ("asked", "units", "held"),
    [
        (
            whole(("a", 200, 40)),
            (29, 29),
            {"GPU-0": {"a": (100, 29)}, "GPU-1": {"a": (100, 11)}},
        ),
        (
            whole(("a", 100, 5), ("b", 100, 5)),
            (29, 29),
            {"GPU-0": {"a": (100, 5)}, "GPU-1": {"b": (100, 5)}},
        ),
        (
            whole(("a", 50, 5), ("b", 150, 30)),
            (29, 29),
            {"GPU-0": {"a": (50, 5), "b": (50, 24)}, "GPU-1": {"b": (100, 6)}},
        ),
        (
            whole(("a", 100, 40), ("b", 100, 0)),
            (29, 29),
            {"GPU-0": {"a": (100, 29)}, "GPU-1": {"a": (0, 11), "b": (100, 0)}},
        ),
        (
            whole(("i", 100, 29), ("a", 100, 29), passing=("i",), cores=100),
            (29,),
            {"GPU-0": {"i": (100, 29), "a": (100, 29)}},
        ),
        (
            whole(("m", 0, 7), ("a", 100, 5)),
            (29,),
            {"GPU-0": {"m": (0, 7), "a": (100, 5)}},
        ),
    ],
    ids=[
        "one container on both",
        "one each",
        "a card divided",
        "units beyond its own card",
        "init gives back",
        "memory alone beside",
    ],
)
def test_containers_share_out_whole_cards(
    asked: Claim, units: tuple[int, ...], held: dict[str, dict[str, tuple[int, int]]]
) -> None:
    """Cores in kubelet's order of admission, units from the container's own cards."""
    assert carved(asked, *units) == held


def test_whole_cards_are_charged_in_full() -> None:
    """Whatever the containers ask of them."""
    shares = whole_shares(whole(("a", 200, 1)), cards(29, 16))
    assert [one.amount for one in shares] == [Amount(100, 29), Amount(100, 16)]


def test_room_counts_healthy_cards_only() -> None:
    """A sick card is no choice for anybody."""
    page = node(card(0, healthy=False), card(1))
    room = Room.of(page, FIRST_FIT)
    assert [c[0].uuid for c in room.choices(claim(1))] == ["GPU-1"]
    assert [c[0].uuid for c in room.choices(claim(0, 100))] == ["GPU-1"]


@pytest.mark.parametrize(
    ("chosen", "order"),
    [(FIRST_FIT, [0, 1, 2]), (BEST_FIT, [1, 0, 2]), (SPREAD, [2, 0, 1])],
    ids=lambda value: getattr(value, "name", ""),
)
def test_choices_come_best_first(chosen: Policy, order: list[int]) -> None:
    """Every card with room, in the policy's order."""
    page = node(
        *cards(29, 29, 29, 3), holds=[placement("a", 0, 9), placement("b", 1, 20)]
    )
    found = Room.of(page, chosen).choices(claim(5))
    assert [choice[0].index for choice in found] == order


def test_whole_cards_have_one_choice() -> None:
    """The largest untouched; among equals by the policy's order."""
    page = node(*cards(16, 94, 94, 29), holds=[placement("a", 3, 1)])
    room = Room.of(page, FIRST_FIT)
    found = room.choices(claim(0, 200))
    assert [[one.index for one in choice] for choice in found] == [[1, 2]]
    assert room.choices(claim(189, 200)) == []
    assert room.choices(claim(0, 400)) == []


def test_twins_are_one_distinct_choice() -> None:
    """Cards of equal room differ only in name, unless one of them is untouched."""
    page = node(*cards(29, 29, 20, 20), holds=[placement("a", 0, 9)])
    found = Room.of(page, FIRST_FIT).distinct_choices(claim(5))
    assert [choice[0].index for choice in found] == [0, 1, 2]


def test_what_is_taken_is_gone_until_undone() -> None:
    """Free room, untouched cards and the summary follow."""
    room = Room.of(node(*cards(29, 29)), FIRST_FIT)
    mark, before = room.mark(), room.summary()
    room.take(claim(20), room.choices(claim(20))[0])
    assert room.summary().untouched == (29,)
    assert room.choices(claim(20))[0][0].index == 1
    room.undo(mark)
    assert room.summary() == before
