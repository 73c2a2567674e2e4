"""A device plugin of 8 cards with 560 units each, over a cluster in memory."""

import sys
from pathlib import Path
from threading import Event

from prometheus_client import CollectorRegistry

from deviceplugin.serve import assemble_plugin, start_plugin
from deviceplugin.settings import DevicePluginSettings
from gpushare.cards.simulated import SimulatedCards, parse_spec
from gpushare.domain.model import (
    Amount,
    CardUUID,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodUID,
    Share,
)
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind, PodTarget
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
    found = parse_spec(SPEC, NODE)
    if isinstance(found, list):
        raise TypeError(found)
    cluster = Embedded()
    cluster.create(Kind.NODES, {"metadata": {"name": NODE}})
    for number in range(PODS):
        bind(cluster, pod_name(number), found[number % CARDS].uuid)
    settings = DevicePluginSettings(
        NODE, kubelet_dir=folder, state_dir=folder / "vcuda", inject="env"
    )
    stop = Event()
    made = assemble_plugin(
        settings, SimulatedCards(found), cluster, CollectorRegistry()
    )
    start_plugin(made, settings, stop)
    sys.stdin.read()
    stop.set()
    return 0


def bind(cluster: Embedded, name: str, uuid: CardUUID) -> None:
    """Make a pod, bound and placed as the extender does it."""
    made = cluster.create(Kind.PODS, pod(name))
    uid = PodUID(made["metadata"]["uid"])
    amount = Amount(1, POD_UNITS)
    share = Share(uuid, amount, (ContainerAmount("main", amount),))
    placed = Placement(PodRef(uid, "default", name), NODE, (share,))
    annotations = {names.PLACEMENT: encode_placement(placed, "")}
    cluster.bind(PodTarget("default", name, uid), NODE, annotations, timeout_s=1)


def pod(name: str) -> Json:
    """A pod of one container."""
    asked = {names.CORE: "1", names.MEMORY: str(POD_UNITS)}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": asked}}]},
    }


if __name__ == "__main__":
    sys.exit(main())
