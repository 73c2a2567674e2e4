"""``python -m exporter``: serve metrics of cards and containers until SIGTERM."""

import os
from collections.abc import Callable
from typing import TypeVar

import click

from exporter.http import Unit
from exporter.run import run_exporter
from exporter.selection import Flags
from exporter.settings import UNITS, WATCHDOG_MODES, CommandLine, ExporterSettings
from exporter.telemetry.amd import AmdTelemetry
from exporter.telemetry.base import PlainTelemetry, Telemetry
from exporter.telemetry.combined import CombinedTelemetry
from exporter.telemetry.fields import GROUPS
from exporter.telemetry.nvml import NvmlTelemetry
from exporter.telemetry.tegra import TegraTelemetry, host_memory_mib
from exporter.usage import Mode
from gpushare import process
from gpushare.cards.node_settings import inventory_source, simulated_source
from gpushare.cards.nvml_cards import NvmlCards

Command = TypeVar("Command", bound=Callable[..., None])


def _switches(command: Command) -> Command:
    for group in reversed(GROUPS):
        why = f" ({group.slow}; off by default)" if group.slow else ""
        command = click.option(
            f"--disable-{group.name}", is_flag=True, help=f"Leave out {group.what}."
        )(command)
        command = click.option(
            f"--enable-{group.name}", is_flag=True, help=f"Read {group.what}{why}."
        )(command)
    return command


@click.command()
@click.option("--collect-unit", type=click.Choice(UNITS), help="Unit of /v1/collect.")
@click.option(
    "--watchdog",
    type=click.Choice(WATCHDOG_MODES),
    help="What to do about a container that uses more memory than its share.",
)
@_switches
def main(collect_unit: Unit | None, watchdog: Mode | None, **switches: bool) -> None:
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
    cluster = (
        process.connect_api_server(settings.kubeconfig, complaints)
        if settings.pods
        else None
    )
    process.try_to_listen("LISTEN", settings.listen, complaints)
    if settings.collect_listen is not None:
        process.try_to_listen("COLLECT_LISTEN", settings.collect_listen, complaints)
    process.exit_with_complaints(complaints)
    stop = process.begin_process(settings.log_level, settings.log_format)
    process.end_process(run_exporter(settings, telemetry, cluster, stop))


def _named(switches: dict[str, bool], verb: str) -> frozenset[str]:
    return frozenset(group.name for group in GROUPS if switches[f"{verb}_{group.name}"])


def _telemetry(settings: ExporterSettings, complaints: list[str]) -> Telemetry:
    root = settings.host_root
    nvml = NvmlCards(root=root, host_memory_mib=host_memory_mib(root))
    simulated = [
        PlainTelemetry(source) for source in simulated_source(settings, complaints)
    ]
    listed = [
        PlainTelemetry(source) for source in inventory_source(settings, complaints)
    ]
    if simulated:
        return CombinedTelemetry([*simulated, *listed])
    jetson = TegraTelemetry(root, nvml.integrated)
    return CombinedTelemetry([NvmlTelemetry(nvml), *listed, AmdTelemetry(root), jetson])
