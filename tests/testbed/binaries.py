"""Build the Kubernetes binaries once: ``python -m tests.testbed.binaries``.

They are kept outside the tree, in ``$GPUSHARE_TESTBED_CACHE``, else
``$XDG_CACHE_HOME/gpushare-testbed``, else ``~/.cache/gpushare-testbed``.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.toolchain import (
    BinariesUnavailableError,
    find_go,
    go_environment,
    wanted_go,
)

HERE = Path(__file__).parent
MODULE = HERE / "controlplane"


@dataclass(frozen=True)
class Tool:
    """One binary: its file name, and the Go package it is built from."""

    name: str
    package: str

    @property
    def built_as(self) -> str:
        """The name that ``go build -o FOLDER`` gives: the package's, less ``/v3``."""
        return re.sub(r"/v\d+$", "", self.package).rsplit("/", 1)[-1]


CONTROL_PLANE = (
    Tool("etcd", "go.etcd.io/etcd/server/v3"),
    Tool("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Tool("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Tool("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Tool("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
)

NODE = (
    Tool("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    Tool("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
    Tool("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
)
RUNTIME_MODULE = HERE / "runtime"
RUNTIME = (
    Tool("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    Tool(
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    Tool("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
)
PROMETHEUS_MODULE = HERE / "prometheus3"
PROMETHEUS = (
    Tool("prometheus", "github.com/prometheus/prometheus/cmd/prometheus"),
    Tool("promtool", "github.com/prometheus/prometheus/cmd/promtool"),
)
NVIDIA_MODULE = HERE / "nvidia"
NVIDIA = (
    Tool(
        "nvidia-container-runtime",
        "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime",
    ),
    Tool("nvidia-ctk", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"),
)
CDI_HOOK = (
    Tool(
        "nvidia-cdi-hook",
        "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook",
    ),
)
"""Of the same module, in a folder of its own: no cluster runs it."""

HELM_MODULE, HELM_4_MODULE = HERE / "helm", HERE / "helm4"
HELM = (Tool("helm", "helm.sh/helm/v3/cmd/helm"),)
HELM_4 = (Tool("helm", "helm.sh/helm/v4/cmd/helm"),)


@dataclass(frozen=True)
class Binaries:
    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Say where binaries are kept between runs."""
    if chosen := environment.get("GPUSHARE_TESTBED_CACHE"):
        return Path(chosen)
    xdg = environment.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "gpushare-testbed"


def ensure_binaries(
    cache: Path, module: Path = MODULE, tools: tuple[Tool, ...] = CONTROL_PLANE
) -> Binaries:
    """Give the binaries, built now (minutes) where the cache has none of this kind.

    Raises ``BinariesUnavailableError`` where they can neither be found nor built.
    """
    if sys.platform != "linux":
        raise BinariesUnavailableError(
            f"the Kubernetes binaries do not run on {sys.platform}", "use Linux"
        )
    folder = cache / f"{module.name}-{_fingerprint(module, tools)}"
    if not folder.exists():
        with only_builder(cache):
            if not folder.exists():
                _build(cache, module, tools, folder)
    return Binaries(folder)


def kubernetes_in(go_mod: str) -> str:
    """Give the Kubernetes that a module builds, such as ``1.36.3``; "" if none."""
    line = r"^\s*(?:require )?k8s\.io/kubernetes v(\S+)"
    found = re.search(line, go_mod, re.MULTILINE)
    return found[1] if found else ""


def build_flags(go_mod: str) -> list[str]:
    built = kubernetes_in(go_mod)
    # Only Kubernetes' own binaries say a version that others compare.
    stamp = f" -X k8s.io/component-base/version.gitVersion=v{built}" if built else ""
    # Prometheus finds targets in thirty clouds; with none of them it builds in a half
    # of the time.
    without = ["-tags=remove_all_sd"] if "prometheus/cmd/prometheus" in go_mod else []
    always = ["-trimpath", "-buildvcs=false", "-mod=readonly"]
    return [*without, *always, f"-ldflags=-s -w{stamp}"]


def needs_c(module: Path) -> bool:
    """Say whether this module calls C: NVIDIA's talks to the driver's library."""
    return module == NVIDIA_MODULE


def _fingerprint(module: Path, tools: tuple[Tool, ...]) -> str:
    go_mod = (module / "go.mod").read_text()
    # No go.sum where the standard library will do; no sources where all is others'.
    files = [*module.glob("go.sum"), *sorted(module.glob("*.go"))]
    sources = [go_mod, *(file.read_text() for file in files)]
    text = "\n".join([*sources, *build_flags(go_mod), *map(str, tools)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


KEPT = 3
"""Builds of a kind that stay, so that checkouts of different sources take turns."""


def drop_all_but_newest(builds: Iterable[Path]) -> None:
    """Remove all but ``KEPT`` of these files or folders."""
    for old in sorted(builds, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


@contextmanager
def only_builder(cache: Path) -> Iterator[None]:
    """Wait until no other process builds in this folder, which is made.

    What an interrupted build left there is removed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # The kernel lets go of it with the process, so no stale lock can remain.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for interrupted in cache.glob("unfinished-*"):
            shutil.rmtree(interrupted)
        yield


def _build(cache: Path, module: Path, tools: tuple[Tool, ...], folder: Path) -> None:
    started = time.monotonic()
    go_mod = (module / "go.mod").read_text()
    go = find_go(wanted_go(go_mod), cache)
    print(f"building {', '.join(tool.name for tool in tools)} with {go}", flush=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as unfinished:
        output = Path(unfinished) / "bin"
        output.mkdir()
        _go_build(go, module, [*build_flags(go_mod), "-o", f"{output}/"], tools)
        for tool in tools:
            (output / tool.built_as).rename(output / tool.name)
        output.rename(folder)
    print(f"built {folder} in {time.monotonic() - started:.0f} s", flush=True)


def _go_build(
    go: Path, module: Path, flags: list[str], tools: tuple[Tool, ...]
) -> None:
    with subprocess.Popen(
        [go, "build", "-v", *flags, *(tool.package for tool in tools)],
        cwd=module,
        env={**go_environment(go), "CGO_ENABLED": "1" if needs_c(module) else "0"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        last_words = _show_progress(process.stderr)
    if process.returncode != 0:
        sys.stderr.write("\n".join([*last_words, ""]))
        raise BinariesUnavailableError(
            f"`go build` in {module.name} failed: {''.join(last_words[-1:])}",
            "read its output above; the first build needs a reachable Go module "
            "source (GOPROXY) and 4 GB of disk",
        )


def _show_progress(lines: Iterator[str], every_s: float = 5.0) -> list[str]:
    """Print now and then how many packages are compiled; give the last ten lines."""
    last_words: list[str] = []
    shown_at = time.monotonic()
    for number, line in enumerate(lines, 1):
        last_words = [*last_words[-9:], line.rstrip()]
        if time.monotonic() - shown_at > every_s:
            shown_at = time.monotonic()
            print(f"  {number} steps, now {line.rstrip()}", flush=True)
    return last_words


def main() -> None:
    try:
        binaries = ensure_binaries(cache_folder(os.environ))
    except BinariesUnavailableError as error:
        sys.exit(f"{error}")
    sizes = {path.name: path.stat().st_size for path in binaries.folder.iterdir()}
    for name, size in sorted(sizes.items()):
        print(f"{size >> 20:5} MiB  {binaries.folder / name}")
    print(f"{shutil.disk_usage(binaries.folder).free >> 30} GiB free there")


if __name__ == "__main__":
    main()
