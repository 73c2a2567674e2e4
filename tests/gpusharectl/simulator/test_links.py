"""What links between cards are worth in a run, and the same run without them."""

from dataclasses import replace

from gpushare.domain.policies import PolicyChoice
from gpushare.kube import codec
from gpusharectl.simulator.render import draw_report, report_data
from gpusharectl.simulator.result import (
    NO_LINKS,
    Linked,
    SimulationReport,
    drop_links,
    has_links,
    make_report,
    measure_links,
    run_policy,
)
from gpusharectl.simulator.scenario import Arrive, Join, Scenario
from tests.gpusharectl.golden import drawn
from tests.gpusharectl.simulator.building import (
    come,
    node,
    outcomes,
    played,
    pod,
    scenario,
)
from tests.gpusharectl.simulator.building import told as read

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
    assert codec.read_cards(drop_links(read(PAIRS)).nodes[0])[0].links == ()


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
