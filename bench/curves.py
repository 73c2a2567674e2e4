"""``python -m bench curves``: what policies give over time or load, as a picture.

Either for a scenario of ``gpusharectl simulate``, or for a list of the public trace,
which is replayed by the extender's own policies. ``docs/policies.md`` has the pictures.
"""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from matplotlib.figure import Figure

from bench.packing.trace import (
    FOLDER_VARIABLE,
    SEEDS,
    TRACE_FOLDER,
    Meter,
    Trace,
    TraceError,
    read_trace,
    trace_scenario,
)
from bench.report.plots import COLOURS
from gpushare.domain.links import NVLINK
from gpushare.domain.policies import POLICIES, PolicyChoice
from gpushare.kube import words
from gpushare.yaml_file import YamlError
from gpusharectl.simulator.command import parse_option, read_variants
from gpusharectl.simulator.engine import UNUSABLE, Moment, OutcomeKind, play
from gpusharectl.simulator.render import thin_moments
from gpusharectl.simulator.result import (
    PolicyRun,
    SimulationReport,
    make_report,
    run_policy,
    score_pods,
    split_variant,
)
from gpusharectl.simulator.scenario import format_duration
from gpusharectl.simulator.scenario_file import read_scenario

_STYLES = ("-", "--", "-.", ":")
_FEWEST_PERCENT = 60
"""Below this load all policies place everything; a picture of a trace begins here."""
_LOADS = (100, 130)
"""The loads, in percent of all cards, of the figures in the trace's paper."""


@click.command("curves")
@click.argument("what")
@click.argument("picture", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--compare",
    default=",".join(POLICIES),
    show_default=True,
    callback=parse_option(read_variants),
    help="Of a scenario also with /no-links or /no-moves behind a policy.",
)
@click.option("--seed", default=SEEDS[0], show_default=True, help="Of the trace.")
@click.option(
    "--trace-dir",
    type=click.Path(path_type=Path),
    envvar=FOLDER_VARIABLE,
    default=TRACE_FOLDER,
    help=f"Where the trace's files are; {FOLDER_VARIABLE} may say it too.",
)
def curves(
    what: str, picture: Path, compare: tuple[str, ...], seed: int, trace_dir: Path
) -> None:
    """Draw WHAT, a scenario's file or a list of the trace, into PICTURE, an SVG."""
    if picture.suffix != ".svg":
        raise click.BadParameter(f"{picture}: the name must end in .svg")
    try:
        if Path(what).is_file():
            figure = draw_scenario(play_scenario(Path(what), compare))
        else:
            figure = draw_trace(read_trace(trace_dir, what), what, seed, compare)
    except (TraceError, YamlError) as error:
        raise click.ClickException(str(error)) from error
    save(figure, picture)


def save(figure: Figure, path: Path) -> None:
    """Write the picture; the same run gives the same bytes."""
    # Without it matplotlib gives the parts of an SVG random names.
    with mpl.rc_context({"svg.hashsalt": "gpushare"}):
        figure.savefig(path, dpi=120, metadata={"Date": None})


def draw_trace(trace: Trace, name: str, seed: int, policies: Sequence[str]) -> Figure:
    """Replay a list under each policy; print the paper's figures, draw the curves."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for number, policy in enumerate(policies):
        meter = replay_list(trace, name, seed, PolicyChoice(policy))
        shares = (meter.share(load) for load in _LOADS)
        shown = ("n/a" if share is None else f"{share:.2f} %" for share in shares)
        click.echo(f"{name}, {policy}, at load 100 and 130 %: {', '.join(shown)}")
        points = [point for point in meter.curve() if point[0] >= _FEWEST_PERCENT]
        loads, percents = zip(*points, strict=True) if points else ((), ())
        axes.plot(loads, percents, **_style(number, policy))
    axes.set_title(f"openb, {name}", fontsize="medium")
    axes.set_ylabel("allotted, % of all cards")
    axes.set_xlabel("requested so far, % of all cards")
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(loc="lower right")
    return figure


def replay_list(trace: Trace, name: str, seed: int, choice: PolicyChoice) -> Meter:
    """Play one order of arrivals by the extender's own decisions, and measure it."""
    played = play(trace_scenario(trace, name, seed), choice, looks=0)
    meter = Meter(trace.capacity)
    for pod, outcome in zip(trace.arrivals(seed), played.outcomes, strict=True):
        meter.arrived(pod.demand, placed=outcome.outcome is OutcomeKind.PLACED)
    return meter


def play_scenario(file: Path, variants: Sequence[str]) -> SimulationReport:
    """Play a scenario once for each variant of ``simulate --compare``."""
    scenario = read_scenario(file.read_text(), str(file))
    runs = []
    for variant in variants:
        choice, left_out = split_variant(variant, scenario.choice)
        runs.append(run_policy(scenario, choice, without=left_out))
    return make_report(scenario, runs)


_TIMES = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
_FEWEST_TICKS = 2


