"""The command lines of ``install``, ``uninstall`` and of the commands of their pods."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from gpushare.kube.errors import ClusterError
from gpushare.kube.words import last_lines
from gpusharectl.access import Access, access_options, reach
from gpusharectl.completion import complete_all_nodes
from gpusharectl.installer import run as installing
from gpusharectl.installer import uninstall as leaving
from gpusharectl.installer.context import Context
from gpusharectl.installer.kube_scheduler.files import make_files_target
from gpusharectl.installer.kube_scheduler.host import HostScheduler, SchedulerTimeouts
from gpusharectl.installer.kube_scheduler.host_files import HostFiles, Obstacle
from gpusharectl.installer.kube_scheduler.job import (
    Action,
    SchedulerJobs,
    SchedulerTarget,
    act_on_files,
)
from gpusharectl.installer.kube_scheduler.k3s import K3sScheduler
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmScheduler
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.lock import hold_lease
from gpusharectl.installer.manifests import load_manifests
from gpusharectl.installer.nodes.check import check_nodes, checks_data, draw_checks
from gpusharectl.installer.nodes.cleanup import MOUNT, remove_host_files
from gpusharectl.installer.options import (
    CheckOptions,
    CommonOptions,
    InstallOptions,
    UninstallOptions,
    WebhookOptions,
    add_options,
)
from gpusharectl.installer.progress import (
    DEFAULT_TIMEOUT_S,
    Exit,
    InstallError,
    InstallPatience,
    LiveScreen,
    Screen,
)
from gpusharectl.output import print_data
from gpusharectl.state.read import is_demo

_RESTARTED_WITHIN_S = 300.0
Options = TypeVar("Options", bound=CommonOptions | CheckOptions)
Changing = TypeVar("Changing", bound=CommonOptions)


class DemoClusterError(click.ClickException):
    """The cluster is the demo's."""

    exit_code = Exit.REFUSED


@contextmanager
def _opened(
    kubeconfig: str | None, context: str | None, options: Options
) -> Iterator[tuple[Context, Options]]:
    """Connect to the cluster; ``CannotReachError`` if that fails.

    SIGTERM ends a run as Ctrl-C does, with no half-written file. The options are
    returned with the words that choose the same cluster again.
    """
    # A check prints its result only, which may be data.
    console = Console(highlight=False, stderr=isinstance(options, CheckOptions))
    # No needs here: the checks report all missing rights at once.
    access = reach(kubeconfig, context, needs=())
    if is_demo(access.objects):
        access.close()
        raise DemoClusterError(
            f"{access.kubeconfig} is of the cluster of gpusharectl demo, in which "
            "nothing is installed: its extender and device plugins are processes. Name "
            "the kubeconfig of your cluster with --kubeconfig"
        )
    given = {"--kubeconfig": kubeconfig, "--context": context}
    words = [word for flag, text in given.items() if text for word in (flag, text)]
    files, timeouts = HostFiles(), SchedulerTimeouts.within(options.timeout_s)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        opened = Context(
            access.objects,
            files,
            LiveScreen(console) if console.is_terminal else Screen(console),
            load_manifests,
            lambda target: _host(access, files, target, timeouts),
            lambda target: SchedulerJobs(access.objects, target, timeouts),
            InstallPatience(options.timeout_s or DEFAULT_TIMEOUT_S),
        )
        yield opened, replace(options, access=tuple(words))
    except KeyboardInterrupt:
        # Between two steps; a step itself reports it.
        raise click.ClickException(
            "interrupted; what is done stays, and the same command goes on"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        access.close()


def _run_alone(
    act: Callable[[Context, Changing], Exit], context: Context, options: Changing
) -> Exit:
    """Do it while no other command of this cluster's installer runs."""
    if options.dry_run:
        return act(context, options)
    try:
        with hold_lease(context, options.command):
            return act(context, options)
    except (InstallError, ClusterError) as error:
        context.screen.note(f"Stopped before the checks: {error}.")
        context.screen.show(f"To go on: {options.again()}")
        return getattr(error, "exit_code", Exit.STOPPED)


def _host(
    access: Access,
    files: HostFiles,
    target: SchedulerTarget,
    timeouts: SchedulerTimeouts,
) -> HostScheduler:
    desired = make_files_target(tls=target.tls, frag=target.frag)
    if target.flavour is Flavour.K3S:
        run = _run if target.restart else None
        return K3sScheduler(files, access.objects, target.node, desired, run, timeouts)
    return KubeadmScheduler(files, access.objects, target.node, desired, timeouts)


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
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(epilog=_CODES)
@add_options(InstallOptions)
@add_options(WebhookOptions)
@access_options
def install(kubeconfig: str | None, context: str | None, **options: Any) -> None:  # noqa: ANN401
    """Let a cluster share the GPU cards of its nodes.

    Run it on a control-plane host, as root. A second run goes on where the first one
    stopped, and changes nothing once everything is done.
    """
    webhook = {
        option.name: options.pop(option.name) for option in fields(WebhookOptions)
    }
    chosen = InstallOptions(webhook=WebhookOptions(**webhook), **options)
    _check(chosen)
    with _opened(kubeconfig, context, chosen) as (opened, chosen):
        code = _run_alone(installing.run_install, opened, chosen)
    sys.exit(code)


@click.command(epilog=_CODES)
@add_options(UninstallOptions)
@access_options
def uninstall(kubeconfig: str | None, context: str | None, **options: Any) -> None:  # noqa: ANN401
    """Restore a cluster to its state before ``install``.

    Run it on a control-plane host, as root. A second run goes on where the first one
    stopped.
    """
    with _opened(kubeconfig, context, UninstallOptions(**options)) as (opened, chosen):
        code = _run_alone(leaving.run_uninstall, opened, chosen)
    sys.exit(code)


_CHECK_CODES = (
    "Exit codes: 0 nothing is to be done; 1 something is, or the cluster could not be "
    "read; 2 wrong command line."
)


@click.command(epilog=_CHECK_CODES)
@click.argument("nodes", nargs=-1, required=True, shell_complete=complete_all_nodes)
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="Print it as data."
)
@add_options(CheckOptions)
@access_options
def check_node(kubeconfig: str | None, context: str | None, **options: Any) -> None:  # noqa: ANN401
    """Check whether NODES have what gpushare needs, before it is installed there.

    A short-lived pod in kube-system asks the driver on each node. It is removed again.
    """
    with _opened(kubeconfig, context, CheckOptions(**options)) as (opened, chosen):
        try:
            checked = check_nodes(opened, chosen)
        except KeyboardInterrupt:
            why = "interrupted; the pods of the check are deleted"
            raise click.ClickException(why) from None
        except InstallError as error:
            remedy = f"; {error.remedy}" if error.remedy else ""
            raise click.ClickException(f"{error}{remedy}") from error
        except ClusterError as error:
            raise click.ClickException(str(error)) from error
    if chosen.output:
        print_data(checks_data(checked), chosen.output)
    else:
        draw_checks(Console(highlight=False), checked)
    sys.exit(1 if any(node.todo for node in checked) else 0)


