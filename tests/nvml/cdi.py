"""A CDI specification by which a container runtime injects the stub's cards."""

import os
import platform
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tests.nvml.build import SONAME, STATE_VARIABLE, Stub
from tests.nvml.driver import StubCard

KIND = "nvidia.com/gpu"
INSIDE = "/run/nvidia-stub"
READ_ONLY = ["ro", "nosuid", "nodev", "bind"]

Marks = Literal["markers", "nodes"]
"""What shows a card inside: a marker file, or its device node (made by root alone)."""


def cdi_spec(
    stub: Stub,
    state: Path,
    cards: Sequence[StubCard],
    folder: Path,
    marks: Marks = "markers",
) -> dict[str, Any]:
    """Give the specification, and make in ``folder`` what it refers to on this node.

    ``state`` is the driving file: its folder is mounted and not the file, which is
    written anew at each change. Devices are named by UUID; ``all`` has every card.
    """
    shown = {card.uuid: _shown(card, folder, marks) for card in cards}
    shared = [
        _mount(stub.smi, "/usr/bin/nvidia-smi"),
        _mount(state.parent, f"{INSIDE}/state"),
    ]
    every: dict[str, list[Any]] = {}
    for edits in shown.values():
        for what, ones in edits.items():
            every.setdefault(what, []).extend(ones)
    devices = [*shown.items(), *([("all", every)] if every else [])]
    return {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "containerEdits": {"mounts": shared},
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices],
    }


def with_library(spec: dict[str, Any], stub: Stub) -> dict[str, Any]:
    """Let every container of the specification have the driver's library, too.

    As the real one has: whoever is given cards can ask NVML for them.
    """
    edits = spec["containerEdits"]
    inside = f"/usr/lib/{platform.machine()}-linux-gnu/{SONAME}"
    mounts = [*edits["mounts"], _mount(stub.library, inside)]
    state = f"{STATE_VARIABLE}={INSIDE}/state/driver"
    return {**spec, "containerEdits": {**edits, "mounts": mounts, "env": [state]}}


def _shown(card: StubCard, folder: Path, marks: Marks) -> dict[str, list[Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    if marks == "markers":
        marker = folder / card.uuid
        marker.touch()
        return {"mounts": [_mount(marker, f"{INSIDE}/cards/{card.uuid}")]}
    node = folder / f"nvidia{card.minor}"
    if not node.exists():
        # Any character device will do; this one is /dev/null's likeness.
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return {
        "deviceNodes": [{"path": f"/dev/nvidia{card.minor}", "hostPath": str(node)}]
    }


def _mount(host: Path, inside: str) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": inside, "options": READ_ONLY}
