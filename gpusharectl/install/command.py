"""``install``, ``uninstall`` and what their pods run: arguments, and nothing else.

Exit codes of the first two:

====  ==================================================================
0     done, or nothing was to be done
1     stopped on the way; the last lines say what was done, and how to go on
2     the command line is not understood, or a question had no answer
3     refused by the checks: nothing was changed
====  ==================================================================

Put together what the commands work with: the cluster, this host, the terminal.
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
from gpusharectl.install.scheduler import SchedulerHost
from gpusharectl.kube_scheduler.drift import Flavour
from gpusharectl.kube_scheduler.files import HostCertificates, desired_now
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
def hands_on(
    kubeconfig: str | None, context: str | None, timeout_s: float
) -> Iterator[Context]:
    """Reach the cluster and this host; ``CannotReachError`` where there is no way."""
    console = Console(highlight=False)
    # Rights are judged with all others, in one sentence.
    access = reach(kubeconfig, context, needs=())
    files = HostFiles()
    try:
        yield Context(
            access.objects,
            files,
            screen_for(console),
            load,
            lambda wish: _host(access, files, wish),
            lambda wish: _others(access, wish),
            lambda wish: _certificates(files, wish),
            Patience(timeout_s),
            lambda: _inspect(access, console),
        )
    finally:
        access.close()


def _host(access: Access, files: HostFiles, wish: SchedulerTarget) -> SchedulerHost:
    asked = desired_now(wish.version, tls=wish.tls, frag=wish.frag)
    if wish.flavour is Flavour.K3S:
        run = _run if wish.restart else None
        return K3sScheduler(files, access.objects, wish.node, asked, run)
    return KubeadmScheduler(files, access.objects, wish.node, asked)


def _others(access: Access, wish: SchedulerTarget) -> SchedulerJobs:
    return SchedulerJobs(access.objects, wish.image, wish.version, wish.tls, wish.frag)


def _certificates(files: HostFiles, wish: SchedulerTarget) -> Sequence[FileChange]:
    starter = K3sFile if wish.flavour is Flavour.K3S else KubeadmFile
    return HostCertificates(files, f"{starter.folder}/tls").planned(datetime.now(UTC))


def _inspect(access: Access, console: Console) -> None:
    state = read_state(access, datetime.now(UTC), whole=True)
    draw(console, overview(state))


def _run(command: Sequence[str]) -> str:
    """Run a command of the host; give its last words where it failed."""
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
    "Exit codes: 0 done, or nothing was to be done; 1 stopped on the way, the last "
    "lines say how to go on; 2 the command line is not understood, or a question had "
    "no answer; 3 refused by the checks, nothing was changed."
)
_TIMEOUT = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=DEFAULT_TIMEOUT_S,
    metavar="SECONDS",
    help="How long to wait for one step, such as pulling images.",
    show_default=True,
)
_YES = click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show every change as a diff, and touch nothing."
)
_RESTART = click.option(
    "--restart", is_flag=True, help="k3s: restart it, for its scheduler to read files."
)
_THIS_NODE = click.option(
    "--this-node",
    default="",
    metavar="NAME",
    help="This host's name in the cluster, where it cannot be told.",
)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_IMAGE = click.option(
    "--image",
    default="",
    metavar="IMAGE",
    help="Our image's name; else the one that runs there, and at first the one named "
    "in manifests/.",
)


@click.command(epilog=_CODES)
@click.option("--nodes", metavar="A,B", help="The nodes that share their cards.")
@click.option(
    "--all-gpu-nodes", is_flag=True, help="All nodes that show a sign of a GPU."
)
@_YES
@_DRY_RUN
@_IMAGE
@click.option(
    "--second-scheduler",
    is_flag=True,
    help="A kube-scheduler of our own, called vcuda-scheduler, for a cluster whose "
    "control plane is somebody else's.",
)
@click.option(
    "--scheduler-image",
    default="",
    metavar="IMAGE",
    help="Of kube-scheduler, with --second-scheduler; else the cluster's own.",
)
@click.option(
    "--runtime-class/--no-runtime-class",
    "runtime_class",
    default=None,
    help="Run device plugin and exporter under the RuntimeClass nvidia, or not; "
    "else where the cluster has it.",
)
@click.option(
    "--tls/--no-tls",
    "tls",
    default=None,
    help="Mutual TLS between kube-scheduler and the extender, or none; else as it is "
    "there, and none at first.",
)
@click.option(
    "--ui/--no-ui",
    "ui",
    default=None,
    help="The extender's page for gpusharectl ui, or none; else as it is there, and "
    "none at first.",
)
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    help="The extender's policy for pods that name none; else as it is there, and "
    "first-fit at first. With frag, kube-scheduler scores all nodes.",
)
@click.option(
    "--with-monitoring",
    is_flag=True,
    help="The exporter too, with dashboards, and Prometheus Operator's rules where the "
    "cluster has it. Without it, what is there stays as it is.",
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
    """Let a cluster share the cards of its nodes.

    Run it on the control-plane host, as root. What is done already is left as it is:
    running it again goes on where it stopped, and changes nothing once all is done.
    """
    choice = InstallOptions(
        nodes=node_names(nodes or ""),
        access=_access_words(kubeconfig, context),
        webhook=take_webhook_options(options),
        **options,
    )
    _check(choice, named=nodes is not None)
    with _interruptible(), hands_on(kubeconfig, context, choice.timeout_s) as hands:
        code = installing.install(hands, choice)
    sys.exit(code)


@click.command(epilog=_CODES)
@_YES
@_DRY_RUN
@click.option(
    "--force", is_flag=True, help="Also while pods hold cards; their containers go on."
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for kubelet's five minutes, and take what it counts from the nodes.",
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
    """Make a cluster again what it was before ``install``.

    Run it on the control-plane host, as root. Running it again goes on where it
    stopped.
    """
    choice = UninstallOptions(access=_access_words(kubeconfig, context), **options)
    _check_image(choice.image)
    with _interruptible(), hands_on(kubeconfig, context, choice.timeout_s) as hands:
        code = leaving.uninstall(hands, choice)
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
    """Set kube-scheduler's files of a mounted host, or put them back.

    What the Job runs on each other control-plane node.
    """
    asked = desired_now(kubernetes, tls=tls, frag=frag)
    done = set_host_scheduler(Action(action), root, asked, into)
    click.echo(done.words, nl=False, err=bool(done.code))
    sys.exit(done.code)


@click.command(hidden=True)
@click.argument("folder", default=MOUNT, type=_FOLDER)
def host_clean(folder: Path) -> None:
    """Remove the device plugin's files; FOLDER is the host's /var/lib.

    What the pod runs that ``uninstall`` sends to each node.
    """
    try:
        for gone in clean(folder):
            click.echo(f"removed {gone}")
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


def _access_words(kubeconfig: str | None, context: str | None) -> tuple[str, ...]:
    """Give the words that choose the same cluster again."""
    words = []
    if kubeconfig:
        words += ["--kubeconfig", kubeconfig]
    if context:
        words += ["--context", context]
    return tuple(words)


def _check(choice: InstallOptions, *, named: bool) -> None:
    """Refuse options that contradict each other, in words that name both."""
    if named and not choice.nodes:
        raise click.UsageError("--nodes names no node; give --nodes gpu-1,gpu-2")
    if choice.nodes and choice.all_gpu_nodes:
        raise click.UsageError("give --nodes or --all-gpu-nodes, not both")
    if choice.scheduler_image and not choice.second_scheduler:
        raise click.UsageError("--scheduler-image goes with --second-scheduler alone")
    if choice.tls and choice.second_scheduler:
        raise click.UsageError(
            "--tls is for the cluster's own kube-scheduler; the second one reaches its "
            "extender inside one pod"
        )
    for image in (choice.image, choice.scheduler_image):
        _check_image(image)


def _check_image(image: str) -> None:
    if image and (image.split() != [image] or image.startswith("-")):
        raise click.UsageError(f"{image!r} is no name of an image, such as gpushare:1")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does: with words, and nothing half-written."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        # Between two steps; within one the steps themselves say it.
        raise click.ClickException(
            "interrupted; what was begun stays, and the same command goes on"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)
