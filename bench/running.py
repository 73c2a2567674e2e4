"""From ``create`` to Running on a real cluster: with a card and without, in turns."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.client import Timing, time_call, time_in_turns, times_table
from tests.cluster.manifests import container, pod
from tests.cluster.site import Site
from tests.nvml.build import the_stub
from tests.nvml.driver import stub_card
from tests.testbed.binaries import cache_folder
from tests.testbed.kubeadm import Cluster, ensure_programs, why_not
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

ROUNDS = 30
_PODS = "/api/v1/namespaces/default/pods"
_LOOK_S = 0.005


def running_table(console: Console) -> dict[str, Any] | None:
    """Time pods on one node, and show the medians; None where no cluster can be had."""
    if missing := why_not():
        console.print(f"From create to Running: not measured, {missing}")
        return None
    bodies = {
        "without": pod("plain", container("main")),
        "with a card": pod("carded", container("main", 4, 1)),
    }
    with site_of_one_node() as site:
        add_two_cards(site)
        timings = time_until_running(site.cluster.rest, bodies, ROUNDS)
    console.print(times_table("from create to Running, real kubelet", timings, 0))
    without_s, carded_s = (took.percentile(0.5) for took in timings.values())
    more_ms = 1000 * (carded_s - without_s)
    console.print(f"A card costs {more_ms:.0f} ms at the median.")
    times: dict[str, Any] = {what: took.as_ms() for what, took in timings.items()}
    return times | {"more_ms": round(more_ms, 1)}


@contextmanager
def site_of_one_node() -> Iterator[Site]:
    """Yield a real cluster with gpushare, still without cards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        programs = ensure_programs(cache_folder(os.environ))
        with Cluster(programs, folder / "cluster") as cluster:
            site = Site(cluster, the_stub(), folder)
            site.install()
            yield site


def add_two_cards(site: Site, **settings: str) -> None:
    """Start the device plugin, with these settings, on the node of pods."""
    cards = [stub_card(0), stub_card(1)]
    site.add_cards(site.cluster.nodes["cp"], cards, **settings)


def time_until_running(
    rest: Rest, bodies: Mapping[str, Json], rounds: int
) -> dict[str, Timing]:
    """Run pods of each kind in turns; the first of each warms up."""
    ways = {what: partial(run_pod, rest, body) for what, body in bodies.items()}
    return time_in_turns(ways, rounds)


def run_pod(rest: Rest, body: Json) -> float:
    """Make a pod, wait until it runs, and remove it; return the seconds it took."""
    path = f"{_PODS}/{body['metadata']['name']}"

    def until_it_runs() -> None:
        rest.must("POST", _PODS, body)
        wait_until(
            lambda: rest.get(path)[1]["status"]["phase"] == "Running",
            f"Running {path}",
            every_s=_LOOK_S,
        )

    took_s = time_call(until_it_runs)
    rest.must("DELETE", f"{path}?gracePeriodSeconds=1")
    wait_until(lambda: rest.get(path)[0] == 404, f"end of {path}", every_s=_LOOK_S)
    return took_s
