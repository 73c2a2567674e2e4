"""Lists of pods that are made from the public one."""

from bench.packing.trace import MADE, Trace
from tests.bench.packing.building import node, pod

NODES = (*(node(cards=8, model="G2") for _ in range(9)), node(model="V100M16"))
PODS = tuple(
    [pod(f"c{n:03}", 1000) for n in range(300)]
    + [pod(f"e{n:03}", 1000, cards=8) for n in range(60)]
    + [pod(f"z{n:03}") for n in range(40)]
)
TRACE = Trace((*NODES, node(model="V100M32")), PODS)


def test_a_third_of_the_pods_with_cards_name_models_that_can_hold_them() -> None:
    v100 = frozenset({"V100M16", "V100M32"})
    shares = {}
    for name in ("models33", "scarce33"):
        pods = list(MADE[name](TRACE))
        assert [one.name for one in pods] == [one.name for one in PODS]
        named = [one for one in pods if one.models is not None]
        assert 100 <= len(named) <= 140
        assert {one.models for one in named if one.cards == 8} == {frozenset({"G2"})}
        assert {one.models for one in named} == {frozenset({"G2"}), v100}
        assert not any(one.models for one in pods if not one.cards)
        assert pods == list(MADE[name](TRACE))
        shares[name] = sum(one.models == v100 for one in named) / len(named)
    assert shares["models33"] < 0.1
    assert 0.25 < shares["scarce33"] < 0.55


def test_pods_without_cards_come_more_often() -> None:
    pods = list(MADE["cpu250"](TRACE))
    assert len({one.name for one in pods}) == len(pods)
    assert sum(not one.cards for one in pods) == 100
    assert sum(one.cards > 0 for one in pods) == 360
