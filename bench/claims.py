"""``python -m bench claims``: what a ResourceClaim costs beside a classic pod.

Three measurements. A review by the arbiter, beside an echo on the same listener. Pods
from create to bound by a real kube-scheduler, and the extender's CPU for them: classic,
by a claim, and by a claim of which the API server does not ask. And pods from create to
Running on a real kubelet, both ways, where a cluster can be had.
"""

import base64
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from bench.client import (
    Line,
    Timing,
    format_ms,
    prepare_post,
    time_call,
    time_in_turns,
    times_table,
)
from bench.facts import cpu_s
from bench.running import add_two_cards, site_of_one_node, time_until_running
from bench.server import CARDS, ECHO, UNITS, node_name
from bench.serving import serve_extender
from bench.stage import FAST, plane_facts, stage
from deviceplugin.dra.slices import build_slices, slice_devices
from gpushare.addresses import find_free_address
from gpushare.domain.model import UNIT_MIB, Amount, Card, CardUUID
from gpushare.kube.resource_claims.allocated import name_device
from gpushare.kube.resource_claims.templates import write_template
from tests.cluster.gpus import PLUGIN
from tests.cluster.manifests import container, pod
from tests.cluster.site import SYSTEM, Site
from tests.controlplane.world import World, beside, node_of, post_all
from tests.extender.server.test_resource_claims_app import review
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant
from tests.testbed.kubeadm import why_not
from tests.testbed.kubeadm.files import CDI_OF_CLAIMS
from tests.testbed.manifests import FOLDER, documents, rights
from tests.testbed.objects import post_pod, read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

REVIEWS, REVIEWS_FOR_CPU = 1000, 2000
"""Of each kind; each claim is another one, and all of them have room on the nodes."""
PODS = 60
BURSTS, BURST = 6, 60
RUNNING = 20
_NODES = 20
_API = "/apis/resource.k8s.io/v1"
_HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_DRIVER = "vcuda.baidu.com"
_UNASKED = "bench-unasked"
"""Label and name of the namespace whose claims the API server asks nobody about."""
_ASKED = "default"
_PATH = "/claims"
_CLAIM = "by a claim"
_CLASSIC = "classic"
_NO_ARBITER = "by a claim, no arbiter"
_TEMPLATES = f"{_API}/namespaces/default/resourceclaimtemplates"
_LOOK_S = 0.002


def claims_table(console: Console) -> dict[str, Any]:
    """Measure all three, and show."""
    load = round(os.getloadavg()[0], 1)
    results = {"load": load, "reviews": reviews_table(console)}
    results |= bound_table(console)
    return results | {"running": running_claims_table(console)}


