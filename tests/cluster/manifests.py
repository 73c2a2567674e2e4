"""Pods and Deployments as seed 001 has them, with defaults."""

from typing import Any

from tests.testbed.rest import Json

MEMORY, CORE = "baidu.com/vcuda-memory", "baidu.com/vcuda-core"
IMAGE = "docker.io/nvidia/cuda:11.0-base"
SEED_COMMAND = 'while true; do echo $(date "+%Y-%m-%d %H:%M:%S"); sleep 1; done'
"""The command that seed 001 gives its services, so that they go on running."""


def deployment(
    name: str,
    units: int | None,
    cores: int | None = 1,
    *,
    replicas: int = 1,
    **spec: Any,
) -> Json:
    """A Deployment as seed 001 has it: the image, and a command that goes on."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**pod_spec(container("main", units, cores)), **spec},
            },
        },
    }


def pod(name: str, *containers: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"test": "pod"}},
        "spec": {**pod_spec(*containers), **spec},
    }


def pod_spec(*containers: Json) -> Json:
    return {
        "containers": list(containers),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
    }


def container(
    name: str = "main",
    units: int | None = None,
    cores: int | None = None,
    *,
    script: str = SEED_COMMAND,
    **other: Any,
) -> Json:
    limits = {}
    if units is not None:
        limits[MEMORY] = str(units)
    if cores is not None:
        limits[CORE] = str(cores)
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": limits},
        **other,
    }
