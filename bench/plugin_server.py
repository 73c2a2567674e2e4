"""A device plugin of 8 cards with 560 units each, over a cluster in memory."""

import sys
from pathlib import Path
from threading import Event

from prometheus_client import CollectorRegistry

from bench.placed import create_placed_pod
from deviceplugin.serve import assemble_plugin, start_plugin
from deviceplugin.settings import DevicePluginSettings
from gpushare.cards.simulated import SimulatedCards, parse_spec
from gpushare.domain.model import NodeName
from gpushare.kube.cluster import Kind
from gpusharectl.demo.fakeapi.cluster import Embedded

NODE = NodeName("node")
SPEC = "8x140GiB"
CARDS = 8
POD_UNITS = 14
PODS = 320
"""So many pods of so many units fill the cards."""


def pod_name(number: int) -> str:
    """Name the pods, in the order in which they are to be admitted."""
    return f"pod-{number:03d}"


def main() -> int:
    """Serve kubelet's folder, given as the one argument, until standard input ends."""
    folder = Path(sys.argv[1])
    cards = parse_spec(SPEC, NODE)
    if isinstance(cards, list):
        raise TypeError(cards)
    cluster = Embedded()
    cluster.create(Kind.NODES, {"metadata": {"name": NODE}})
    for number in range(PODS):
        card = cards[number % CARDS].uuid
        create_placed_pod(cluster, pod_name(number), NODE, card, POD_UNITS)
    settings = DevicePluginSettings(
        NODE, kubelet_dir=folder, state_dir=folder / "vcuda", inject="env"
    )
    stop = Event()
    made = assemble_plugin(
        settings, SimulatedCards(cards), cluster, CollectorRegistry()
    )
    start_plugin(made, settings, stop)
    sys.stdin.read()
    stop.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
