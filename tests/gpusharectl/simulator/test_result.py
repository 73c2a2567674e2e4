"""What is reported: the same end under every policy, room for more, links."""

import csv
import io
from dataclasses import replace

import orjson
import pytest

from gpushare.domain.frag.policy import Packer
from gpushare.domain.policies import PolicyChoice
from gpushare.kube.annotations import read_cards
from gpusharectl.simulator.render import (
    draw_report,
    report_csv,
    report_data,
    thin_moments,
)
from gpusharectl.simulator.result import (
    NO_LINKS,
    Linked,
    PolicyRun,
    SimulationReport,
    drop_links,
    has_links,
    make_report,
    measure_links,
    run_policy,
)
from gpusharectl.simulator.scenario import Arrive, Drain, Join, Scenario, ScenarioStep
from tests.gpusharectl.golden import drawn
from tests.gpusharectl.simulator.building import (
    come,
    node,
    outcomes,
    played,
    pod,
    scenario,
    told,
)
from tests.gpusharectl.simulator.building import told as read
from tests.gpusharectl.simulator.test_render import compared, nothing, report, seeds

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


def ran(of: Scenario, *sizes: str, policy: str = "") -> PolicyRun:
    return report(of, *filter(None, [policy]), room=sizes).runs[0]


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


def test_what_was_not_checked_is_said() -> None:
    """What is expected is expected of the scenario's own policy."""
    of = told(DRAINED + "expect: {placed: 9, pods: {a: n-2}}")
    without, beside = report(of, "frag"), report(of, "first-fit", "frag")
    words = "expect is for the policy first-fit, which was not played"
    assert report_data(without)["unchecked"] == words
    shown = drawn(lambda console: draw_report(console, without))
    assert f"Not checked: {words}." in shown
    assert report_data(beside)["unchecked"] is None
    found = [one["as_expected"] for one in report_data(beside)["runs"]]
    assert found == [False, None]
    assert "Not checked" not in drawn(lambda console: draw_report(console, beside))


def test_the_curves_of_all_policies_end_together() -> None:
    """Under spread the whole card is free after an hour: both are shown until then."""
    text = """
nodes: [{name: n, cards: 2x8GiB}]
pods:
- {name: part, count: 2, units: 8, lasts: 1h}
- {name: whole, cores: 100}
"""
    beside = report_data(report(told(text), "first-fit", "spread"))
    ends = [run["curve"][-1] for run in beside["runs"]]
    assert [(end["at_s"], end["held_units"]) for end in ends] == [(3600, 32)] * 2
    assert all(end["fragmented"] is not None for end in ends)
    assert [run["end"]["at_s"] for run in beside["runs"]] == [0, 0]


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


def test_all_of_it_is_json() -> None:
    found = orjson.loads(orjson.dumps(report_data(seeds())))
    assert list(found) == [
        *("v", "scenario", "nodes", "cards", "units", "pods", "runs", "remarks"),
        *("not_played", "unchecked"),
    ]
    assert found["unchecked"] is None
    assert (found["nodes"], found["cards"], found["units"]) == (2, 3, 152)
    (run,) = found["runs"]
    assert run["policy"] == "first-fit"
    assert run["placed"] == run["at_once"] + run["waited"]
    assert run["placed"] + run["refused"] + run["left"] == found["pods"] == 12
    assert run["room"][0]["asks"].startswith("9 units")
    pods = {pod["name"]: pod for pod in run["pods"]}
    assert (pods["small"]["node"], pods["small"]["cards"]) == ("node-1", [0])
    assert pods["two"]["outcome"] == "refused"
    assert sum(pods["two"]["reasons"].values()) == 2
    assert pods["two"]["node"] is None


def lines(of: SimulationReport) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(report_csv(of))))


def test_what_is_not_known_is_null_and_never_0() -> None:
    data = report_data(nothing())
    assert data["runs"][0]["end"]["fragmented"] is None
    assert data["runs"][0]["longest_wait_s"] is None
    assert lines(nothing())[0]["fragmented"] == ""


def test_the_curves_as_lines() -> None:
    """At 14 days a second still counts."""
    found = lines(compared())
    assert {line["policy"] for line in found} == {"first-fit", "best-fit", "spread"}
    last = [line for line in found if line["policy"] == "first-fit"][-1]
    assert (last["held_units"], last["units"]) == ("44", "87")
    told = [float(last[name]) for name in ("arrived_units", "load", "allotted")]
    assert told == pytest.approx([told[1] * 87, told[0] / 87, 44 / 87])
    steps = [ScenarioStep(1_209_601.0, one) for one in come("a")]
    assert lines(report(scenario([node()], *steps)))[-1]["at_s"] == "1209601"


