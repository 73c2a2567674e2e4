"""The command lines of ``install``, ``uninstall`` and of the commands of their pods.

Exit codes of ``install`` and ``uninstall``:

====  ==================================================================
0     done, or nothing had to be done
1     stopped on the way; the last lines say what was done, and how to go on
2     the command line is wrong, or a question could not be answered
3     refused by the checks: nothing was changed
====  ==================================================================
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gpushare.domain.policies import POLICIES
from gpusharectl.access import Access, access_options, reach
from gpusharectl.install import install as installing
from gpusharectl.install import uninstall as leaving
from gpusharectl.install.context import Context, SchedulerTarget
from gpusharectl.install.manifests import load
from gpusharectl.install.node_cleanup import MOUNT, clean
from gpusharectl.install.options import (
    DEFAULT_TIMEOUT_S,
    InstallOptions,
    UninstallOptions,
    add_webhook_options,
    node_names,
    take_webhook_options,
)
from gpusharectl.install.progress import screen_for
from gpusharectl.install.rollout import Patience, last_lines
from gpusharectl.kube_scheduler.drift import Flavour
from gpusharectl.kube_scheduler.files import HostCertificates, desired_now
from gpusharectl.kube_scheduler.host import HostScheduler
from gpusharectl.kube_scheduler.host_files import FileChange, HostFiles
from gpusharectl.kube_scheduler.job import Action, SchedulerJobs
from gpusharectl.kube_scheduler.job import host_scheduler as set_host_scheduler
from gpusharectl.kube_scheduler.k3s import K3sFile, K3sScheduler
from gpusharectl.kube_scheduler.kubeadm import KubeadmFile, KubeadmScheduler
from gpusharectl.state.read import read_state
from gpusharectl.state.render import draw
from gpusharectl.state.view import overview

_RESTARTED_WITHIN_S = 300.0


@contextmanager
def _opened(
    kubeconfig: str | None, context: str | None, timeout_s: float
) -> Iterator[Context]:
    """Connect to the cluster; ``CannotReachError`` if that fails."""
    console = Console(highlight=False)
    # No needs here: the checks report all missing rights at once.
    access = reach(kubeconfig, context, needs=())
    files = HostFiles()
    try:
        yield Context(
            access.objects,
            files,
            screen_for(console),
            load,
            lambda target: _host(access, files, target),
            lambda target: _others(access, target),
            lambda target: _certificates(files, target),
            Patience(timeout_s),
            lambda: _inspect(access, console),
        )
    finally:
        access.close()


def _host(access: Access, files: HostFiles, target: SchedulerTarget) -> HostScheduler:
    desired = desired_now(target.version, tls=target.tls, frag=target.frag)
    if target.flavour is Flavour.K3S:
        run = _run if target.restart else None
        return K3sScheduler(files, access.objects, target.node, desired, run)
    return KubeadmScheduler(files, access.objects, target.node, desired)


def _others(access: Access, target: SchedulerTarget) -> SchedulerJobs:
    return SchedulerJobs(
        access.objects, target.image, target.version, target.tls, target.frag
    )


def _certificates(files: HostFiles, target: SchedulerTarget) -> Sequence[FileChange]:
    starter = K3sFile if target.flavour is Flavour.K3S else KubeadmFile
    return HostCertificates(files, f"{starter.folder}/tls").planned(datetime.now(UTC))


def _inspect(access: Access, console: Console) -> None:
    state = read_state(access, datetime.now(UTC), whole=True)
    draw(console, overview(state))


def _run(command: Sequence[str]) -> str:
    """Run a command of the host; return the end of its output if it failed, or ""."""
    try:
        ran = subprocess.run(  # noqa: S603
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=_RESTARTED_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (last_lines(ran.stderr) or "no reason given") if ran.returncode else ""


_CODES = (
    "Exit codes: 0 done, or nothing had to be done; 1 stopped on the way, the last "
    "lines say how to go on; 2 the command line is wrong, or a question could not be "
    "answered; 3 refused by the checks, nothing was changed."
)
_TIMEOUT = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=DEFAULT_TIMEOUT_S,
    metavar="SECONDS",
    help="How long one step may wait, such as for images.",
    show_default=True,
)
_YES = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show every change as a diff, and change nothing."
)
_RESTART = click.option(
    "--restart",
    is_flag=True,
    help="k3s: restart it, so that its scheduler reads the files.",
)
_THIS_NODE = click.option(
    "--this-node",
    default="",
    metavar="NAME",
    help="The name of this host in the cluster, if it cannot be found out.",
)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_IMAGE = click.option(
    "--image",
    default="",
    metavar="IMAGE",
    help="The image of gpushare. Default: the one that runs there; for a first install "
    "the one in manifests/.",
)


@click.command(epilog=_CODES)
@click.option("--nodes", metavar="A,B", help="The nodes that share their cards.")
@click.option(
    "--all-gpu-nodes",
    is_flag=True,
    help="All nodes that show a sign of a GPU share their cards.",
)
@_YES
@_DRY_RUN
@_IMAGE
@click.option(
    "--second-scheduler",
    is_flag=True,
    help="Install a second kube-scheduler, called vcuda-scheduler, on a cluster with a "
    "managed control plane.",
)
@click.option(
    "--scheduler-image",
    default="",
    metavar="IMAGE",
    help="With --second-scheduler: the image of kube-scheduler. Default: the cluster's "
    "own.",
)
@click.option(
    "--runtime-class/--no-runtime-class",
    "runtime_class",
    default=None,
    help="Run device plugin and exporter under the RuntimeClass nvidia, or not. "
    "Default: if the cluster has it.",
)
@click.option(
    "--tls/--no-tls",
    "tls",
    default=None,
    help="Use mutual TLS between kube-scheduler and the extender, or not. Default: as "
    "installed; not in a first install.",
)
@click.option(
    "--ui/--no-ui",
    "ui",
    default=None,
    help="Serve the extender's page for gpusharectl ui, or not. Default: as installed; "
    "not in a first install.",
)
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    help="The extender's policy for pods that name none. Default: as installed; "
    "first-fit in a first install. With frag, kube-scheduler scores all nodes.",
)
@click.option(
    "--with-monitoring",
    is_flag=True,
    help="Install the exporter too, with dashboards, and rules if the cluster has "
    "Prometheus Operator. Without it, installed monitoring stays as it is.",
)
@add_webhook_options
@_RESTART
@_THIS_NODE
@_TIMEOUT
@access_options
def install(
    nodes: str | None,
    kubeconfig: str | None,
    context: str | None,
    **options: Any,  # noqa: ANN401 (click gives Choice's fields by name)
) -> None:
    """Let a cluster share the GPU cards of its nodes.

    Run it on a control-plane host, as root. A second run goes on where the first one
    stopped, and changes nothing once everything is done.
    """
    chosen = InstallOptions(
        nodes=node_names(nodes or ""),
        access=_access_words(kubeconfig, context),
        webhook=take_webhook_options(options),
        **options,
    )
    _check(chosen, named=nodes is not None)
    with _interruptible(), _opened(kubeconfig, context, chosen.timeout_s) as opened:
        code = installing.install(opened, chosen)
    sys.exit(code)


@click.command(epilog=_CODES)
@_YES
@_DRY_RUN
@click.option(
    "--force",
    is_flag=True,
    help="Uninstall even while pods hold cards; their containers go on running.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait five minutes until kubelet reports capacity 0, and remove that from the "
    "nodes.",
)
@_RESTART
@_IMAGE
@_THIS_NODE
@_TIMEOUT
@access_options
def uninstall(
    kubeconfig: str | None,
    context: str | None,
    **options: Any,  # noqa: ANN401 (click gives Leaving's fields by name)
) -> None:
    """Restore a cluster to its state before ``install``.

    Run it on a control-plane host, as root. A second run goes on where the first one
    stopped.
    """
    chosen = UninstallOptions(access=_access_words(kubeconfig, context), **options)
    _check_image(chosen.image)
    with _interruptible(), _opened(kubeconfig, context, chosen.timeout_s) as opened:
        code = leaving.uninstall(opened, chosen)
    sys.exit(code)


@click.command(hidden=True)
@click.argument("action", type=click.Choice([one.value for one in Action]))
@click.option("--root", type=_FOLDER, required=True, help="Where the host is mounted.")
@click.option("--into", type=_FOLDER, required=True, help="Where copies are tried.")
@click.option("--kubernetes", required=True, help="The cluster's version.")
@click.option("--tls", is_flag=True)
@click.option("--packs", "frag", is_flag=True)
def host_scheduler(
    action: str, root: Path, into: Path, kubernetes: str, *, tls: bool, frag: bool
) -> None:
    """Set up kube-scheduler's files of a mounted host, or restore them.

    The Job on each other control-plane node runs it.
    """
    desired = desired_now(kubernetes, tls=tls, frag=frag)
    done = set_host_scheduler(Action(action), root, desired, into)
    click.echo(done.words, nl=False, err=bool(done.code))
    sys.exit(done.code)


@click.command(hidden=True)
@click.argument("folder", default=MOUNT, type=_FOLDER)
def host_clean(folder: Path) -> None:
    """Remove the device plugin's files; FOLDER is the host's /var/lib.

    ``uninstall`` runs it in a pod on each node.
    """
    try:
        for gone in clean(folder):
            click.echo(f"removed {gone}")
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


def _access_words(kubeconfig: str | None, context: str | None) -> tuple[str, ...]:
    """Return the words that choose the same cluster again."""
    words = []
    if kubeconfig:
        words += ["--kubeconfig", kubeconfig]
    if context:
        words += ["--context", context]
    return tuple(words)


def _check(options: InstallOptions, *, named: bool) -> None:
    """Refuse options that contradict each other; the message names both."""
    if named and not options.nodes:
        raise click.UsageError("--nodes names no node; give --nodes gpu-1,gpu-2")
    if options.nodes and options.all_gpu_nodes:
        raise click.UsageError("give --nodes or --all-gpu-nodes, not both")
    if options.scheduler_image and not options.second_scheduler:
        raise click.UsageError("--scheduler-image needs --second-scheduler")
    if options.tls and options.second_scheduler:
        raise click.UsageError(
            "--tls is for the cluster's own kube-scheduler; the second one and its "
            "extender are in the same pod"
        )
    for image in (options.image, options.scheduler_image):
        _check_image(image)


def _check_image(image: str) -> None:
    if image and (image.split() != [image] or image.startswith("-")):
        raise click.UsageError(f"{image!r} is no name of an image such as gpushare:1")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does, with no half-written file."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        # Between two steps; a step itself reports it.
        raise click.ClickException(
            "interrupted; what is done stays, and the same command goes on"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)
