"""An exporter of 8 cards and 100 containers over the stub driver; and what it is up to.

``python -m bench.exporter_server exporter|registry|imports FOLDER PORT``: the exporter
itself; as many samples in a bare registry of prometheus_client, served by it; or the
exporter's imports alone.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Event, Thread

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from bench.placed import create_placed_pod
from bench.plugin_server import NODE
from exporter.run import run_exporter
from exporter.settings import ExporterSettings
from exporter.telemetry.nvml import NvmlTelemetry
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.domain.model import CardUUID
from gpushare.kube.cluster import Kind
from gpushare.settings import Address
from gpusharectl.demo.fakeapi.cluster import Embedded

CONTAINERS = 100
UNITS = 4
FIRST_PID = 10_000
PAGE = "page"
"""The file with the exporter's page, for the bare registry."""


class Same(Collector):
    """The samples of a page, as they were."""

    def __init__(self, page: str) -> None:
        self._metrics = list(text_string_to_metric_families(page))

    def collect(self) -> Iterable[Metric]:
        """Give them."""
        return self._metrics


def container_id(number: int) -> str:
    """Name a container as containerd does."""
    return f"{number:064x}"


def make_cluster(cards: Sequence[CardUUID]) -> Embedded:
    """Make a cluster of one node, its pods bound, placed and running."""
    cluster = Embedded()
    cluster.create(Kind.NODES, {"metadata": {"name": NODE}})
    for number in range(CONTAINERS):
        card = cards[number % len(cards)]
        pod = create_placed_pod(cluster, f"pod-{number:03d}", NODE, card, UNITS)
        container = f"containerd://{container_id(number)}"
        status = {"name": "main", "containerID": container}
        cluster.patch(
            Kind.PODS,
            "default",
            pod["metadata"]["name"],
            {"status": {"phase": "Running", "containerStatuses": [status]}},
            subresource="status",
        )
    return cluster


def write_proc(folder: Path, uids: Iterator[str]) -> None:
    """Write the cgroups of the containers' processes as /proc shows them."""
    for number, uid in enumerate(uids):
        made = folder / "proc" / str(FIRST_PID + number)
        made.mkdir(parents=True)
        path = f"/kubepods/burstable/pod{uid}/{container_id(number)}"
        (made / "cgroup").write_text(f"0::{path}\n")
        fields = " ".join(["S", *["0"] * 18, "1000", *["0"] * 30])
        (made / "stat").write_text(f"{FIRST_PID + number} (python) {fields}\n")


def export(folder: Path, port: int) -> int:
    """Serve until standard input ends."""
    telemetry = NvmlTelemetry(NvmlCards())
    cards = [card.uuid for card in telemetry.cards().cards]
    cluster = make_cluster(cards)
    pods = cluster.list_page(Kind.PODS, limit=CONTAINERS).items
    by_name = sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
    write_proc(folder, (pod["metadata"]["uid"] for pod in by_name))
    settings = ExporterSettings(
        NODE,
        listen=Address("127.0.0.1", port),
        collect_listen=None,
        host_root=folder,
        kubelet_dir=folder,
        log_level="WARNING",
    )
    stop = Event()
    Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    return run_exporter(settings, telemetry, cluster, stop)


def main() -> int:
    """Be what the arguments say."""
    what, folder, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if what == "exporter":
        return export(folder, port)
    if what == "registry":
        registry = CollectorRegistry()
        registry.register(Same((folder / PAGE).read_text()))
        start_http_server(port, "127.0.0.1", registry)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