def reviews_table(console: Console) -> dict[str, Any]:
    """Ask the arbiter about claims that fit and one that does not, beside the echo."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        tls = certificates(Path(folder) / "tls")
        listen = find_free_address()
        settings = {
            "GPUSHARE_CLAIMS_LISTEN": str(listen),
            "GPUSHARE_CLAIMS_TLS_CERT": tls.path("server.crt"),
            "GPUSHARE_CLAIMS_TLS_KEY": tls.path("server.key"),
            "GPUSHARE_LOG_LEVEL": "ERROR",
        }
        with (
            serve_extender(_NODES, settings=settings) as served,
            closing(Line(listen.port, tls.client(None))) as line,
        ):
            timings, cpu = _ask(line, served.worker)
    rows = {what: timing.as_ms() for what, timing in timings.items()}
    echo = rows["echo"]["p50"]
    table = Table("review", "p50 / p95 / p99 ms", "CPU ms", "x echo")
    for what, row in rows.items():
        row["ratio"] = round(row["p50"] / echo, 3)
        row["cpu_ms"] = round(cpu[what] * 1000, 3)
        ratio = f"{row['ratio']:.2f}"
        table.add_row(what, format_ms(row), f"{row['cpu_ms']:.2f}", ratio)
    console.print(table)
    return rows


def _ask(line: Line, worker: int) -> tuple[dict[str, Timing], dict[str, float]]:
    """Time each kind in turns; then the CPU seconds of one, from many in a row."""
    numbers = itertools.count()
    kinds = {"echo": (ECHO, 1), "reserved": (_PATH, 1), "denied": (_PATH, UNITS + 1)}

    def post_another(path: str, units: int) -> float:
        request = _review_request(path, next(numbers), units)
        return time_call(partial(line.post, request))

    ways = {what: partial(post_another, *kind) for what, kind in kinds.items()}
    timings = time_in_turns(ways, REVIEWS, warm_up=0)
    cpu: dict[str, float] = {}
    for what, (path, units) in kinds.items():
        requests = [
            _review_request(path, next(numbers), units) for _ in range(REVIEWS_FOR_CPU)
        ]
        before = cpu_s(worker)
        for request in requests:
            line.post(request)
        cpu[what] = (cpu_s(worker) - before) / REVIEWS_FOR_CPU
    return timings, cpu


def _review_request(path: str, number: int, units: int) -> bytes:
    """Write a review of a claim of its own, on the cards in turn."""
    node, card = node_name(number % _NODES), number // _NODES % CARDS
    name = f"claim-{number}"
    body: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "resourceVersion": "7",
        },
        "spec": _claim_spec(units),
        "status": {"allocation": _allocation(f"GPU-{node}-{card}", node, units)},
    }
    return prepare_post(path, review(body))


def _allocation(uuid: str, node: str, units: int) -> Json:
    result = {
        "request": "card",
        "driver": _DRIVER,
        "pool": node,
        "device": name_device(CardUUID(uuid)),
        "consumedCapacity": {"memory": f"{units * UNIT_MIB}Mi", "cores": "1"},
    }
    return {"devices": {"results": [result]}}


def _claim_spec(units: int) -> Json:
    spec: Json = write_template([Amount(1, units)])["spec"]["spec"]
    return spec


@dataclass(frozen=True)
class Scene:
    """A real control plane with the arbiter, and a namespace that it does not see."""

    world: World
    worker: int

    def prepare(self, way: str, name: str) -> Json:
        """Describe a pod; if it has a claim, that is created here."""
        namespace = _UNASKED if way == _NO_ARBITER else _ASKED
        there = replace(self.world, namespace=namespace)
        if way == _CLASSIC:
            return there.pod(name, 2, 1)
        claim = {
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": _claim_spec(2),
        }
        self.world.rest.must("POST", _claims_of(namespace), claim)
        body = there.pod(name)
        body["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": name}]
        body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "card"}]
        return body

    def until_bound(self, pods: Sequence[Json]) -> None:
        """Create pods, and wait until all are bound."""
        rest = self.world.rest
        posted = post_all(self.world, pods) if pods[1:] else [post_pod(rest, pods[0])]
        for created in posted:
            while not node_of(read_pod(rest, created)):
                time.sleep(_LOOK_S)

    def clear(self, way: str, pods: Sequence[Json]) -> None:
        """Remove pods and their claims, and wait until the ledger knows."""
        for created in pods:
            self.world.delete(created)
            if way != _CLASSIC:
                metadata = created["metadata"]
                path = f"{_claims_of(metadata['namespace'])}/{metadata['name']}"
                _remove_claim(self.world, path)
        wait_until(self._is_empty, "an empty ledger", 60, every_s=0.05)

    def _is_empty(self) -> bool:
        nodes = self.world.extender.rest.must("GET", "/snapshot")["nodes"]
        return not any(node["pods"] or node.get("claims") for node in nodes)


def _claims_of(namespace: str) -> str:
    return f"{_API}/namespaces/{namespace}/resourceclaims"


def _remove_claim(world: World, path: str) -> None:
    """Free and delete a claim, as kube-controller-manager does after its last pod."""
    empty = {"status": {"reservedFor": None, "allocation": None}}
    world.rest.must("PATCH", f"{path}/status", empty)
    world.rest.must("PATCH", path, {"metadata": {"finalizers": None}})
    world.rest.must("DELETE", path)


def bound_table(console: Console) -> dict[str, Any]:
    """Time pods until they are bound, and add up the extender's CPU for them."""
    ways = (_CLASSIC, _CLAIM, _NO_ARBITER)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        tls = certificates(Path(folder) / "tls")
        with stage() as plane, _scene(plane, tls) as scene:
            kubernetes = plane_facts(plane)["kubernetes"]
            timings = _one_by_one(scene, ways)
            cpu = _in_bursts(scene, ways)
    rows = {way: timings[way].as_ms() | {"cpu_ms": cpu[way]} for way in ways}
    table = Table("from create to bound", "p50 / p95 / p99 ms", "extender's CPU ms")
    for way, row in rows.items():
        table.add_row(way, format_ms(row, 1), f"{row['cpu_ms']:.2f}")
    console.print(table)
    p50 = {way: row["p50"] for way, row in rows.items()}
    return {
        "kubernetes": kubernetes,
        "bound": rows,
        "arbiter": {
            "more_ms": round(p50[_CLAIM] - p50[_NO_ARBITER], 2),
            "more_cpu_ms": round(cpu[_CLAIM] - cpu[_NO_ARBITER], 3),
        },
        "ratio": {
            "bound": round(p50[_CLAIM] / p50[_CLASSIC], 3),
            "cpu": round(cpu[_CLAIM] / cpu[_CLASSIC], 3),
        },
    }


