"""The end of a scenario: the same moment under every policy, and what is told of it."""

import pytest

from gpushare.domain.frag.policy import Packer
from gpushare.domain.policies import Choice
from gpusharectl.simulate.render import draw_report
from gpusharectl.simulate.result import Report, Run, read_size, reported, run
from gpusharectl.simulate.scenario import Drain, Scenario
from gpusharectl.simulate.serialize import report_data
from tests.gpusharectl.golden import drawn
from tests.gpusharectl.simulate.building import come, node, outcomes, scenario, told

TWO_ENDS = """
nodes: [{name: n, cards: 2x16GiB}]
pods:
- {name: a, units: 22, lasts: 1h}
- {name: b, units: 22, at: 1m, lasts: 1h}
- {name: c, units: 10, count: 2, at: 2m}
- {name: d, units: 64, at: 3m}
"""
DRAINED = """
nodes: [{name: n, count: 2, cards: 2x16GiB}]
pods: [{name: a, units: 10}]
events: [{at: 1m, drain: n-2}]
"""


def ran(of: Scenario, *sizes: str, policy: str = "") -> Run:
    choice = Choice(policy or of.choice.default)
    return run(of, choice, [read_size(size) for size in sizes])


@pytest.mark.parametrize("policy", ["first-fit", "spread", "frag"])
def test_the_end_is_the_last_step(policy: str) -> None:
    """Pods that wait by then change nothing of the figures."""
    found = ran(told(TWO_ENDS), "2", policy=policy)
    assert found.played.end.at_s == 180
    assert found.played.end.held_units == 64 + (64 if policy != "spread" else 0)
    assert found.played.end.waiting == (policy == "spread")
    assert found.played.untouched == 0
    assert found.rooms[0].number == (32 if policy == "spread" else 0)


def test_who_waits_at_the_end_is_placed_after_it() -> None:
    """The curve goes on, and fragmentation is looked at where it ends."""
    text = TWO_ENDS + "- {name: e, units: 44, at: 3m}\n"
    found = ran(told(text), policy="spread")
    assert outcomes(found.played)["e"].placed_s == 3600
    assert (found.played.end.at_s, found.placed) == (180, 5)
    last = found.played.moments[-1]
    assert last.at_s == 3660
    assert last.fragmented is not None


def test_counting_room_changes_nothing() -> None:
    """Nobody learns of the pods that are counted with, or places others otherwise."""
    text = TWO_ENDS + "- {name: e, count: 9, units: 30, at: 3m, lasts: 1m}\n"
    plain = ran(told(text), policy="frag")
    counted = ran(told(text), "2", "cards=1", policy="frag")
    assert plain.played.outcomes == counted.played.outcomes
    assert plain.played.moments == counted.played.moments
    learnt_by = counted.played.cluster.choice.packer
    assert isinstance(learnt_by, Packer)
    assert learnt_by.seen == plain.pods


def test_a_drained_node_has_no_untouched_cards() -> None:
    """As there is no room for more on it; its units still count, all as fragmented."""
    found = ran(told(DRAINED), "cards=1")
    assert (found.played.untouched, found.rooms[0].number) == (1, 1)
    assert found.played.end.units == 256
    assert found.played.end.fragmented == pytest.approx(128 / 246)
    steps = [*come("a"), Drain("node-1", gone=True)]
    assert ran(scenario([node(), node("b")], *steps)).played.untouched == 0


def test_kinds_of_pods_are_described_differently() -> None:
    """Those that are not placed, and the sizes of ``--room``."""
    text = """
nodes: [{name: n, cards: 1x16GiB}]
pods:
- {name: t, units: 9, node_selector: {zone: east, disk: ssd}}
- {name: u, units: 9, models: [A10]}
"""
    sizes = ("9", "units=9,model=T4", "units=9,policy=spread")
    found = ran(told(text), *sizes)
    asked = "9 units (2.25 GiB) and 1 core"
    assert [one.asks for one in (*found.not_placed, *found.rooms)] == [
        f"{asked}, of the model a10",
        f"{asked}, on nodes with disk=ssd and zone=east",
        asked,
        f"{asked}, of the model t4",
        f"{asked}, by the policy spread",
    ]


def report(*policies: str) -> Report:
    of = told(DRAINED + "expect: {placed: 9, pods: {a: n-2}}")
    return reported(of, [ran(of, policy=policy) for policy in policies])


def test_what_was_not_checked_is_said() -> None:
    """What is expected is expected of the scenario's own policy."""
    without, beside = report("frag"), report("first-fit", "frag")
    words = "expect is for the policy first-fit, which was not played"
    assert report_data(without)["unchecked"] == words
    shown = drawn(lambda console: draw_report(console, without))
    assert f"Not checked: {words}." in shown
    assert report_data(beside)["unchecked"] is None
    assert [bool(one.wrong) for one in beside.runs] == [True, False]
    assert "Not checked" not in drawn(lambda console: draw_report(console, beside))


def test_of_two_pods_with_one_name_the_right_one_is_checked() -> None:
    text = """
nodes: [{name: n, cards: 1x16GiB}]
pods:
- {name: a, namespace: x, units: 64}
- {name: a, namespace: y, units: 64}
- {name: only, namespace: y, units: 64}
expect: {pods: {x/a: n card 0, y/a: nowhere, only: n}}
"""
    (wrong,) = ran(told(text)).wrong
    assert wrong == "y/only: nowhere; expected: n"
