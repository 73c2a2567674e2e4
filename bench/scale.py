"""``python -m bench scale``: the extender in a cluster of very many nodes and pods.

The cluster is real etcd and kube-apiserver, filled by ``bench.crowd``. The extender
starts there as operators start it, is asked, follows a steady stream of changes, and is
taken over from when it dies together with its kube-scheduler.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from bench import crowd
from bench.client import Line, Timing, filter_args, post_in_turns, prepare_post
from bench.facts import RESULTS, median, memory_mib
from bench.lag import FILTER, Probe, time_first_answers
from bench.scrapes import measure_scrapes
from bench.server import ECHO, POD_UNITS, node_name
from bench.serving import Served, serve_extender
from bench.stage import plane_facts, stage
from bench.takeover import takeovers
from tests.controlplane.extender import Extender, extender
from tests.testbed.controlplane import ControlPlane

NAMES = 5_000
STARTS = 3
ROUNDS = 300
EVENTS_A_SECOND = 500
LOAD_S = 20.0
_READY_WITHIN_S = 300.0
_MORE_S = 15.0
"""Of load: before the lag is measured under it, and while /metrics is read."""


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of the extender took."""

    ready_s: float
    """From the start of the process until /readyz said 200."""
    rss_mib: float
    """Resident memory of its worker when it was ready."""
    peak_mib: float
    """The most that this was until then."""
    whole_mib: float
    """Of worker and gunicorn's master, what they share counted once."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large it is."""

    nodes: int
    load_s: float
    template: crowd.Template


def start_extender(plane: ControlPlane, number: int) -> tuple[Extender, Start]:
    """Start the extender, and see when it is ready and what it holds."""
    ours = extender(plane, f"extender-{number}")
    began = time.monotonic()
    process = ours.start(wait=False)
    process.wait_ready(lambda: ours.readiness()[0] == 200, _READY_WITHIN_S)
    ready_s = time.monotonic() - began
    (worker,) = ours.workers()
    pids = (worker, process.pid)
    whole = sum(memory_mib(pid, "Pss", "smaps_rollup") for pid in pids)
    return ours, Start(
        ready_s=round(ready_s, 2),
        rss_mib=memory_mib(worker),
        peak_mib=memory_mib(worker, "VmHWM"),
        whole_mib=round(whole, 1),
    )


def measure_filter(ours: Extender, names: list[str]) -> dict[str, Any]:
    """Filter over HTTP here, in a small cluster, and an echo, in turns."""
    asking = filter_args(names, POD_UNITS)
    request = prepare_post(FILTER, asking)
    with serve_extender(len(names)) as served:
        small, large = Line(served.port), Line(ours.port)
        calls = {
            "echo": (small, prepare_post(ECHO, asking)),
            "small": (small, request),
            "large": (large, request),
        }
        timings = post_in_turns(calls, ROUNDS)
        small.close()
        large.close()
    ratio = timings["large"].percentile(0.5) / timings["small"].percentile(0.5)
    return {
        "names": len(names),
        **{name: timing.as_ms() for name, timing in timings.items()},
        "ratio": round(ratio, 3),
    }


def watch_load(plane: ControlPlane, ours: Extender, scale: Scale) -> dict[str, Any]:
    """See how old the books are while pods come and go, and while Prometheus reads."""
    probe = Probe(plane.rest, ours)
    quiet = lags(probe, 3.0)
    with start_load(plane, scale) as running:
        lags(probe, 2.0)
        loaded = lags(probe, scale.load_s)
        pages: list[tuple[float, str]] = []
        scraping = threading.Thread(target=lambda: pages.append(scrape(ours)))
        scraping.start()
        while_scraped = lags(probe, 1.0, scraping.is_alive)
        scraping.join()
        output, _ = running.communicate(timeout=4 * scale.load_s + 60)
    events: dict[str, int | float] = json.loads(output)
    ((scrape_s, metrics),) = pages
    return {
        "events": events["events"],
        "events_per_s": round(events["events"] / events["seconds"], 1),
        "without_load": quiet.as_ms(),
        "under_load": loaded.as_ms(),
        "while_scraped": while_scraped.as_ms(),
        "samples": len(loaded.seconds),
        "metric_age_s": round(read_age_s(metrics), 3),
        "scrape_s": round(scrape_s, 2),
        "scrape_mib": round(len(metrics) / 2**20, 1),
    }


