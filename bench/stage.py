"""A control plane of real parts for one benchmark, and on what it ran."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.facts import machine_facts
from gpushare.domain.model import Card, CardUUID
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from tests.controlplane.extender import USER
from tests.testbed.audit import Level
from tests.testbed.binaries import cache_folder, ensure_binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant
from tests.testbed.goextender import GoExtender, ensure_go_extender
from tests.testbed.manifests import rights
from tests.testbed.objects import node, post_pod
from tests.testbed.rest import Json, Rest
from tests.testbed.scheduler import SchedulerSettings

FAST = SchedulerSettings(qps=5000, burst=5000, percentage_of_nodes_to_score=100)
"""kube-scheduler as every comparison has it: no limit of its own client, all nodes."""
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


def plane_facts(plane: ControlPlane) -> dict[str, Any]:
    """Say when and on what it ran, with the version of Kubernetes."""
    version = plane.rest.must("GET", "/version")["gitVersion"]
    return machine_facts() | {"kubernetes": version}


@contextmanager
def go_extender(plane: ControlPlane, name: str) -> Iterator[GoExtender]:
    """Run the extender in Go as the account, and with the rights, of ours."""
    grant(plane.rest, USER.name, rights("gpushare-extender"))
    program = ensure_go_extender(cache_folder(os.environ))
    path = plane.kubeconfig(USER.token, name, insecure=False)
    with GoExtender(program, plane.launcher, name, path) as extender:
        yield extender


def node_body(name: str, count: int) -> Json:
    """Describe a Ready node as its device plugin would: cards of 94 units."""
    cards = [Card(CardUUID(f"GPU-{name}-{i}"), i, UNITS) for i in range(count)]
    return node(
        name,
        cpu="128",
        memory="1024Gi",
        pods=1000,
        units=UNITS * count,
        cores=CORES * count,
        annotations={names.CARDS: encode_cards(cards)},
    )


def post_nodes(rest: Rest, bodies: Sequence[Json]) -> None:
    """Create many nodes through the API server."""
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(lambda body: rest.must("POST", "/api/v1/nodes", body), bodies))


def post_pods(rest: Rest, bodies: Sequence[Json]) -> list[Json]:
    """Create many pods as fast as the API server takes them."""
    with ThreadPoolExecutor(_WRITERS) as pool:
        return list(pool.map(lambda body: post_pod(rest, body), bodies))
