"""A page of metrics as the exporter's are, and the rules over it."""

import json

from tests.testbed.manifests import FOLDER

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
    told = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
    return f"{name}{{{told}}} {value}"


def page() -> str:
    lines = []
    for node, cards in NODES.items():
        for gpu, (busy, used) in enumerate(cards):
            card = {"gpu": str(gpu), "UUID": f"GPU-{node}-{gpu}", "NodeName": node}
            lines += [line(GPU_UTIL, busy, **card), line(FB_USED, used, **card)]
    for node, namespace, pod, sm, used, allotted in PODS:
        whose = {
            "NodeName": node,
            "NamespaceName": namespace,
            "PodName": pod,
            "ContainerName": "main",
        }
        lines += [
            line(SM_UTIL, sm, **whose),
            line(MEM_USED, used, **whose),
            line(ALLOCATED, allotted, **whose),
        ]
    # A process outside Kubernetes, on node-1.
    nobody = {"NamespaceName": "", "PodName": "", "ContainerName": ""}
    lines.append(line(MEM_USED, 100, NodeName="node-1", **nobody))
    return "\n".join([*lines, ""])
