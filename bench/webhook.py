"""One review over TLS, in turns with an echo webhook of the same body size."""

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from bench.client import Line, format_ms, post_in_turns, prepare_post
from bench.server import ECHO
from bench.serving import serve_webhook
from gpushare.kube import names
from gpushare.kube.cluster import Json
from tests.testbed.certificates import certificates

ROUNDS = 2000


def webhook_table(console: Console) -> list[dict[str, Any]]:
    """Measure each kind of review, and show."""
    table = Table("review", "bytes", "echo p50", "p50/p95/p99 ms", "x echo")
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        tls = certificates(Path(folder) / "tls")
        settings = {
            "GPUSHARE_TLS_CERT": tls.path("server.crt"),
            "GPUSHARE_TLS_KEY": tls.path("server.key"),
            "GPUSHARE_BITFUSION_CARD_MIB": "auto",
        }
        with (
            serve_webhook(settings) as served,
            closing(Line(served.port, tls.client(None))) as line,
        ):
            for what, (path, pod) in reviews().items():
                row = measure_review(line, path, pod) | {"review": what}
                rows.append(row)
                table.add_row(
                    what,
                    f"{row['bytes']:,}",
                    f"{row['echo']['p50']:.2f}",
                    format_ms(row["webhook"]),
                    f"{row['ratio']:.2f}",
                )
    console.print(table)
    return rows


def measure_review(line: Line, path: str, pod: Json) -> dict[str, Any]:
    """Ask for one review and the echo of it in turns."""
    review = review_of(pod)
    calls = {
        "echo": (line, prepare_post(ECHO, review)),
        "webhook": (line, prepare_post(path, review)),
    }
    timings = post_in_turns(calls, ROUNDS)
    medians = {name: timing.percentile(0.5) for name, timing in timings.items()}
    ratio = round(medians["webhook"] / medians["echo"], 3)
    times: dict[str, Any] = {name: timing.as_ms() for name, timing in timings.items()}
    return {"bytes": len(orjson.dumps(review)), "ratio": ratio} | times


def reviews() -> dict[str, tuple[str, Json]]:
    """Give each kind of pod, and the path that is asked about it."""
    whole = {names.MEMORY: "20", names.CORE: "1"}
    bitfusion = {"bitfusion.io/gpu-amount": "1", "bitfusion.io/gpu-percent": "50"}
    translated = pod_json(bitfusion)
    translated["metadata"]["annotations"] = {"auto-management/bitfusion": "all"}
    return {
        "in order": ("/mutate", pod_json(whole)),
        "core defaulted": ("/mutate", pod_json({names.MEMORY: "20"})),
        "for Bitfusion": ("/mutate", translated),
        "denied": ("/mutate", pod_json({names.MEMORY: "20", names.CORE: "150"})),
        "validated": ("/validate", pod_json(whole)),
    }


def pod_json(amounts: Json) -> Json:
    """Describe a pod of a Deployment as an API server shows it to a webhook."""
    main = {
        "name": "main",
        "image": "nvcr.io/nvidia/tensorflow:19.07-py3",
        "imagePullPolicy": "IfNotPresent",
        "command": ["python /benchmark/tf_cnn_benchmarks.py --model=inception3"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-{i}"} for i in range(12)],
        "resources": {"limits": amounts, "requests": dict(amounts)},
        "volumeMounts": [
            {"name": "code", "mountPath": "/benchmark"},
            {
                "name": _TOKEN_VOLUME,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                "readOnly": True,
            },
        ],
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
        "spec": pod_spec([main, sidecar]),
        "status": {},
    }


_TOKEN_VOLUME = "kube-api-access-x7k2p"


def pod_spec(containers: list[Json]) -> Json:
    """Describe what an API server adds around containers, as a volume for tokens."""
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    items = [{"key": "ca.crt", "path": "ca.crt"}]
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": items}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    projected = {"sources": sources, "defaultMode": 420}
    return {
        "containers": containers,
        "volumes": [
            {"name": "code", "hostPath": {"path": "/home/benchmarks"}},
            {"name": _TOKEN_VOLUME, "projected": projected},
        ],
        "schedulerName": "default-scheduler",
        "restartPolicy": "Always",
        "serviceAccountName": "default",
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute"}
            for key in ("node.kubernetes.io/not-ready", "example.com/gpu")
        ],
    }


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
