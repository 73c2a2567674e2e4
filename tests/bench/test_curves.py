"""Pictures of scenarios and of the trace, the same bytes for the same run."""

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from bench.curves import curves, draw_scenario, nvlinked_over, replay_list
from bench.packing.trace import read_trace
from gpushare.domain.policies import PolicyChoice
from gpusharectl.simulator.engine import UNUSABLE
from gpusharectl.simulator.result import SimulationReport
from tests.bench.packing.building import CASES
from tests.gpusharectl.simulator.building import told
from tests.gpusharectl.simulator.test_engine import with_and_without_moves
from tests.gpusharectl.simulator.test_render import (
    SEEDS,
    compared,
    nothing,
    report,
    seeds,
)
from tests.gpusharectl.simulator.test_result import linked_nodes


def lines(of: SimulationReport) -> list[Any]:
    """The lines of all panels."""
    return [line for axes in draw_scenario(of).axes for line in axes.lines]


def draw(what: Path | str, picture: Path, *words: str) -> tuple[str, str]:
    where = ["--trace-dir", str(CASES), "--compare", "first-fit,spread"]
    ran = CliRunner().invoke(curves, [str(what), str(picture), *where, *words])
    return ran.stdout, ran.stderr


def test_the_same_scenario_gives_the_same_file(tmp_path: Path) -> None:
    """Over time where there is some."""
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SEEDS)
    first, second = tmp_path / "1.svg", tmp_path / "2.svg"
    draw(scenario, first)
    draw(scenario, second)
    assert first.read_bytes() == second.read_bytes()
    assert "<!-- time, hours -->" in first.read_text()


def test_a_list_of_the_trace_has_the_papers_figures(tmp_path: Path) -> None:
    """And a curve for each policy."""
    printed, _ = draw("small", tmp_path / "a.svg", "--seed", "3")
    meters = [
        replay_list(read_trace(CASES, "small"), "small", 3, PolicyChoice(policy))
        for policy in ("first-fit", "spread")
    ]
    assert [line.split(":")[0] for line in printed.splitlines()] == [
        f"small, {policy}, at load 100 and 130 %" for policy in ("first-fit", "spread")
    ]
    assert all(meter.placed for meter in meters)
    assert all(share <= 100 for meter in meters for _, share in meter.curve())
    assert "openb, small" in (tmp_path / "a.svg").read_text()


def test_complaints(tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("nodes: 3")
    assert "must end in .svg" in draw("small", tmp_path / "a.gif")[1]
    assert 'no pod list "large"; here are bare, small' in draw("large", picture)[1]
    assert "wrong.yaml:1: nodes" in draw(wrong, picture)[1]
    assert not picture.exists()


def test_over_time_a_share_stays_until_it_changes() -> None:
    """Steps over time; over the load each moment is an arrival, so lines will do."""
    over_time, over_load = lines(seeds()), lines(compared())
    assert {line.get_drawstyle() for line in over_time} == {"steps-post"}
    assert {line.get_drawstyle() for line in over_load} == {"default"}
    assert (
        draw_scenario(seeds())
        .axes[0]
        .get_title()
        .startswith("seed 001: 2 nodes, 3 cards")
    )
    assert draw_scenario(nothing()).axes[0].get_title() == "a scenario: 1 node, 1 card"


def test_the_legend_hides_no_curve() -> None:
    """It stands beside the panels, for one low curve may be anywhere in them."""
    figure = draw_scenario(compared())
    assert [axes.get_legend() for axes in figure.axes] == [None, None]
    assert figure.axes[1].get_xlabel() == "requested so far, % of the cards' memory"
    assert " ".join(figure.axes[1].get_ylabel().split()) == f"{UNUSABLE}, %"
    (legend,) = figure.legends
    told = [text.get_text() for text in legend.get_texts()]
    assert told == ["first-fit", "best-fit", "spread"]
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)


def test_links_have_a_panel_where_they_are_known() -> None:
    """The share of the running pods that have NVLink between all their cards."""
    assert len(draw_scenario(seeds()).axes) == 2
    (*_, axes) = draw_scenario(linked_nodes()).axes
    used, unused = (list(line.get_ydata()) for line in axes.lines)
    assert [used[-1], unused[-1]] == [100.0, 50.0]


def test_moves_have_a_panel_of_the_pods_that_wait() -> None:
    (*others, axes) = draw_scenario(with_and_without_moves()).axes
    assert len(others) == 2
    assert axes.get_ylabel() == "pods that wait"
    made, none = (list(line.get_ydata()) for line in axes.lines)
    assert [made[-1], none[-1]] == [0, 1]


def test_only_running_pods_have_links() -> None:
    """A share is not known while no pod of several cards runs."""
    text = """
nodes: [{name: n, cards: 4x32GiB, links: nvlink-bridges}]
pods:
- {name: alone, cores: 100, lasts: 5h}
- {name: two, cores: 200, at: 1h, lasts: 2h}
- {name: three, cores: 300, at: 4h, lasts: 1h}
"""
    of = report(told(text))
    seconds = [3600.0 * hour for hour in (0, 1, 2.9, 3, 4)]
    shares = nvlinked_over(of, of.runs[0], seconds)
    assert shares == [None, 1.0, 1.0, None, 0.0]
