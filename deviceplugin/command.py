"""The command lines ``serve``, ``export`` and ``check``."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TypeVar

import click
import orjson

from deviceplugin.cards.combined import CombinedCards
from deviceplugin.cards.deadline import DeadlineCalls
from deviceplugin.cards.inventory import InventoryCards, read_inventory
from deviceplugin.cards.limits import DriverLimits
from deviceplugin.cards.nvml_cards import DEADLINE_S, NvmlCards
from deviceplugin.cards.simulated import SimulatedCards, parse_spec
from deviceplugin.cards.source import CardSource
from deviceplugin.check import FIRST_ANSWER_S, report
from deviceplugin.exporter.http import Unit
from deviceplugin.exporter.run import run as run_exporter
from deviceplugin.exporter.selection import Flags
from deviceplugin.exporter.settings import (
    UNITS,
    WATCHDOG_MODES,
    CommandLine,
    ExporterSettings,
)
from deviceplugin.exporter.usage import Mode
from deviceplugin.serve import run
from deviceplugin.settings import DevicePluginSettings
from deviceplugin.telemetry.amd import AmdTelemetry
from deviceplugin.telemetry.base import PlainTelemetry, Telemetry
from deviceplugin.telemetry.combined import CombinedTelemetry
from deviceplugin.telemetry.fields import GROUPS
from deviceplugin.telemetry.nvml import NvmlTelemetry
from deviceplugin.telemetry.tegra import TegraTelemetry, host_memory_mib
from gpushare import logs
from gpushare.addresses import why_not_listen
from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import Cluster
from gpushare.kube.errors import ClusterError
from gpushare.settings import Address

Settings = DevicePluginSettings | ExporterSettings
Command = TypeVar("Command", bound=Callable[..., None])


@click.group()
def main() -> None:
    """Offer a node's cards to kubelet, and export how they are used."""


@main.command()
@click.option(
    "--bitfusion-quota",
    is_flag=True,
    help="Also offer bitfusion.io/gpu, 100 for each card, for quotas on it.",
)
def serve(*, bitfusion_quota: bool) -> None:
    """Serve kubelet until SIGTERM.

    Settings are GPUSHARE_… in the environment; flags win: docs/deviceplugin.md.
    """
    settings, complaints = DevicePluginSettings.read(os.environ)
    if bitfusion_quota:
        settings = replace(settings, bitfusion_quota=True)
    calls = DeadlineCalls(DEADLINE_S)
    nvml = NvmlCards(calls=calls, root=settings.host_root, with_links=True)
    sources = _simulated(settings, complaints) or [nvml]
    sources += _inventory(settings, complaints)
    cluster = _cluster(settings, complaints)
    _try_to_listen("LISTEN", settings.listen, complaints)
    if not _is_writable(settings.state_dir):
        complaints.append(
            f"GPUSHARE_STATE_DIR: {settings.state_dir} cannot be written or created; "
            "give another folder"
        )
    _end_with(complaints)
    assert cluster is not None  # noqa: S101  otherwise there was a complaint
    # Also a single source: combined, cards that were found once stay listed.
    source = CombinedCards(sources)
    stop = _begin(settings)
    _end(run(settings, source, cluster, stop, DriverLimits(calls)))


def _switches(command: Command) -> Command:
    """Add two flags for each group."""
    for group in reversed(GROUPS):
        why = f" ({group.slow}; off by default)" if group.slow else ""
        command = click.option(
            f"--disable-{group.name}", is_flag=True, help=f"Leave out {group.what}."
        )(command)
        command = click.option(
            f"--enable-{group.name}", is_flag=True, help=f"Read {group.what}{why}."
        )(command)
    return command


