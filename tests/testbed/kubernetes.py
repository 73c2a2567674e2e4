"""The Kubernetes that the test bed runs; ``KUBERNETES=1.33`` asks for another version.

``controlplane/go.mod`` pins one. For another version a module is written into the
cache, with the replacements that ``go.mod`` of that Kubernetes names, and built there.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.testbed.binaries import (
    CONTROL_PLANE,
    MODULE,
    NODE,
    Binaries,
    Tool,
    ensure_binaries,
    kubernetes_in,
    only_builder,
)
from tests.testbed.toolchain import (
    BinariesUnavailableError,
    Version,
    find_go,
    go_environment,
    wanted_go,
)

RELEASES = ("1.32.13", "1.33.13", "1.34.4", "1.35.4", "1.36.3", "1.37.2")
"""The newest patch of each minor version that is tried."""

INSTEAD = {("1.32.13", "k8s.io/endpointslice"): "v0.32.12"}
"""Parts that the module proxy lacks in the version that belongs to a release."""

_STAGED = re.compile(r"^\s*(?:replace )?(\S+) => \./staging/\S+$", re.MULTILINE)
_LANGUAGE = re.compile(r"^(?:go|godebug) [^(\n]+$", re.MULTILINE)


def release(wanted: str) -> str:
    """Give the whole version: the newest patch that is listed for ``1.33``."""
    number = wanted.removeprefix("v")
    if re.fullmatch(r"1\.\d+\.\d+", number):
        return number
    for each in RELEASES:
        if each.rpartition(".")[0] == number:
            return each
    raise ValueError(
        f"no Kubernetes {wanted!r} is listed: give one of "
        f"{', '.join(each.rpartition('.')[0] for each in RELEASES)}, or a whole version"
    )


def pinned() -> str:
    """Give the version that is used if none is asked for."""
    return kubernetes_in((MODULE / "go.mod").read_text())


def chosen(environment: Mapping[str, str]) -> str:
    """Give the version that ``KUBERNETES`` in the environment asks for.

    Raises ``BinariesUnavailableError`` if there is no such version.
    """
    wanted = environment.get("KUBERNETES")
    try:
        return release(wanted) if wanted else pinned()
    except ValueError as error:
        raise BinariesUnavailableError("KUBERNETES", str(error)) from error


def numbers(version: str) -> Version:
    """Give ``1.36.3`` as ``(1, 36, 3)``, which can be compared."""
    return tuple(map(int, version.split(".")))


def lacks(running: str, first: str) -> bool:
    """Whether a version that was asked for is older than ``first``.

    The pinned one never is: it runs all tests, and one that needs more fails there.
    """
    return running != pinned() and numbers(running) < numbers(first)


def ensure_kubernetes(
    cache: Path, tools: tuple[Tool, ...] = CONTROL_PLANE, version: str = ""
) -> Binaries:
    """Give Kubernetes' binaries, those of ``KUBERNETES`` if no version is given.

    Raises ``BinariesUnavailableError`` where they can neither be found nor built.
    """
    wanted = version or chosen(os.environ)
    module = MODULE if wanted == pinned() else _module(cache, wanted)
    return ensure_binaries(cache, module, tools)


def go_mod(version: str, of_kubernetes: str) -> str:
    """Write the module that builds this version, from Kubernetes' own go.mod.

    ``go`` and ``godebug`` are taken over, because Go's defaults follow those of the
    module in which a program is built.
    """
    staged = "v0" + version.removeprefix("1")
    lines = ["module gpushare.test/cluster", *_LANGUAGE.findall(of_kubernetes)]
    lines.append(f"require k8s.io/kubernetes v{version}")
    lines += [
        f"replace {name} => {name} {INSTEAD.get((version, name), staged)}"
        for name in _STAGED.findall(of_kubernetes)
    ]
    return "\n\n".join(lines) + "\n"


def _module(cache: Path, version: str) -> Path:
    """Give the folder of the module, with every checksum that its builds need."""
    folder = cache / "modules" / f"kubernetes-{version}"
    if not folder.exists():
        with only_builder(cache):
            if not folder.exists():
                _write_module(cache, version, folder)
    return folder


def _write_module(cache: Path, version: str, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as unfinished:
        made = Path(unfinished) / "module"
        made.mkdir()
        go = find_go(wanted_go((MODULE / "go.mod").read_text()), cache)
        asked = ["mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
        told = json.loads(_go(go, made, asked))
        text = go_mod(version, Path(told["GoMod"]).read_text())
        (made / "go.mod").write_text(text)
        packages = [tool.package for tool in (*CONTROL_PLANE, *NODE)]
        _go(go, made, ["list", "-mod=mod", "-deps", *packages])
        made.rename(folder)


def _go(go: Path, folder: Path, arguments: list[str]) -> str:
    done = subprocess.run(
        [go, *arguments],
        cwd=folder,
        env=go_environment(go),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BinariesUnavailableError(
            f"`go {' '.join(arguments[:2])}` failed: {''.join(said[-1:])}",
            "look whether the Go module source (GOPROXY) has this version",
        )
    return done.stdout
