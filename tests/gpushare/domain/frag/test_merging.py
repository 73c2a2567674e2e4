"""Many kinds of pods become few."""

from random import Random

from gpushare.domain.frag.learner import SETS_AT_MOST, learn, merged
from gpushare.domain.frag.shapes import Pool
from tests.gpushare.domain.frag.invented import no_card, share, whole


def test_few_kinds_stay_as_they_are() -> None:
    seen = {share(333, 1001, 4097): 2, whole(2): 1, no_card(5): 0}
    assert merged(seen) == {share(333, 1001, 4097): 2, whole(2): 1}


def test_sizes_are_rounded_up_before_any_is_left_out() -> None:
    seen = {share(331, 1001, 4097): 2, share(333, 1002, 5000): 3, no_card(9): 1}
    assert merged(seen, most=2) == {share(340, 1024, 5120): 5, no_card(10): 1}


def test_those_of_least_demand_are_left_out() -> None:
    seen = {share(900): 2, share(100): 3, whole(8): 1, no_card(7): 50}
    assert set(merged(seen, most=2)) == {whole(8), share(900)}


def test_rare_sets_of_models_count_as_any() -> None:
    seen = {share(500, 0, 0, f"m{n:03}"): 1000 - n for n in range(SETS_AT_MOST + 9)}
    kinds = merged(seen)
    assert kinds[share(500)] == sum(1000 - n for n in range(SETS_AT_MOST, len(seen)))
    assert len(kinds) == SETS_AT_MOST + 1


def test_thousands_of_kinds_are_learnt_from() -> None:
    """In the same way, whatever came first."""
    draw = Random(3)
    sizes = (120, 251, 333, 507, 790)
    seen = {
        share(draw.choice(sizes), number, draw.randrange(10**6)): draw.randrange(1, 9)
        for number in range(2400)
    }
    kinds = merged(seen)
    assert sum(kinds.values()) == sum(seen.values())
    assert len(kinds) <= 2000
    pool = Pool(8, 64_000, 65_536, {"": 8000}, {8: 1})
    assert learn(seen, pool) == learn(dict(reversed(seen.items())), pool)