def test_a_long_curve_is_thinned() -> None:
    """The first and the last stay, and those at which fragmentation was looked at."""
    moments = list(played(scenario([node()], *come("a"))).moments)
    many = [replace(moments[0], at_s=number, fragmented=None) for number in range(999)]
    many[500] = replace(many[500], fragmented=0.5)
    found = thin_moments(many, 100)
    assert len(found) <= 102
    assert {0, 500, 998} <= {moment.at_s for moment in found}


PAIRS = """
nodes:
- name: n
  cards: 4x32GiB
  links: [[0, 30, 10, 250], [30, 0, 110, 10], [10, 110, 0, 30], [250, 10, 30, 0]]
pods:
- {name: one, count: 2, cores: 200}
- {name: alone, units: 9}
expect: {placed: 2, refused: 1, pods: {one-1: 'n cards 0, 3'}}
"""


def linked_nodes() -> SimulationReport:
    """Two pods of two cards: linked both, or one of them by chance where order rules.

    Without links they get cards 0 and 1, and the pair 2 and 3.
    """
    text = PAIRS.replace("[30, 0, 110", "[130, 0, 110").replace("[0, 30", "[0, 130")
    of = read(text)
    runs = [
        run_policy(of, PolicyChoice("first-fit"), without=off)
        for off in ((), (NO_LINKS,))
    ]
    return make_report(of, runs)


def test_scores_are_of_all_pairs_of_pods_of_several_cards() -> None:
    of = read(PAIRS)
    assert measure_links(of, played(of).outcomes) == Linked(2, 2, 180.0)
    assert measure_links(of, ()) is None
    apart = scenario([node("n", 29, 29)], *come("a", cores=200))
    assert measure_links(apart, played(apart).outcomes) is None


def test_each_pair_must_have_a_link() -> None:
    """A pod of one card, a share and containers apart have no pairs that count."""
    text = (
        PAIRS.partition("pods:")[0]
        + "pods: [{name: a, cores: 300}, {name: b, units: 9}]"
    )
    of = read(text)
    # Cards 0, 2 and 3, or 0, 1 and 3: 250 + 30 + 10.
    assert measure_links(of, played(of).outcomes) == Linked(1, 0, 290 / 3)
    apart = pod("p", cores=100)
    apart["spec"]["containers"] *= 2
    apart["metadata"]["annotations"]["baidu.com/vcuda-containers"] = "apart"
    apart["spec"]["containers"] = [
        {**one, "name": f"c{i}"} for i, one in enumerate(apart["spec"]["containers"])
    ]
    of = scenario(of.nodes, Arrive(apart))
    assert outcomes(played(of))["p"].cards == (0, 1)
    assert measure_links(of, played(of).outcomes) is None


def test_without_links_the_order_rules_and_the_scores_still_count() -> None:
    """What is expected holds for the scenario as it is."""
    of = read(PAIRS)
    bare = drop_links(of)
    assert (has_links(of), has_links(bare)) == (True, False)
    assert outcomes(played(bare))["one-1"].cards == (0, 1)
    assert measure_links(of, played(bare).outcomes) == Linked(2, 0, 30.0)
    assert run_policy(of, of.choice).checked
    without = run_policy(of, of.choice, without=(NO_LINKS,))
    assert (without.policy, without.checked) == ("first-fit/no-links", False)


def test_added_nodes_count_too() -> None:
    of = read(PAIRS)
    later: Scenario = scenario([], Join(of.nodes[0]), *come("a", cores=200))
    assert measure_links(later, played(later).outcomes) == Linked(1, 1, 250.0)
    bare = drop_links(later)
    assert not has_links(bare)
    assert measure_links(later, played(bare).outcomes) == Linked(1, 0, 30.0)


def test_nodes_without_links_stay_as_they_are() -> None:
    broken = node("b")
    broken["metadata"]["annotations"] = {"baidu.com/vcuda-cards": "{"}
    of = replace(read(PAIRS), nodes=(node("a"), broken))
    assert drop_links(of).nodes == of.nodes
    assert read_cards(drop_links(read(PAIRS)).nodes[0])[0].links == ()


def test_the_report_compares_both() -> None:
    of = linked_nodes()
    found = drawn(lambda console: draw_report(console, of))
    assert "first-fit  first-fit/no-links" in found
    assert [
        line.split()[-2:] for line in found.splitlines() if "pair score" in line
    ] == [["180", "80"]]
    both = [one["links"] for one in report_data(of)["runs"]]
    assert both[0] == {"pods": 2, "nvlinked": 2, "pair_score": 180.0}
    assert both[1] == {"pods": 2, "nvlinked": 1, "pair_score": 80.0}
