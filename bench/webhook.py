"""One review over TLS, in turns with an echo webhook of the same body size."""

import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from bench.client import Line, in_turns
from bench.server import ECHO
from gpushare.addresses import find_free_address
from gpushare.kube import names
from gpushare.kube.cluster import Json
from tests.testbed.certificates import Certificates, certificates

ROUNDS = 2000
_START_WITHIN_S = 60.0
_COMMAND = (
    sys.executable,
    "-m",
    "gunicorn",
    "--config",
    "python:bench.webhook_gunicorn",
    "bench.webhook_server:build()",
)


class TlsLine(Line):
    """One kept-alive connection over TLS, as the API server keeps some."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        plain = self._socket
        self._socket = context.wrap_socket(plain, server_hostname="localhost")


def webhook_table(console: Console) -> list[dict[str, Any]]:
    """Measure each kind of review, and show."""
    table = Table("review", "bytes", "echo p50", "p50/p95/p99 ms", "x echo")
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        held = certificates(Path(name) / "tls")
        with served(held) as port, closing(TlsLine(port, held.client(None))) as line:
            for what, (path, pod) in reviews().items():
                row = measured(line, path, pod) | {"review": what}
                rows.append(row)
                table.add_row(
                    what,
                    f"{row['bytes']:,}",
                    f"{row['echo']['p50']:.2f}",
                    "{p50:.2f} / {p95:.2f} / {p99:.2f}".format(**row["webhook"]),
                    f"{row['ratio']:.2f}",
                )
    console.print(table)
    return rows


def measured(line: Line, path: str, pod: Json) -> dict[str, Any]:
    """Ask for one review and the echo of it in turns."""
    body = orjson.dumps(review_of(pod))
    calls = {
        "echo": (line, prepared(ECHO, body)),
        "webhook": (line, prepared(path, body)),
    }
    timed = in_turns(calls, ROUNDS)
    medians = {name: timing.percentile(0.5) for name, timing in timed.items()}
    found: dict[str, Any] = {name: timing.as_ms() for name, timing in timed.items()}
    ratio = round(medians["webhook"] / medians["echo"], 3)
    return {"bytes": len(body), "ratio": ratio} | found


def prepared(path: str, body: bytes) -> bytes:
    """Write the bytes of one POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextmanager
def served(held: Certificates) -> Iterator[int]:
    """Run the webhook; gives its port once it answers."""
    port, public = find_free_address().port, find_free_address().port
    environment = os.environ | {
        "GPUSHARE_LISTEN": f"127.0.0.1:{port}",
        "GPUSHARE_PUBLIC_LISTEN": f"127.0.0.1:{public}",
        "GPUSHARE_TLS_CERT": held.path("server.crt"),
        "GPUSHARE_TLS_KEY": held.path("server.key"),
        "GPUSHARE_BITFUSION_CARD_MIB": "auto",
        "GPUSHARE_LOG_LEVEL": "WARNING",
    }
    child = subprocess.Popen(_COMMAND, env=environment)
    try:
        wait_ready(child, port, held.client(None))
        yield port
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


def wait_ready(
    child: subprocess.Popen[bytes], port: int, context: ssl.SSLContext
) -> None:
    """Wait until the webhook has read its nodes."""
    ask = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    deadline = time.monotonic() + _START_WITHIN_S
    while child.poll() is None and time.monotonic() < deadline:
        try:
            with closing(TlsLine(port, context)) as line:
                line.post(ask)
                return
        except (OSError, RuntimeError):
            time.sleep(0.1)
    raise RuntimeError("the webhook did not come up")


def reviews() -> dict[str, tuple[str, Json]]:
    """Give each kind of pod, and the path that is asked about it."""
    asks_all = {names.MEMORY: "20", names.CORE: "1"}
    bitfusion = {"bitfusion.io/gpu-amount": "1", "bitfusion.io/gpu-percent": "50"}
    translated = pod_json(bitfusion)
    translated["metadata"]["annotations"] = {"auto-management/bitfusion": "all"}
    return {
        "in order": ("/mutate", pod_json(asks_all)),
        "core defaulted": ("/mutate", pod_json({names.MEMORY: "20"})),
        "for Bitfusion": ("/mutate", translated),
        "denied": ("/mutate", pod_json({names.MEMORY: "20", names.CORE: "150"})),
        "validated": ("/validate", pod_json(asks_all)),
    }


def pod_json(asked: Json) -> Json:
    """Describe a pod of a Deployment as an API server shows it to a webhook."""
    mounts = [
        {"name": "code", "mountPath": "/benchmark"},
        {
            "name": "kube-api-access-x7k2p",
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            "readOnly": True,
        },
    ]
    main = {
        "name": "main",
        "image": "nvcr.io/nvidia/tensorflow:19.07-py3",
        "imagePullPolicy": "IfNotPresent",
        "command": ["python /benchmark/tf_cnn_benchmarks.py --model=inception3"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-{i}"} for i in range(12)],
        "resources": {"limits": asked, "requests": dict(asked)},
        "volumeMounts": mounts,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    sidecar = main | {"name": "sidecar", "resources": {}, "command": ["/proxy"]}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app-6c9f8d"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "app-6c9f8d-",
            "namespace": "default",
            "labels": {"app": "app", "pod-template-hash": "6c9f8d"},
            "ownerReferences": [owner],
            "managedFields": managed_fields(),
        },
        "spec": {
            "containers": [main, sidecar],
            "volumes": [
                {"name": "code", "hostPath": {"path": "/home/benchmarks"}},
                {"name": "kube-api-access-x7k2p", "projected": projected()},
            ],
            "schedulerName": "default-scheduler",
            "restartPolicy": "Always",
            "serviceAccountName": "default",
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute"}
                for key in ("node.kubernetes.io/not-ready", "example.com/gpu")
            ],
        },
        "status": {},
    }


def projected() -> Json:
    """Describe the volume that every pod is given by the API server."""
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    items = [{"key": "ca.crt", "path": "ca.crt"}]
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": items}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    return {"sources": sources, "defaultMode": 420}


def managed_fields() -> list[Json]:
    """Describe who set what, which is a third of a pod's bytes."""
    env = {f'k:{{"name":"SETTING_{i}"}}': {".": {}, "f:name": {}} for i in range(12)}
    fields = {"f:containers": {'k:{"name":"main"}': {"f:env": env, "f:image": {}}}}
    entry = {"manager": "kube-controller-manager", "operation": "Update"}
    return [entry | {"fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}}]


def review_of(pod: Json) -> Json:
    """Put a pod into the question that an API server asks."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    account = "system:serviceaccount:kube-system:replicaset-controller"
    groups = ["system:serviceaccounts", "system:authenticated"]
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": account, "groups": groups},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request,
    }
