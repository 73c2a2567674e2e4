"""From ``create`` to Running on a real cluster: with a card and without, in turns."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.client import Timing
from tests.cluster.manifests import container, pod
from tests.cluster.site import Site
from tests.nvml.build import the_stub
from tests.nvml.driver import stub_card
from tests.testbed.binaries import cache_folder
from tests.testbed.kubeadm import Cluster, ensure_programs, why_not
from tests.testbed.rest import Json, Rest

ROUNDS = 30
_PODS = "/api/v1/namespaces/default/pods"
_LOOK_S = 0.005
_WITHIN_S = 60.0


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
        took = in_turns(site.cluster.rest, bodies, ROUNDS)
    table = Table("from create to Running, real kubelet", "p50 / p95 / p99 / max ms")
    for what, timing in took.items():
        shown = "{p50:.0f} / {p95:.0f} / {p99:.0f} / {max:.0f}".format(**timing.as_ms())
        table.add_row(what, shown)
    more_s = took["with a card"].percentile(0.5) - took["without"].percentile(0.5)
    console.print(table)
    console.print(f"A card costs {more_s * 1000:.0f} ms at the median.")
    found: dict[str, Any] = {what: timing.as_ms() for what, timing in took.items()}
    return found | {"more_ms": round(more_s * 1000, 1)}


@contextmanager
def site_of_one_node() -> Iterator[Site]:
    """Give a real cluster with gpushare, still without cards."""
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


def in_turns(rest: Rest, bodies: Mapping[str, Json], rounds: int) -> dict[str, Timing]:
    """Run pods of each kind one after another; the first of each warms up."""
    took: dict[str, list[float]] = {what: [] for what in bodies}
    for number in range(rounds + 1):
        for what, body in bodies.items():
            seconds = until_running(rest, body)
            if number:
                took[what].append(seconds)
    return {what: Timing(tuple(sorted(all_of))) for what, all_of in took.items()}


def until_running(rest: Rest, body: Json) -> float:
    """Make a pod, wait until it runs, and remove it; the seconds that it took."""
    path = f"{_PODS}/{body['metadata']['name']}"
    began = time.perf_counter()
    rest.must("POST", _PODS, body)
    wait(lambda: rest.get(path)[1]["status"]["phase"] == "Running", path)
    took = time.perf_counter() - began
    rest.must("DELETE", f"{path}?gracePeriodSeconds=1")
    wait(lambda: rest.get(path)[0] == 404, path)
    return took


def wait(true: Any, what: str) -> None:  # noqa: ANN401
    """Look until it is so."""
    deadline = time.monotonic() + _WITHIN_S
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come about")
        time.sleep(_LOOK_S)
