"""A control plane of real parts for one benchmark, and on what it ran."""

import os
import platform
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpushare.domain.model import Card, CardUUID
from gpushare.kube.annotations import encode_cards
from tests.controlplane.extender import USER, Extender, extender
from tests.testbed.audit import Level
from tests.testbed.binaries import cache_folder, ensure_binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant
from tests.testbed.goextender import GoExtender, ensure_go_extender
from tests.testbed.manifests import rights
from tests.testbed.objects import node, post_pod
from tests.testbed.rest import Json, Rest
from tests.testbed.scheduler import SchedulerSettings

RESULTS = Path(__file__).with_name("results")
FAST = SchedulerSettings(qps=5000, burst=5000, percentage_of_nodes_to_score=100)
"""kube-scheduler as every comparison has it: no limit of its own client, all nodes."""
CARDS = "baidu.com/vcuda-cards"
CORES = 100
UNITS = 94
_WRITERS = 8


@contextmanager
def stage(audit: Level = "Metadata") -> Iterator[ControlPlane]:
    """Bring up etcd and kube-apiserver in a folder that is gone afterwards."""
    binaries = ensure_binaries(cache_folder(os.environ))
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        ControlPlane(
            binaries, Path(folder) / "plane", users=[USER], audit=audit
        ) as plane,
    ):
        yield plane


def facts(plane: ControlPlane) -> dict[str, Any]:
    """Say when and on what it ran; memory in GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{memory / 2**30:.0f} GiB",
        "python": platform.python_version(),
        "kubernetes": plane.rest.must("GET", "/version")["gitVersion"],
    }


def our_extender(plane: ControlPlane, name: str) -> Extender:
    """Prepare an extender as operators have it, with the policy that is the default."""
    return extender(plane, name)


@contextmanager
def go_extender(plane: ControlPlane, name: str) -> Iterator[GoExtender]:
    """Run the extender in Go as the account, and with the rights, of ours."""
    grant(plane.rest, USER.name, rights("gpushare-extender"))
    program = ensure_go_extender(cache_folder(os.environ))
    path = plane.kubeconfig(USER.token, name, insecure=False)
    with GoExtender(program, plane.launcher, name, path) as found:
        yield found


def node_body(name: str, cards: int) -> Json:
    """Describe a Ready node as its device plugin would: cards of 94 units."""
    listed = [Card(CardUUID(f"GPU-{name}-{i}"), i, UNITS) for i in range(cards)]
    return node(
        name,
        cpu="128",
        memory="1024Gi",
        pods=1000,
        units=UNITS * cards,
        cores=CORES * cards,
        annotations={CARDS: encode_cards(listed)},
    )


def post_nodes(rest: Rest, bodies: Sequence[Json]) -> None:
    """Create many nodes through the API server."""
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(lambda body: rest.must("POST", "/api/v1/nodes", body), bodies))


def post_pods(rest: Rest, bodies: Sequence[Json]) -> list[Json]:
    """Create many pods as fast as the API server takes them."""
    with ThreadPoolExecutor(_WRITERS) as pool:
        return list(pool.map(lambda body: post_pod(rest, body), bodies))


def middle(values: Sequence[float], digits: int = 2) -> float:
    """Give the median, rounded."""
    return round(statistics.median(values), digits)


def cpu_s(pid: int) -> float:
    """Give the CPU time that a process has used: fields 14 and 15 of its stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