@click.command(hidden=True)
@click.argument("action", type=click.Choice([choice.value for choice in Action]))
@click.option("--root", type=_FOLDER, required=True, help="Where the host is mounted.")
@click.option("--into", type=_FOLDER, required=True, help="Where copies are tried.")
@click.option("--kubernetes", expose_value=False, help="For earlier images alone.")
@click.option("--tls", is_flag=True)
@click.option("--packs", "frag", is_flag=True)
def host_scheduler(
    action: str, root: Path, into: Path, *, tls: bool, frag: bool
) -> None:
    """Set up or restore kube-scheduler's files of a mounted host, in a Job."""
    desired = make_files_target(tls=tls, frag=frag)
    try:
        click.echo(act_on_files(Action(action), root, desired, into), nl=False)
    except Obstacle as obstacle:
        click.echo(str(obstacle), nl=False, err=True)
        sys.exit(1)


@click.command(hidden=True)
@click.argument("folder", default=MOUNT, type=_FOLDER)
def host_clean(folder: Path) -> None:
    """Remove the device plugin's files below FOLDER, the host's /var/lib, in a pod."""
    try:
        for gone in remove_host_files(folder):
            click.echo(f"removed {gone}")
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


def _check(options: InstallOptions) -> None:
    """Refuse options that contradict each other; the message names both."""
    if options.nodes and options.all_gpu_nodes:
        raise click.UsageError("give --nodes or --all-gpu-nodes, not both")
    if options.host_only and (others := options.of_objects):
        raise click.UsageError(
            f"--host-only changes no object; leave out {', '.join(others)}. What the "
            "extender is set to do, such as TLS, is read from the cluster"
        )
    if options.scheduler_image and not options.second_scheduler:
        raise click.UsageError("--scheduler-image needs --second-scheduler")
    if options.tls and options.second_scheduler:
        raise click.UsageError(
            "--tls is for the cluster's own kube-scheduler; the second one and its "
            "extender are in the same pod"
        )
    if options.dra and options.second_scheduler:
        raise click.UsageError(
            "--dra is for the cluster's own kube-scheduler: the API server of a "
            "managed control plane cannot ask the extender that decides"
        )
    if options.dra and options.tls is False:
        raise click.UsageError(
            "--dra needs the certificates that --no-tls removes; leave out one of "
            "the two"
        )
    if options.force and options.dra is not False:
        raise click.UsageError("--force is for --no-dra")
    webhook = options.webhook
    if webhook.wanted is False and webhook.settling:
        raise click.UsageError(
            f"{webhook.settling[0]} is a setting of the webhook, which --no-webhook "
            "removes; leave out one of the two"
        )
