"""Beside a webhook that changes pods after ours we are asked again: it must be safe."""

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.controlplane.bitfusionpods import ALL, LINE, MODE, STATUS, share
from tests.controlplane.gate import FREE, GROUP, Gate, asking, container, limits_of
from tests.testbed.certificates import Certificates
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

PATH = f"{GROUP}/mutatingwebhookconfigurations"
SECOND = "mesh.example.org"
MESH: Json = {"name": "mesh", "image": "local.test/pause:1"}
GREEDY: Json = {
    **MESH,
    "resources": {"limits": {MEMORY: "2"}, "requests": {MEMORY: "2"}},
}
Patch = list[Json]


class Mesh(ThreadingHTTPServer):
    """A webhook of somebody else's, which adds a container as service meshes do."""

    daemon_threads = True

    def __init__(self, tls_files: Certificates, patch: Callable[[Json], Patch]) -> None:
        super().__init__(("127.0.0.1", 0), _Review)
        self.patch = patch
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(
            tls_files.path("server.crt"), tls_files.path("server.key")
        )
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def answer(self, review: Json) -> Json:
        request = review["request"]
        patch = self.patch(request["object"])
        response = {"uid": request["uid"], "allowed": True}
        if patch:
            text = base64.b64encode(json.dumps(patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": text}
        return {**review, "request": None, "response": response}


class _Review(BaseHTTPRequestHandler):
    server: Mesh

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        review = json.loads(self.rfile.read(length))
        body = json.dumps(self.server.answer(review)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing; the test's own output is enough."""


def adding(one: Json) -> Callable[[Json], Patch]:
    """Add this container to pods that have not got it."""

    def patch(a_pod: Json) -> Patch:
        there = {each["name"] for each in a_pod["spec"]["containers"]}
        add = {"op": "add", "path": "/spec/containers/-", "value": one}
        return [] if one["name"] in there else [add]

    return patch


@contextmanager
def beside(gate: Gate, patch: Callable[[Json], Patch]) -> Iterator[None]:
    """Register such a webhook, which the API server asks after ours."""
    mesh = Mesh(gate.webhook.tls_files, patch)
    thread = Thread(target=mesh.serve_forever)
    thread.start()
    ca = base64.b64encode(gate.webhook.tls_files.read()["ca.crt"]).decode()
    url = f"https://127.0.0.1:{mesh.server_port}/"
    entry = {
        "name": SECOND,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": url, "caBundle": ca},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
            }
        ],
    }
    # Webhooks are asked in the order of their configurations' names.
    body = {"metadata": {"name": "zz-mesh"}, "webhooks": [entry]}
    gate.rest.must("POST", PATH, body)
    try:
        wait_until(lambda: changed(gate), "second webhook")
        yield
    finally:
        gate.rest.must("DELETE", f"{PATH}/zz-mesh")
        wait_until(lambda: not changed(gate), "end of the second webhook")
        mesh.shutdown()
        thread.join()
        mesh.server_close()


def changed(gate: Gate) -> bool:
    """Tell whether it changes pods, by one that ours is not asked about."""
    made = gate.at(FREE).admitted(asking(container()))
    return len(made["spec"]["containers"]) > 1


def asked_twice(gate: Gate, entry: str, a_pod: Json) -> Json:
    """Create a pod of which the API server asks this entry two times."""
    before = gate.reviews(entry)["admit"]
    made = gate.admitted(a_pod)
    assert gate.reviews(entry)["admit"] == before + 2
    return made


def test_a_mesh_beside_a_share(gate: Gate) -> None:
    """The second review finds nothing to do, and leaves the other's work alone."""
    a_pod = asking(container({MEMORY: 4}))
    alone = gate.admitted(a_pod)["spec"]["containers"]
    with beside(gate, adding(MESH)):
        made = asked_twice(gate, "pods.vcuda.baidu.com", a_pod)
    first, second = made["spec"]["containers"]
    assert [first] == alone
    assert second["name"] == "mesh"
    assert second["resources"] == {}


def test_a_container_that_comes_late_is_reviewed_too(gate: Gate) -> None:
    """One that asks memory gets its core; and what is wrong with it is told."""
    with beside(gate, adding(GREEDY)):
        made = asked_twice(gate, "pods.vcuda.baidu.com", asking(container({MEMORY: 4})))
        assert limits_of(made, 1) == {MEMORY: "2", CORE: "1"}
    cheat = {**MESH, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    with beside(gate, adding({**GREEDY, **cheat})):
        told = gate.denied(asking(container({MEMORY: 4})))
    assert "spec.containers[1].env" in told


def test_only_the_last_look_sees_what_others_made_of_a_pod(gate: Gate) -> None:
    """One that asked nothing at first: then the validating review tells."""
    worst = {MEMORY: "2", CORE: "150"}
    odd = {**MESH, "resources": {"limits": worst, "requests": worst}}
    with beside(gate, adding(odd)):
        told = wait_until(
            lambda: gate.post(asking(container({"cpu": "1"})))[1].get("message", ""),
            "denial",
        )
    assert "spec.containers[1]" in told
    assert "150 cores are neither" in told


@pytest.mark.parametrize("mode", ["all", "injection"])
def test_a_bitfusion_pod_is_translated_once(gate: Gate, mode: str) -> None:
    """Its command is not wrapped again, nothing is mounted twice."""
    a_pod = asking(container(share(), command=[LINE]), annotations={**ALL, MODE: mode})
    alone = gate.admitted(a_pod)
    with beside(gate, adding(MESH)):
        made = asked_twice(gate, "bitfusion.vcuda.baidu.com", a_pod)
    first, second = made["spec"]["containers"]
    assert [first] == alone["spec"]["containers"]
    assert limits_of(made) == {MEMORY: "29", CORE: "50"}
    assert second["name"] == "mesh"
    assert made["spec"].get("volumes") == alone["spec"].get("volumes")
    assert made["metadata"]["annotations"] == alone["metadata"]["annotations"]
    assert made["metadata"]["annotations"][STATUS] == "injected"
