"""A page of metrics as the exporter's are, the rules over it, and what is asked.

The real adapter's answers lie beside this file; ``python -m tests.monitoring.record
ADAPTER`` writes them anew, where ADAPTER is the program of
``sigs.k8s.io/prometheus-adapter``.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.monitoring.adapter import ROOT
from tests.testbed.manifests import FOLDER
from tests.testbed.rest import Json

SEED = FOLDER / "autoscaling" / "adapter-rules-seed.yaml"
MENDED = FOLDER / "autoscaling" / "adapter-rules.yaml"
GPU_UTIL = "DCGM_FI_DEV_GPU_UTIL"
FB_USED = "DCGM_FI_DEV_FB_USED"
SM_UTIL = "DCGM_CUSTOM_PROCESS_SM_UTIL"
MEM_USED = "DCGM_CUSTOM_PROCESS_MEM_USED"
ALLOCATED = "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"
RATIO = "DCGM_CUSTOM_PROCESS_GPU_MEM_USED_RATIO"

NODES = {"node-1": ((20, 2100), (0, 100)), "node-2": ((40, 4000),)}
"""Each card's utilization and memory in use."""
PODS = (
    ("node-1", "default", "bert-a", 23, 512, 1024),
    ("node-1", "default", "bert-b", 0, 0, 1024),
    # One StatefulSet's pod in two namespaces.
    ("node-1", "shop", "web-0", 10, 512, 1024),
    ("node-2", "bank", "web-0", 30, 256, 1024),
)
"""Node, namespace, pod, SM, memory used and allotted."""


def line(name: str, value: float, **labels: str) -> str:
    pairs = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
    return f"{name}{{{pairs}}} {value}"


def page() -> str:
    lines = []
    for node, cards in NODES.items():
        for gpu, (busy, used) in enumerate(cards):
            card = {"gpu": str(gpu), "UUID": f"GPU-{node}-{gpu}", "NodeName": node}
            lines += [line(GPU_UTIL, busy, **card), line(FB_USED, used, **card)]
    for node, namespace, pod, sm, used, allotted in PODS:
        whose = {"NamespaceName": namespace, "PodName": pod, "ContainerName": "main"}
        values = ((SM_UTIL, sm), (MEM_USED, used), (ALLOCATED, allotted))
        lines += [line(name, value, NodeName=node, **whose) for name, value in values]
    # A process outside Kubernetes, on node-1.
    nobody = {"NamespaceName": "", "PodName": "", "ContainerName": ""}
    lines.append(line(MEM_USED, 100, NodeName="node-1", **nobody))
    return "\n".join([*lines, ""])


Answers = dict[str, tuple[int, Json]]
"""Status and body by path; of a refusal the status alone counts."""
METRICS = (GPU_UTIL, FB_USED, SM_UTIL, MEM_USED, RATIO, "NO_SUCH_METRIC")
LABELS = {"app": "bert"}


def pods() -> list[tuple[str, str]]:
    """Give namespace and name of each pod of the scene; all have ``LABELS``."""
    # No metric tells of the last one yet.
    return [*((space, name) for _, space, name, *_ in PODS), ("default", "starting")]


def names(resource: str, namespace: str, selector: str) -> list[str] | None:
    """Give what a selector finds in the scene; the chart's account lists no nodes."""
    if resource == "nodes":
        return None
    if selector not in {"", "app=bert"}:
        return []
    return [name for space, name in pods() if space == namespace]


def paths() -> Iterator[str]:
    yield ROOT
    for metric in METRICS:
        yield from (
            f"{ROOT}/nodes/{node}/{metric}" for node in ("node-1", "*", "nobody")
        )
        for space in ("default", "shop"):
            yield f"{ROOT}/namespaces/{space}/metrics/{metric}"
            every = f"{ROOT}/namespaces/{space}/pods/*/{metric}"
            yield every
            yield f"{every}?labelSelector=app%3Dbert"
            yield f"{every}?labelSelector=app%3Dnone"
        yield f"{ROOT}/namespaces/shop/pods/web-0/{metric}"
        yield f"{ROOT}/namespaces/default/pods/starting/{metric}"


def lasting(status: int, body: Json) -> tuple[int, Json]:
    """Leave out what differs from one moment to the next, and the order."""
    if status != 200:
        return status, {}
    kept: Json = json.loads(json.dumps(body))
    for item in kept.get("items", ()):
        del item["timestamp"]
    for key in ("items", "resources"):
        if key in kept:
            kept[key].sort(key=partial(json.dumps, sort_keys=True))
    return status, kept


def recorded(rules: Path) -> Answers:
    """Give the real adapter's answers with these rules."""
    answers = json.loads(_file(rules).read_text())
    return {path: tuple(answer) for path, answer in answers.items()}


def record(rules: Path, answers: Answers) -> None:
    """Write them, a path on each line."""
    lines = [
        f"{json.dumps(path)}: {json.dumps(body)}" for path, body in answers.items()
    ]
    _file(rules).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _file(rules: Path) -> Path:
    return Path(__file__).with_name(f"answers-{rules.stem}.json")
