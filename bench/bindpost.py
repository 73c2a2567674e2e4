"""``python -m bench bind``: what a bind's POST costs the extender, on each of two ways.

Beside ``gpushare.kube.apiserver.post`` stands the kubernetes client, which sent it
before and still does behind a proxy. The server is a process of its own that answers at
once, over TLS. The figure is this thread's CPU time, which does not count waiting.
"""

import multiprocessing
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import click
from kubernetes import client

from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.apiserver.client import JSON
from gpushare.kube.cluster import PodTarget
from gpushare.kube.names import EXTENDER_SERVER_NAME
from gpushare.server.tls import TlsFiles, make_server_context
from tests.testbed.certificates import Certificates, certificates

_CALLS, _TURNS = 200, 10
_POD = PodTarget("default", "pod", "0a5f0b0d-1d1b-4d7c-8d3b-1c1b1a191817")
_PATH = "/api/v1/namespaces/default/pods/pod/binding"
_ANNOTATIONS = {"baidu.com/vcuda-placement": "x" * 200}
_BODY = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {
        "name": _POD.name,
        "namespace": _POD.namespace,
        "uid": _POD.uid,
        "annotations": _ANNOTATIONS,
    },
    "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
}
_STATUS = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}\n'
_CREATED = (
    b"HTTP/1.1 201 Created\r\nAudit-Id: 0a5f0b0d-1d1b-4d7c-8d3b-1c1b1a191817\r\n"
    b"Cache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
    b"X-Kubernetes-Pf-Flowschema-Uid: 0a5f0b0d-1d1b-4d7c-8d3b-1c1b1a191817\r\n"
    b"X-Kubernetes-Pf-Prioritylevel-Uid: 0a5f0b0d-1d1b-4d7c-8d3b-1c1b1a191817\r\n"
    b"Date: Mon, 01 Jan 2001 00:00:00 GMT\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_STATUS), _STATUS)
)
"""As kube-apiserver answers a Binding."""


def _answer(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        link, _ = listener.accept()
        Thread(target=_answer_one, args=(link, context), daemon=True).start()


def _answer_one(link: socket.socket, context: ssl.SSLContext) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(link, server_side=True) as tls:
        text = b""
        while part := tls.recv(1 << 16):
            text += part
            # A client may send head and body apart; the body ends with the Binding.
            if text.endswith(b"}}"):
                text = b""
                tls.sendall(_CREATED)


def _serve(listener: socket.socket, tls: Certificates) -> None:
    _answer(listener, make_server_context(TlsFiles(*tls.settings.values())))


@contextmanager
def _api_server() -> Iterator[client.ApiClient]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        tls = certificates(Path(folder) / "tls")
        child = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listener, tls), daemon=True
        )
        child.start()
        settings = client.Configuration()
        settings.host = f"https://127.0.0.1:{listener.getsockname()[1]}"
        settings.ssl_ca_cert = tls.path("ca.crt")
        settings.cert_file = tls.path("client.crt")
        settings.key_file = tls.path("client.key")
        settings.assert_hostname = settings.tls_server_name = EXTENDER_SERVER_NAME
        settings.api_key = {"BearerToken": "Bearer abc"}
        try:
            yield client.ApiClient(settings)
        finally:
            child.terminate()
            child.join()


def _send(api: client.ApiClient) -> None:
    headers = {"Accept": JSON, "Content-Type": JSON}
    request = api.param_serialize(
        "POST",
        _PATH,
        header_params=headers,
        body=_BODY,
        auth_settings=["BearerToken"],
    )
    api.call_api(*request, _request_timeout=(3.0, 10.0)).read()


@click.command("bind")
def bind() -> None:
    """Send Bindings each way in turns, and show the CPU time of one."""
    with _api_server() as api:
        ours = ApiServer(api)
        ways: dict[str, Callable[[], None]] = {
            "kubernetes client": lambda: _send(api),
            "gpushare.kube.apiserver.post": lambda: ours.bind(
                _POD, "node", _ANNOTATIONS, timeout_s=10.0
            ),
        }
        cpu_s: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(_TURNS):
            for name, send in ways.items():
                began = time.thread_time()
                for _ in range(_CALLS):
                    send()
                cpu_s[name].append((time.thread_time() - began) / _CALLS)
        ours.close()
    for name, each in cpu_s.items():
        click.echo(f"{name}: {statistics.median(each) * 1000:.3f} ms of CPU a bind")