def draw_scenario(report: SimulationReport) -> Figure:
    """Draw what is allotted and what of the rest is of no use, over time.

    Over the load if the scenario has no times.
    """
    panels = tuple(_panels(report))
    figure = Figure(figsize=(8, 2.5 * len(panels)), layout="constrained")
    heights = tuple(panel.height for panel in panels)
    places = figure.subplots(len(panels), sharex=True, height_ratios=heights)
    length_s = report.scenario.length_s
    unit, size_s = time_axis(max(run.played.moments[-1].at_s for run in report.runs))
    for number, played in enumerate(report.runs):
        look = _style(number, played.policy)
        moments = thin_moments(played.played.moments)
        if length_s:
            # Nothing changes between two moments.
            look["drawstyle"] = "steps-post"
            along = [moment.at_s / size_s for moment in moments]
        else:
            # Without units there is no share, so that no point is drawn.
            along = [100 * (moment.load or 0.0) for moment in moments]
        for panel, axes in zip(panels, places, strict=True):
            values = zip(along, panel.values(played, moments), strict=True)
            known = [(x, value) for x, value in values if value is not None]
            axes.plot([x for x, _ in known], [y for _, y in known], **look)
    for panel, axes in zip(panels, places, strict=True):
        axes.set_ylabel(panel.label)
        axes.grid(visible=True, linewidth=0.3)
        if panel.percent:
            axes.set_ylim(0, 102)
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.get_major_locator().set_params(integer=True)
    requested = "requested so far, % of the cards' memory"
    places[-1].set_xlabel(f"time, {unit}" if length_s else requested)
    places[0].set_title(_title(report), fontsize="medium")
    # Below the panels it hides no curve.
    if lines := [*places[0].lines]:
        figure.legend(handles=lines, loc="outside lower center", ncols=len(lines))
    return figure


def _style(number: int, label: str) -> dict[str, Any]:
    """Return the style of a curve; styles differ without colour, too."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": _STYLES[number % len(_STYLES)],
        "label": label,
    }


@dataclass(frozen=True, slots=True)
class _Panel:
    """One panel of the picture; ``values`` of a run, None where nothing is known."""

    label: str
    height: int
    values: Callable[[PolicyRun, Sequence[Moment]], Sequence[float | None]]
    percent: bool = True


def _panels(report: SimulationReport) -> Iterator[_Panel]:
    """Yield the panels from above; those of links and of moves only where they are."""

    def allotted(_run: PolicyRun, moments: Sequence[Moment]) -> list[float | None]:
        return [_percent(moment.allotted) for moment in moments]

    def fragmented(_run: PolicyRun, moments: Sequence[Moment]) -> list[float | None]:
        return [_percent(moment.fragmented) for moment in moments]

    def nvlinked(run: PolicyRun, moments: Sequence[Moment]) -> list[float | None]:
        times_s = [moment.at_s for moment in moments]
        return [_percent(share) for share in nvlinked_over(report, run, times_s)]

    def waiting(_run: PolicyRun, moments: Sequence[Moment]) -> list[float | None]:
        return [moment.waiting for moment in moments]

    yield _Panel("allotted, % of the cards' memory", 3, allotted)
    yield _Panel(textwrap.fill(f"{UNUSABLE}, %", 24), 2, fragmented)
    if any(run.linked for run in report.runs):
        label = "NVLink between all cards,\n% of multi-card pods"
        yield _Panel(label, 3, nvlinked)
    if report.scenario.moves:
        yield _Panel("pods that wait", 2, waiting, percent=False)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _title(report: SimulationReport) -> str:
    nodes = words.counted(report.nodes, "node")
    cards = words.counted(report.cards, "card")
    length_s = report.scenario.length_s
    length = f", {format_duration(length_s)}" if length_s else ""
    return f"{report.scenario.name}: {nodes}, {cards}{length}"


def nvlinked_over(
    report: SimulationReport, run: PolicyRun, times_s: Sequence[float]
) -> list[float | None]:
    """Return the share (0 to 1) of the running pods with NVLink between all cards.

    Of pods of several cards where links are known; None while none runs.
    """
    pods = [
        (result.placed_s or 0.0, result.left_s, min(scores) >= NVLINK)
        for result, scores in score_pods(report.scenario, run.played.outcomes)
    ]
    shares: list[float | None] = []
    for at_s in times_s:
        running = [
            good
            for begin_s, end_s, good in pods
            if begin_s <= at_s and (end_s is None or at_s < end_s)
        ]
        shares.append(sum(running) / len(running) if running else None)
    return shares


def time_axis(length_s: float) -> tuple[str, int]:
    """Return the unit of an axis of this length, and its seconds.

    >>> time_axis(90), time_axis(3 * 3600), time_axis(0.5)
    (('seconds', 1), ('hours', 3600), ('seconds', 1))
    """
    fits = (unit for unit in _TIMES if length_s >= _FEWEST_TICKS * unit[1])
    return next(fits, _TIMES[-1])