@main.command()
@click.option("--collect-unit", type=click.Choice(UNITS), help="Unit of /v1/collect.")
@click.option(
    "--watchdog",
    type=click.Choice(WATCHDOG_MODES),
    help="What to do about a container that uses more memory than its share.",
)
@_switches
def export(collect_unit: Unit | None, watchdog: Mode | None, **switches: bool) -> None:
    """Serve metrics of cards and containers until SIGTERM.

    Settings are GPUSHARE_… in the environment; flags win: docs/monitoring.md.
    """
    given = CommandLine(
        Flags(_named(switches, "enable"), _named(switches, "disable")),
        collect_unit,
        watchdog,
    )
    settings, complaints = ExporterSettings.read(os.environ, given)
    telemetry = _telemetry(settings, complaints)
    cluster = _cluster(settings, complaints) if settings.pods else None
    _try_to_listen("LISTEN", settings.listen, complaints)
    if settings.collect_listen is not None:
        _try_to_listen("COLLECT_LISTEN", settings.collect_listen, complaints)
    _end_with(complaints)
    stop = _begin(settings)
    _end(run_exporter(settings, telemetry, cluster, stop))


@main.command()
@click.option("--status", default="{}", help="The node's status, as JSON.")
@click.option(
    "--into",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the answer into this file.",
)
def check(status: str, into: Path | None) -> None:
    """Print what this node has of what ``serve`` needs, as JSON; change nothing."""
    settings, complaints = DevicePluginSettings.read(os.environ)
    nvml = NvmlCards(deadline_s=FIRST_ANSWER_S, root=settings.host_root)
    sources = _simulated(settings, complaints) or [nvml]
    sources += _inventory(settings, complaints)
    _end_with(complaints)
    text = orjson.dumps(report(settings, sources, orjson.loads(status))).decode()
    click.echo(text)
    if into is not None:
        into.write_text(text)
    sys.stdout.flush()
    _end(0)


def _named(switches: dict[str, bool], verb: str) -> frozenset[str]:
    return frozenset(one.name for one in GROUPS if switches[f"{verb}_{one.name}"])


def _begin(settings: Settings) -> Event:
    """Configure the log; return the event that SIGTERM and Ctrl-C set."""
    logs.configure(settings.log_level, settings.log_format)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


def _end(status: int) -> None:
    logging.shutdown()
    # Not with sys.exit: threads that wait for the API server would be stopped inside
    # native code, and abort the process.
    os._exit(status)


def _end_with(complaints: Sequence[str]) -> None:
    """Exit with all complaints, if there are any."""
    for complaint in complaints:
        click.echo(complaint, err=True)
    if complaints:
        sys.exit(1)


def _try_to_listen(name: str, address: Address, complaints: list[str]) -> None:
    if taken := why_not_listen(address):
        complaints.append(
            f"GPUSHARE_{name}: cannot listen on {address} ({taken}); give another "
            "host:port"
        )


def _is_writable(folder: Path) -> bool:
    """Return whether a folder can be written or created, without creating it."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _telemetry(settings: ExporterSettings, complaints: list[str]) -> Telemetry:
    root = settings.host_root
    nvml = NvmlCards(root=root, host_memory_mib=host_memory_mib(root))
    simulated = [PlainTelemetry(one) for one in _simulated(settings, complaints)]
    listed = [PlainTelemetry(one) for one in _inventory(settings, complaints)]
    if simulated:
        return CombinedTelemetry([*simulated, *listed])
    jetson = TegraTelemetry(root, nvml.integrated)
    return CombinedTelemetry([NvmlTelemetry(nvml), *listed, AmdTelemetry(root), jetson])


def _simulated(settings: Settings, complaints: list[str]) -> list[CardSource]:
    """Return the simulated cards that replace the driver's, if any are set."""
    spec = settings.simulated_cards
    made_up = () if spec is None else parse_spec(spec, settings.node)
    if isinstance(made_up, list):
        complaints += [f"GPUSHARE_SIMULATED_CARDS: {one}" for one in made_up]
    elif made_up:
        return [SimulatedCards(made_up)]
    return []


def _inventory(settings: Settings, complaints: list[str]) -> list[CardSource]:
    file = settings.inventory
    listed = [] if file is None else read_inventory(file)
    if isinstance(listed, tuple):
        return [InventoryCards(listed)]
    complaints += [f"GPUSHARE_INVENTORY: {one}" for one in listed]
    return []


def _cluster(settings: Settings, complaints: list[str]) -> Cluster | None:
    try:
        return ApiServer.connect(settings.kubeconfig)
    except ClusterError as error:
        complaints.append(
            f"GPUSHARE_KUBECONFIG: {error}; give the path of a kubeconfig, or run in a "
            "pod with a service account"
        )
        return None
