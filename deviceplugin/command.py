"""The command lines ``serve`` and ``check``."""

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import click
import orjson

from deviceplugin.check import FIRST_ANSWER_S, report_node
from deviceplugin.serve import serve_kubelet
from deviceplugin.settings import DevicePluginSettings, former_settings
from gpushare import process
from gpushare.cards.combined import CombinedCards
from gpushare.cards.node_settings import inventory_source, simulated_source
from gpushare.cards.nvml_cards import NvmlCards

logger = logging.getLogger(__name__)


@click.group()
def main() -> None:
    """Offer a node's cards to kubelet."""


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
    nvml = NvmlCards(root=settings.host_root, with_links=True)
    sources = simulated_source(settings, complaints) or [nvml]
    sources += inventory_source(settings, complaints)
    cluster = process.connect_api_server(settings.kubeconfig, complaints)
    process.try_to_listen("LISTEN", settings.listen, complaints)
    if not _is_writable(settings.state_dir):
        complaints.append(
            f"GPUSHARE_STATE_DIR: {settings.state_dir} cannot be written or created; "
            "give another folder"
        )
    process.exit_with_complaints(complaints)
    assert cluster is not None  # noqa: S101  otherwise there was a complaint
    # Also a single source: combined, cards that were found once stay listed.
    source = CombinedCards(sources)
    stop = process.begin_process(settings.log_level, settings.log_format)
    for name in former_settings(os.environ):
        facts = {"setting": name, "because": "contexts are counted inside the share"}
        logger.warning("a setting does nothing any more", extra=facts)
    process.end_process(serve_kubelet(settings, source, cluster, stop, nvml))


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
    sources = simulated_source(settings, complaints) or [nvml]
    sources += inventory_source(settings, complaints)
    process.exit_with_complaints(complaints)
    text = orjson.dumps(report_node(settings, sources, orjson.loads(status))).decode()
    click.echo(text)
    if into is not None:
        into.write_text(text)
    sys.stdout.flush()
    process.end_process(0)


def _is_writable(folder: Path) -> bool:
    """Return whether a folder can be written or created, without creating it."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
