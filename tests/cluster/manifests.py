"""Pods, Deployments and cards as the seeds have them, with defaults."""

from collections.abc import Mapping
from typing import Any

from tests.nvml.driver import StubCard, stub_card
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.rest import Json

IMAGE = "docker.io/nvidia/cuda:11.0-base"
SEED_COMMAND = 'while true; do echo $(date "+%Y-%m-%d %H:%M:%S"); sleep 1; done'
"""The command that seed 001 gives its services, so that they go on running.

A first process heeds no signal by itself, so that kubelet ends it after two seconds.
"""
IDLE = "trap exit TERM; sleep 100000 & wait"
"""Goes on as well, but ends as soon as it is told to."""


def deployment(
    name: str,
    units: int | None,
    cores: int | None = 1,
    *,
    replicas: int = 1,
    script: str = IDLE,
    **spec: Any,
) -> Json:
    """A Deployment as seed 001 has it: the image, and a command that goes on."""
    labels = {"app": name}
    main = container("main", units, cores, script=script)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**pod_spec(main), **spec},
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
    script: str = IDLE,
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


ONE_CARD_APPS: Mapping[str, int] = {
    "nvidia-cuda11-base-1": 50,
    "nvidia-cuda11-base-2": 40,
    "nvidia-cuda11-base-3": 1,
}
"""Units of 256 MiB of the one RTX 3090."""
TWO_CARD_APPS: Mapping[str, int] = {
    "edgekit-gpu-cuda10-2": 4,
    "edgekit-gpu-cuda10-2-2": 20,
    "edgekit-gpu-cuda10-2-3": 20,
}
"""Units of 256 MiB of the two P4."""
LINGER = "until [ -e /tmp/end ]; do sleep 0.2; done; exit"


def replaced_first(made: Json) -> Json:
    """Let a Deployment give up its old pod before the new one runs.

    As the seed's platform does: else the new pod would wait for room, and the old one
    would stay until then.
    """
    made["spec"]["strategy"] = {"rollingUpdate": {"maxUnavailable": 1}}
    return made


def lingering(name: str, units: int) -> Json:
    """Make an application of which each pod's end waits for its file ``/tmp/end``."""
    one = container("main", units, 1, script=f"trap '{LINGER}' TERM; {SEED_COMMAND}")
    made = deployment(name, None, containers=[one], terminationGracePeriodSeconds=120)
    return replaced_first(made)


RTX_3090 = StubCard(
    "GPU-2b4e7c11-0d63-4f0e-9d4b-8a1f0c5e7a92", memory_mib=24259, model="RTX 3090"
)
"""Seed 001's single card: 94 units."""
TWO_P4 = [
    StubCard("GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"),
    StubCard(
        "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a", bus="00000000:00:05.0", minor=1
    ),
]
"""Seed 001's pair: 29 units each."""
THREE_OF_4_GIB = [stub_card(number, memory_mib=4096) for number in range(3)]
"""16 units each."""
TWO_OF_4_GIB = THREE_OF_4_GIB[:2]
EIGHT_P4 = [stub_card(number) for number in range(8)]