@contextmanager
def _scene(plane: ControlPlane, tls: Certificates) -> Iterator[Scene]:
    """Run extender, arbiter and kube-scheduler, and offer the cards of some nodes."""
    listen = find_free_address()
    settings = {
        "CLAIMS_LISTEN": str(listen),
        "CLAIMS_TLS_CERT": tls.path("server.crt"),
        "CLAIMS_TLS_KEY": tls.path("server.key"),
    }
    for body in documents("dra/device-class.yaml"):
        plane.rest.must("POST", f"{_API}/deviceclasses", body)
    unasked = {"metadata": {"name": _UNASKED, "labels": {_UNASKED: "true"}}}
    plane.rest.must("POST", "/api/v1/namespaces", unasked)
    with beside(plane, scheduler=FAST, **settings) as world:
        plane.rest.must("POST", _HOOKS, _hook(listen.port, tls))
        for number in range(_NODES):
            _offer(world, f"node-{number}")
        (worker,) = world.extender.workers()
        yield Scene(world, worker)


def _hook(port: int, tls: Certificates) -> Json:
    """Return what we ship, with this port and authority, and one namespace left out."""
    (hook,) = documents("dra/webhook.yaml")
    (webhook,) = hook["webhooks"]
    webhook["clientConfig"] = {
        "url": f"https://localhost:{port}/claims",
        "caBundle": base64.b64encode(tls.read()["ca.crt"]).decode(),
    }
    unasked = {"key": _UNASKED, "operator": "DoesNotExist"}
    webhook["namespaceSelector"] = {"matchExpressions": [unasked]}
    body: Json = hook
    return body


def _offer(world: World, node: str) -> None:
    """Add a node of eight cards, with the slice that its device plugin would write."""
    uuids = [f"GPU-{node}-{index}" for index in range(CARDS)]
    world.node(node, *[UNITS] * CARDS, uuids=uuids)
    cards = [Card(CardUUID(uuid), index, UNITS) for index, uuid in enumerate(uuids)]
    uid = world.rest.must("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    for body in build_slices(node, uid, slice_devices(cards, {}), 1):
        world.rest.must("POST", f"{_API}/resourceslices", body)


def _one_by_one(scene: Scene, ways: Sequence[str]) -> dict[str, Timing]:
    """Time single pods in turns; the first of each warms up."""
    numbers = itertools.count()

    def bind_another(way: str) -> float:
        pods = [scene.prepare(way, f"one-{next(numbers)}")]
        took_s = time_call(partial(scene.until_bound, pods))
        scene.clear(way, pods)
        return took_s

    return time_in_turns({way: partial(bind_another, way) for way in ways}, PODS)


def _in_bursts(scene: Scene, ways: Sequence[str]) -> Mapping[str, float]:
    """Return the extender's CPU milliseconds for one pod, from bursts in turns."""
    used = dict.fromkeys(ways, 0.0)
    for number in range(BURSTS):
        for way in ways[:: -1 if number % 2 else 1]:
            names = [f"burst-{number}-{ways.index(way)}-{n}" for n in range(BURST)]
            pods = [scene.prepare(way, name) for name in names]
            before = cpu_s(scene.worker)
            scene.until_bound(pods)
            used[way] += cpu_s(scene.worker) - before
            scene.clear(way, pods)
    return {way: round(s * 1000 / BURSTS / BURST, 3) for way, s in used.items()}


def running_claims_table(console: Console) -> dict[str, Any] | None:
    """Time pods until they run on a real kubelet; None where no cluster can be had."""
    if missing := why_not():
        console.print(f"From create to Running: not measured, {missing}")
        return None
    using = container("main", resources={"claims": [{"name": "card"}]})
    claim = {"name": "card", "resourceClaimTemplateName": "vcuda-m4-c1"}
    bodies = {
        _CLASSIC: pod("classic", container("main", 4, 1)),
        _CLAIM: pod("claimed", using, resourceClaims=[claim]),
    }
    with site_of_one_node() as site:
        _switch_on(site)
        timings = time_until_running(site.cluster.rest, bodies, RUNNING)
    console.print(times_table("from create to Running, real kubelet", timings, 0))
    times = {way: took.as_ms() for way, took in timings.items()}
    ratio = round(times[_CLAIM]["p50"] / times[_CLASSIC]["p50"], 3)
    return times | {"ratio": ratio}


def _switch_on(site: Site) -> None:
    """Add cards whose plugin offers them to claims too, without the arbiter."""
    rest = site.cluster.rest
    steps = yaml.safe_load((FOLDER / "dra-plugin/rights.yaml").read_text())
    user = f"system:serviceaccount:{SYSTEM}:{PLUGIN}"
    grant(rest, user, [*rights(PLUGIN), *(step["value"] for step in steps)])
    for body in documents("dra/device-class.yaml"):
        rest.must("POST", f"{_API}/deviceclasses", body)
    rest.must("POST", _TEMPLATES, write_template([Amount(1, 4)]))
    add_two_cards(site, DRA="on", CDI_DIRS=f"/etc/cdi,{CDI_OF_CLAIMS}")
    wait_until(
        lambda: rest.must("GET", f"{_API}/resourceslices")["items"], "the slice", 60
    )
