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
from bench.client import Line, Timing, in_turns, prepared
from bench.firstanswer import first_answers
from bench.lag import Lag, Probe
from bench.scrapes import scraped
from bench.server import ECHO, POD_UNITS
from bench.serving import Served, server
from bench.stage import RESULTS, facts, middle, our_extender, stage
from bench.takeover import takeovers
from tests.controlplane.extender import Extender
from tests.testbed.controlplane import ControlPlane

FILTER = "/scheduler/filter"
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
    pods: int
    names: int
    load_s: float
    template: crowd.Template


def started(plane: ControlPlane, number: int) -> tuple[Extender, Start]:
    """Start the extender, and see when it is ready and what it holds."""
    ours = our_extender(plane, f"extender-{number}")
    began = time.monotonic()
    process = ours.start(wait=False)
    process.wait_ready(lambda: ours.readiness()[0] == 200, _READY_WITHIN_S)
    ready_s = time.monotonic() - began
    (worker,) = ours.workers()
    whole = sum(_proc_mib(pid, "smaps_rollup", "Pss") for pid in (worker, process.pid))
    return ours, Start(
        ready_s=round(ready_s, 2),
        rss_mib=_proc_mib(worker, "status", "VmRSS"),
        peak_mib=_proc_mib(worker, "status", "VmHWM"),
        whole_mib=round(whole, 1),
    )


def _proc_mib(pid: int, file: str, key: str) -> float:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith(f"{key}:"))
    return round(int(found.split()[1]) / 1024, 1)


def filtering(ours: Extender, scale: Scale) -> dict[str, Any]:
    """Filter over HTTP here, in a small cluster, and an echo, in turns."""
    names = [crowd.node_name(number) for number in range(scale.names)]
    asking = prepared(FILTER, names, POD_UNITS)
    with server(scale.names, 0) as served:
        small, large = Line(served.port), Line(ours.port)
        timed = in_turns(
            {
                "echo": (small, prepared(ECHO, names, POD_UNITS)),
                "small": (small, asking),
                "large": (large, asking),
            },
            ROUNDS,
        )
        small.close()
        large.close()
    median = {name: timing.percentile(0.5) for name, timing in timed.items()}
    return {
        "names": scale.names,
        **{name: timing.as_ms() for name, timing in timed.items()},
        "ratio": round(median["large"] / median["small"], 3),
    }


def watching(plane: ControlPlane, ours: Extender, scale: Scale) -> dict[str, Any]:
    """See how old the books are while pods come and go, and while Prometheus reads."""
    probe = Probe(plane.rest, ours)
    quiet = lags(probe, 3.0)
    with load(plane, scale) as running:
        lags(probe, 2.0)
        loaded = lags(probe, scale.load_s)
        pages: list[tuple[float, str]] = []
        scraping = threading.Thread(target=lambda: pages.append(scrape(ours)))
        scraping.start()
        while_scraped = lags(probe, 1.0, scraping.is_alive)
        scraping.join()
        told, _ = running.communicate(timeout=4 * scale.load_s + 60)
    came: dict[str, int | float] = json.loads(told)
    seconds, metrics = pages[0]
    return {
        "events": came["events"],
        "events_per_s": round(came["events"] / came["seconds"], 1),
        "without_load": quiet.as_ms(),
        "under_load": loaded.as_ms(),
        "while_scraped": while_scraped.as_ms(),
        "samples": len(loaded.seconds),
        "metric_age_s": round(age_s(metrics), 3),
        "scrape_s": round(seconds, 2),
        "scrape_mib": round(len(metrics) / 2**20, 1),
    }


def lags(
    probe: Probe, seconds: float, more: Callable[[], bool] = lambda: False
) -> Timing:
    """Measure the lag again and again, for so long and while there is more."""
    until, found = time.monotonic() + seconds, list[Lag]()
    while not found or time.monotonic() < until or more():
        found.append(probe.measure())
    return Timing(tuple(sorted(each.known_s for each in found)))


def scrape(ours: Extender) -> tuple[float, str]:
    """Read /metrics as Prometheus would, and say how long it took."""
    began = time.monotonic()
    text = str(ours.public.get("/metrics")[1]["text"])
    return time.monotonic() - began, text


def age_s(metrics: str) -> float:
    """Read the age of the books that the extender itself tells."""
    start = 'vcuda_extender_ledger_age_seconds{kind="pods"} '
    (line,) = (each for each in metrics.splitlines() if each.startswith(start))
    return float(line.removeprefix(start))


def load(plane: ControlPlane, scale: Scale) -> "subprocess.Popen[str]":
    """Start the program that makes the events."""
    file = plane.folder / "template.json"
    file.write_text(json.dumps(asdict(scale.template)))
    seconds = scale.load_s + _MORE_S
    arguments = (plane.etcd.port, file, EVENTS_A_SECOND, seconds, scale.nodes)
    return subprocess.Popen(
        [sys.executable, "-m", "bench.lives", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def starts_of(starts: Sequence[Start]) -> dict[str, Any]:
    """Give the middle of several starts, and each."""
    keys = ("ready_s", "rss_mib", "peak_mib", "whole_mib")
    return {key: middle([getattr(one, key) for one in starts]) for key in keys} | {
        "each_ready_s": [one.ready_s for one in starts]
    }


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
        found = facts(plane) | {"nodes": nodes, "pods": pods}

        def keep(part: str, what: Any) -> None:  # noqa: ANN401
            found[part] = what
            click.echo(f"{part}: {json.dumps(what)}")
            output.write_text(json.dumps(found, indent=2) + "\n")

        keep("small", first_answers(plane))
        began = time.monotonic()
        of = crowd.gather(plane, nodes, pods)
        size = Scale(nodes, pods, min(NAMES, nodes), seconds, of)
        click.echo(f"The cluster is full after {time.monotonic() - began:.0f} s")
        starts: list[Start] = []
        for number in range(STARTS):
            ours, start = started(plane, number)
            starts.append(start)
            if number < STARTS - 1:
                ours.__exit__(None, None, None)
        keep("start", starts_of(starts))
        keep("filter", filtering(ours, size))
        (worker,) = ours.workers()
        names = [crowd.node_name(number) for number in range(size.names)]
        served = Served(ours.port, ours.public_port, worker)
        keep("scrapes", scraped(served, prepared(FILTER, names, POD_UNITS)))
        keep("watch", watching(plane, ours, size))
        keep("rss_mib_after_load", _proc_mib(worker, "status", "VmRSS"))
        ours.__exit__(None, None, None)
        if takeover:
            gaps = takeovers(plane, click.echo)
            keep("takeover", {name: asdict(gap) for name, gap in gaps.items()})