def lags(
    probe: Probe, seconds: float, more: Callable[[], bool] = lambda: False
) -> Timing:
    """Measure the lag again and again, for so long and while there is more."""
    until, lags_s = time.monotonic() + seconds, list[float]()
    while not lags_s or time.monotonic() < until or more():
        lags_s.append(probe.measure_lag())
    return Timing.of(lags_s)


def scrape(ours: Extender) -> tuple[float, str]:
    """Read /metrics as Prometheus would, and say how long it took."""
    began = time.monotonic()
    text = str(ours.public.get("/metrics")[1]["text"])
    return time.monotonic() - began, text


def read_age_s(metrics: str) -> float:
    """Read the age of the books that the extender itself tells."""
    start = 'vcuda_extender_ledger_age_seconds{kind="pods"} '
    (line,) = (line for line in metrics.splitlines() if line.startswith(start))
    return float(line.removeprefix(start))


def start_load(plane: ControlPlane, scale: Scale) -> "subprocess.Popen[str]":
    """Start the program that makes the events."""
    file = plane.folder / "template.json"
    file.write_text(json.dumps(asdict(scale.template)))
    seconds = scale.load_s + _MORE_S
    arguments = (plane.etcd.port, file, EVENTS_A_SECOND, seconds, scale.nodes)
    return subprocess.Popen(
        [sys.executable, "-m", "bench.crowd", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def sum_up_starts(starts: Sequence[Start]) -> dict[str, Any]:
    """Return the median of several starts, and each."""
    figures = [asdict(start) for start in starts]
    medians = {key: median([start[key] for start in figures]) for key in figures[0]}
    return medians | {"each_ready_s": [start.ready_s for start in starts]}


@click.command("scale")
@click.option("--nodes", default=10_000, show_default=True)
@click.option("--pods", default=100_000, show_default=True)
@click.option("--seconds", default=LOAD_S, show_default=True, help="Of the load.")
@click.option("--takeover/--no-takeover", default=True)
@click.option(
    "--output", type=click.Path(path_type=Path), default=RESULTS / "scale.json"
)
def scale(
    nodes: int,
    pods: int,
    seconds: float,
    takeover: bool,  # noqa: FBT001
    output: Path,
) -> None:
    """Fill a cluster, look at the extender in it, and write what came out as JSON."""
    with stage(audit="None") as plane:
        results = plane_facts(plane) | {"nodes": nodes, "pods": pods}

        def keep(part: str, what: Any) -> None:  # noqa: ANN401
            results[part] = what
            click.echo(f"{part}: {json.dumps(what)}")
            output.write_text(json.dumps(results, indent=2) + "\n")

        keep("small", time_first_answers(plane))
        began = time.monotonic()
        size = Scale(nodes, seconds, crowd.gather(plane, nodes, pods))
        click.echo(f"The cluster is full after {time.monotonic() - began:.0f} s")
        starts: list[Start] = []
        for number in range(STARTS):
            ours, start = start_extender(plane, number)
            starts.append(start)
            if number < STARTS - 1:
                ours.__exit__(None, None, None)
        keep("start", sum_up_starts(starts))
        names = [node_name(number) for number in range(min(NAMES, nodes))]
        keep("filter", measure_filter(ours, names))
        (worker,) = ours.workers()
        served = Served(ours.port, ours.public_port, worker)
        request = prepare_post(FILTER, filter_args(names, POD_UNITS))
        keep("scrapes", measure_scrapes(served, request))
        keep("watch", watch_load(plane, ours, size))
        keep("rss_mib_after_load", memory_mib(worker))
        ours.__exit__(None, None, None)
        if takeover:
            gaps = takeovers(plane, click.echo)
            keep("takeover", {name: asdict(gap) for name, gap in gaps.items()})
