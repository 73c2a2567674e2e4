"""What a request of a new shape costs: anybody who may make pods may make up shapes."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from gpushare.domain.cache import Fitting
from gpushare.domain.card_selector import CardSelector
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.request import MOST_APART
from tests.builders import FIRST_FIT, apart, card, placement, request, share
from tests.work import work

NODES = 100
CARDS = 8
UNITS = 94


def busy() -> Ledger:
    """Nodes of which no two have the same left."""
    random = Random(7)
    ledger = Ledger()
    for number in range(NODES):
        name = f"node-{number:03d}"
        ledger.set_cards(
            NodeName(name),
            [
                card(i, UNITS, uuid=f"GPU-{number:08x}-{i:04x}", model=f"A{i % 2}")
                for i in range(CARDS)
            ],
        )
        held = [
            share(
                f"GPU-{number:08x}-{i:04x}",
                random.randint(5, 40),
                random.randint(5, 30),
            )
            for i in range(CARDS)
        ]
        ledger.record(placement(f"held-{name}", node=name, shares=held))
    return ledger


@pytest.fixture(scope="module")
def asking() -> Callable[[PodRequest], float]:
    """The work of a new shape, in that of a new shape that fits everywhere."""
    fitting = Fitting(busy())
    fitting.answer(request(units=3), FIRST_FIT)  # Each node sums itself up once.

    def cost(asked: PodRequest) -> int:
        return work(lambda: fitting.answer(asked, FIRST_FIT))

    fits = cost(request(units=4))

    def ratio(asked: PodRequest) -> float:
        return cost(asked) / fits

    return ratio


def limited(**lists: list[str]) -> PodRequest:
    return replace(request(units=5), cards=CardSelector.of(**lists))


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        pytest.param(request(units=5), 1.1, id="fits"),
        pytest.param(request(units=1000), 1.3, id="too large"),
        pytest.param(request(cores=800), 1.3, id="whole cards"),
        pytest.param(
            limited(uuids=[f"GPU-{n:08x}" for n in range(90, 122)]), 6, id="32 uuids"
        ),
        pytest.param(limited(uuids=["!GPU-00000001"]), 6, id="not a uuid"),
        pytest.param(limited(models=["T4", "*b*", "A9*"]), 4, id="models"),
        pytest.param(limited(models=["!A1"]), 6, id="not a model"),
        pytest.param(apart("p", *[2] * MOST_APART), 7, id="apart on one card"),
        pytest.param(apart("p", *[200] * MOST_APART), 1.4, id="apart too large"),
        pytest.param(apart("p", *[60] * MOST_APART), 15, id="apart too many"),
        pytest.param(apart("p", *range(20, 20 + MOST_APART)), 30, id="apart"),
        pytest.param(apart("p", *range(35, 35 + 12)), 60, id="apart and hopeless"),
    ],
)
def test_what_a_new_shape_costs(
    asking: Callable[[PodRequest], float], asked: PodRequest, most: float
) -> None:
    """Refusals cost what a fit costs, and nothing costs hundreds of times as much."""
    assert asking(asked) <= most
