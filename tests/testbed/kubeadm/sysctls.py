"""Kernel settings that a kubelet changes for the whole machine, kept and put back."""

import contextlib
from pathlib import Path

CHANGED_BY_KUBELET = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
)


def read() -> dict[str, str]:
    """Give the values as they are now; a setting that this kernel lacks is left out."""
    return {name: _file(name).read_text().strip() for name in _present()}


def write_back(saved: dict[str, str]) -> None:
    for name, value in saved.items():
        # Best effort, because a container of ours may own some of them read-only.
        with contextlib.suppress(OSError):
            _file(name).write_text(value)


def _present() -> list[str]:
    return [name for name in CHANGED_BY_KUBELET if _file(name).exists()]


def _file(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))
