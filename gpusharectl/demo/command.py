"""``gpusharectl demo``: play its scenes, or leave a cluster running."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Event
from typing import NoReturn

import click
from rich.console import Console

from gpusharectl.demo.cluster import CannotStartError, DemoCluster
from gpusharectl.demo.story import HELD, SCENES, NotAsExpectedError, Story
from gpusharectl.output import open_console

_TERMINATED = 128 + signal.SIGTERM
_INTRODUCTION = """\
GPU memory sharing, shown in four short scenes. No GPU, no cluster: an embedded \
API server, stand-ins for scheduler and kubelet, simulated cards, and the real \
extender and device plugin.
1 unit is 256 MiB of one card's memory; every pod also asks 1 core of 100.

"""


@click.command()
@click.option(
    "--hold",
    "keep",
    is_flag=True,
    help="Leave a small cluster running for kubectl, until Ctrl-C.",
)
def demo(*, keep: bool) -> None:
    """Show what this software does, without a GPU, a cluster or root."""
    console = open_console()
    if not keep:
        _leave(tell_story(console))
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    _leave(hold_cluster(console, stop))


def _leave(status: int) -> NoReturn:
    """End the process at once.

    At a normal exit, threads that still wait in gRPC would abort the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def tell_story(console: Console) -> int:
    """Play all scenes; return 0 if each had the expected result, else 1."""
    _hush()
    # An exception ends the children, as Ctrl-C does; the signal alone would not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    _print(console, _INTRODUCTION.splitlines())
    began = time.monotonic()
    try:
        with _folder() as folder, DemoCluster(Path(folder)) as demo:
            story = Story(demo, console)
            for number, scene in enumerate(SCENES, start=1):
                title = (scene.__doc__ or "").rstrip(".")
                console.print(f"[bold]Scene {number}[/bold] · {title}")
                scene(story)
                story.clear()
                console.print()
    except (CannotStartError, NotAsExpectedError) as error:
        console.print(f"Not as expected: {error}", style="bold red", markup=False)
        return 1
    took_s = time.monotonic() - began
    console.print(
        f"All {len(SCENES)} scenes had the expected result, in {took_s:.0f} s."
    )
    console.print("Try it with kubectl: make hold, or gpusharectl demo --hold")
    return 0


def hold_cluster(console: Console, stop: Event) -> int:
    """Start a cluster with two nodes, say how to use it, and wait for ``stop``."""
    _hush()
    try:
        with _folder() as folder, DemoCluster(Path(folder)) as demo:
            demo.join(*HELD)
            manifest = Path(folder) / "pod.yaml"
            manifest.write_text(_MANIFEST)
            words = _TRY.format(folder=folder, page=demo.page)
            _print(console, words.splitlines())
            while not stop.wait(0.2):
                demo.check_children()
            console.print("Stopping ...")
    except CannotStartError as error:
        console.print(f"Stopped: {error}", style="bold red", markup=False)
        return 1
    return 0


def _print(console: Console, lines: Iterable[str]) -> None:
    """Print texts, wrapped for this screen, and indented commands, which are not."""
    for line in lines:
        console.print(line, soft_wrap=line.startswith(" "))


def _hush() -> None:
    # gRPC would write notes between the demo's lines when a plugin ends.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def _folder() -> tempfile.TemporaryDirectory[str]:
    # Sockets are in it, and their paths must be short.
    usual = tempfile.gettempdir()
    place = usual if len(os.fsencode(usual)) <= _LONGEST_PLACE else "/tmp"  # noqa: S108
    return tempfile.TemporaryDirectory(prefix="gpushare-", dir=place)


_LONGEST_PLACE = 34
"""Bytes; ``/gpushare-12345678/node-1/device-plugins/`` and a name must still fit."""

_MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  name: app-1
spec:
  containers:
  - name: app
    image: nvidia/cuda:12.4.1-base-ubuntu22.04
    resources:
      limits:
        baidu.com/vcuda-core: 1
        baidu.com/vcuda-memory: 20
"""

_TRY = """\
A cluster of two nodes is running: node-1 with one card of 94 units, node-2 with \
two of 29. Try in another terminal:

  export KUBECONFIG={folder}/kubeconfig
  kubectl create -f {folder}/pod.yaml
  kubectl get pods -o wide
  kubectl describe pod app-1
  kubectl get pod app-1 -o yaml    # see baidu.com/vcuda-placement
  kubectl get node node-1 -o yaml  # see baidu.com/vcuda-cards
  kubectl delete pod app-1

Nodes, cards and pods in a browser on this machine: {page}

No container runs; what one would find as /etc/vcuda/allocation.json, and what the \
device plugin says:

  cat {folder}/node-*/vcuda/containers/*/allocation.json
  cat {folder}/node-*/deviceplugin.log

Ctrl-C stops everything and leaves nothing behind."""
