"""How long filter may wait for news before it refuses a pod everywhere."""

from threading import Timer

import pytest

from extender.scheduling.service import Patience
from gpushare.domain.model import NodeName, PodUID
from tests.builders import card, placement
from tests.extender.stand_ins import Clock, House, asked


def test_a_call_may_wait_while_there_is_budget() -> None:
    """A second is saved up for bursts."""
    patience = Patience(0.4, clock=Clock())
    assert patience.allowed_s("a") == 0.4
    patience.spend("a", 0.4)
    patience.spend("b", 0.4)
    assert patience.allowed_s("c") == 0.0


@pytest.mark.parametrize(("passed_s", "allowed_s"), [(0.9, 0.0), (2.1, 0.4)])
def test_the_budget_fills_with_a_fifth_of_the_time(
    passed_s: float, allowed_s: float
) -> None:
    """So that the scheduler loses no more than that."""
    clock = Clock()
    patience = Patience(0.4, clock=clock)
    patience.spend("a", 1.0)
    clock.now += passed_s
    assert patience.allowed_s("b") == allowed_s


def test_the_budget_is_never_more_than_is_saved() -> None:
    """After an hour without refusals too."""
    clock = Clock()
    patience = Patience(0.4, clock=clock)
    clock.now += 3600
    assert patience.allowed_s("a") == 0.4
    patience.spend("a", 0.7)
    assert patience.allowed_s("b") == 0.0


def waits(patience: Patience, namespace: str, clock: Clock, most: int) -> int:
    """How many pods of a namespace, refused one after another, may wait."""
    found = 0
    for _ in range(most):
        waited_s = patience.allowed_s(namespace)
        found += waited_s > 0
        patience.spend(namespace, waited_s)
        clock.now += waited_s
    return found


def test_refused_pods_of_one_namespace_do_not_take_the_time_of_all() -> None:
    """3,000 pods that fit nowhere leave a quarter of what is saved up.

    So the pods of another namespace still wait for the news that may help them.
    """
    clock = Clock()
    patience = Patience(0.02, clock=clock)
    assert waits(patience, "crowd", clock, 3000) <= 45
    assert waits(patience, "victim", clock, 5) == 5


def test_a_namespace_earns_three_quarters_of_what_all_earn() -> None:
    """15 % of the time: 300 ms in two seconds, and what is earned in these."""
    clock = Clock()
    patience = Patience(0.02, clock=clock)
    waits(patience, "crowd", clock, 3000)
    clock.now += 2.0
    assert waits(patience, "crowd", clock, 3000) == pytest.approx(17, abs=1)


def test_a_thousand_namespaces_are_no_more_than_all() -> None:
    """The bound for all together holds, and whoever is done with is forgotten."""
    clock = Clock()
    patience = Patience(0.02, clock=clock)
    total = sum(waits(patience, f"n{n}", clock, 3) for n in range(5000))
    assert 50 <= total <= 64


def test_no_wait_at_all_can_be_asked_for() -> None:
    """GPUSHARE_WAIT_FOR_NEWS_S=0."""
    assert Patience(0.0).allowed_s("a") == 0.0


def test_room_that_comes_while_filter_waits_is_taken() -> None:
    """kube-scheduler heard of the other pod's end a moment before us."""
    house = House(wait_for_news_s=20.0)
    house.ledger.record(placement("old", 0, 20))
    news = Timer(0.05, house.ledger.release, [PodUID("uid-old")])
    news.start()
    result = house.verbs.filter(asked(house.create("new", units=20), "n"))
    news.join()
    assert result.kept == ["n"]


def test_news_that_does_not_help_ends_no_wait() -> None:
    """Filter goes on waiting, and answers no when the time is over."""
    house = House(wait_for_news_s=0.1)
    house.ledger.record(placement("old", 0, 20))
    news = Timer(0.02, house.ledger.set_cards, [NodeName("m"), [card(units=4)]])
    news.start()
    result = house.verbs.filter(asked(house.create("new", units=20), "n"))
    news.join()
    assert list(result.kept) == []


def test_a_pod_that_fits_does_not_wait() -> None:
    """Nor does one that no node can ever take: the budget is whole afterwards."""
    house = House(wait_for_news_s=5.0)
    fits = house.verbs.filter(asked(house.create("a", units=4), "n"))
    never = house.verbs.filter(asked(house.create("b", cores=150), "n"))
    assert (list(fits.kept), list(never.kept)) == (["n"], [])
    assert house.verbs.patience.allowed_s("default") == 5.0
