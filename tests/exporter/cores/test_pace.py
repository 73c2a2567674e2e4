"""The law of delays, on a simulated card whose time is sliced; on no real one."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cores.pace import (
    LONGEST_US,
    Pace,
    cap_of,
    fade,
    measured_paces,
    next_pace,
)
from exporter.usage import ContainerUse, Usage
from gpushare.domain.model import Amount, CardUUID
from tests.exporter.cores.simulated_card import MS, Program, SimulatedCard
from tests.exporter.exporter_data import AT, A

Programs = list[tuple[str, Program]]
CORES = {"a": 30, "b": 70}


def lengths(least_us: float, most_us: float) -> Callable[[random.Random], float]:
    """Kernels of any length between, each order of magnitude as often."""
    low, high = math.log(least_us), math.log(most_us)
    return lambda source: math.exp(source.uniform(low, high))


ANY, SHORT = lengths(10, 200 * MS), lengths(10, 20 * MS)
CARDS: Mapping[str, Programs] = {
    "synchronous": [("a", Program(ANY)), ("b", Program(ANY))],
    "queued": [("a", Program(ANY, queued=64)), ("b", Program(ANY, queued=64))],
    "threads": [
        ("a", Program(SHORT, threads=4)),
        ("b", Program(SHORT, threads=4, queued=4)),
    ],
    "threads that wait each by itself": [
        ("a", Program(SHORT, threads=4, in_turn=False)),
        ("b", Program(SHORT, threads=4, in_turn=False, queued=4)),
    ],
    "processes": [
        ("a", Program(SHORT, queued=8)),
        ("a", Program(SHORT)),
        ("b", Program(SHORT)),
        ("b", Program(SHORT, queued=8)),
    ],
    "graphs": [
        ("a", Program(SHORT, kernels=8)),
        ("b", Program(SHORT, kernels=8, queued=4)),
    ],
    "graphs beside small kernels": [
        ("a", Program(SHORT, kernels=8)),
        ("b", Program(lengths(100, 1 * MS), queued=100)),
    ],
    "small kernels beside long ones": [
        ("a", Program(lengths(20, 100), queued=1000)),
        ("b", Program(lengths(5 * MS, 50 * MS), queued=10)),
    ],
}


@pytest.mark.parametrize("sample_s", [1 / 6, 1.0])
@pytest.mark.parametrize("programs", CARDS.values(), ids=CARDS)
def test_shares_meet_the_cores(programs: Programs, sample_s: float) -> None:
    """Within 3 points, for each way to launch; without delays each has one half."""
    card = SimulatedCard(CORES, programs, sample_s=sample_s)
    card.run(50)
    shares = card.run(60)
    assert shares == pytest.approx(CORES, abs=3)
    unpaced = SimulatedCard(CORES, programs, sample_s=sample_s, paced=False)
    assert unpaced.run(30) == pytest.approx({"a": 50, "b": 50}, abs=3)


def test_cores_are_a_cap_only_while_others_work() -> None:
    """One that comes and goes finds its part each time, the second time soon."""
    guests = [Program(SHORT, from_s=20 + at, to_s=80 + at) for at in (0, 100)]
    card = SimulatedCard(
        CORES, [("a", Program(SHORT)), *(("b", guest) for guest in guests)]
    )
    assert card.run(20)["a"] > 99
    card.run(35)
    assert card.run(25) == pytest.approx(CORES, abs=4)
    card.run(5)
    assert card.run(35)["a"] > 99
    card.run(5)
    assert card.run(20) == pytest.approx(CORES, abs=6)


def test_after_an_idle_time_nothing_is_owed() -> None:
    """Neither a credit nor a debt: it is held to its cores as before."""
    works = [Program(SHORT), Program(SHORT, from_s=300)]
    works[0] = replace(works[0], to_s=60)
    card = SimulatedCard(CORES, [*(("a", one) for one in works), ("b", Program(SHORT))])
    card.run(60)
    card.run(5)
    assert card.run(235)["b"] > 99
    assert card.written["a"] == 0
    assert card.run(5)["a"] > 25
    card.run(20)
    assert card.run(60) == pytest.approx(CORES, abs=3)


def test_who_has_few_cores_or_none_has_the_floor() -> None:
    card = SimulatedCard(
        {"a": 1, "b": 0, "c": 80}, [(name, Program(SHORT)) for name in "abc"]
    )
    card.run(60)
    shares = card.run(60)
    assert shares == pytest.approx({"a": 10, "b": 10, "c": 80}, abs=3)


def used(name: str, cores: int, sm: float | None, card: str = A) -> ContainerUse:
    amount = Amount(cores, 8)
    names = ("default", name, f"uid-{name}", "main")
    return ContainerUse(CardUUID(card), *names, amount, sm=sm)


@pytest.mark.parametrize(
    ("use", "cap"),
    [
        (used("a", 30, 50), 30),
        (used("a", 1, 50), 10),
        (used("a", 0, 50), 10),
        (used("a", 99, 50), 99),
        (used("a", 100, 50), None),
        (replace(used("a", 50, 50), exclusive=True), None),
        (replace(used("a", 50, 50), allotted=None), None),
    ],
)
def test_whose_cores_are_a_cap(use: ContainerUse, cap: float | None) -> None:
    """A whole card's are none, nor those of a container without a share."""
    assert cap_of(use) == cap
    neighbour = replace(used("n", 30, 90), last_busy=AT)
    usage = Usage((replace(use, last_busy=AT), neighbour), at=AT)
    assert (use.key in measured_paces({}, usage)) == (cap is not None)


@pytest.mark.parametrize(
    "neighbour",
    [
        used("n", 70, 90, "GPU-other"),
        replace(used("n", 70, 0), last_busy=AT - 4),
        replace(used("n", 70, 0), last_busy=AT + 3600),
        replace(used("n", 70, None), last_busy=AT),
        replace(used("n", 70, 0), last_busy=None),
    ],
    ids=["on another card", "idle", "the clock went back", "unknown", "never seen"],
)
def test_beside_nobody_nothing_waits(neighbour: ContainerUse) -> None:
    """The delay of before comes back as soon as somebody works.

    Though the first measurement is of the time alone.
    """
    alone, key = used("a", 30, 100), used("a", 30, 100).key
    before = {key: Pace(500.0, 500.0, 40.0)}
    paces = measured_paces(before, Usage((alone, neighbour), at=AT))
    assert paces[key].delay_us == 0
    busy = replace(used("n", 70, 0), last_busy=AT - 2)
    again = measured_paces(paces, Usage((used("a", 30, 100), busy), at=AT))
    assert again[key].delay_us == pytest.approx(500, rel=0.05)


def test_what_is_not_known_delays_nothing_within_a_second() -> None:
    """It comes back with the next measurement."""
    pace = Pace(LONGEST_US, LONGEST_US, 90.0)
    for _ in range(10):
        pace = fade(pace)
    assert pace == Pace(0, LONGEST_US)
    again = next_pace(pace, 30, 30, others_work=True)
    assert again.delay_us == pytest.approx(LONGEST_US, rel=0.05)
    blind = {used("a", 30, None).key: Pace(7.0, 7.0, 50.0)}
    usage = Usage((used("a", 30, None),), at=AT)
    (kept,) = measured_paces(blind, usage).values()
    assert (kept.delay_us, kept.share) == (7.0, None)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=400))
def test_no_history_is_held_against_anybody(
    history: list[tuple[float, bool]],
) -> None:
    """The delay stays in its bounds, and ends within 30 s of idling, whatever was."""
    pace = Pace()
    for share, others in history:
        pace = next_pace(pace, share, 30, others_work=others)
        assert 0 <= pace.delay_us <= LONGEST_US
    for _ in range(60):
        pace = next_pace(pace, 0, 30, others_work=True)
    assert pace.delay_us == 0
