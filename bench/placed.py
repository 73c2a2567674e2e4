"""Pods as the extender has placed them, for clusters of a measurement."""

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

_AT = "2026-01-01T00:00:00.000Z"


def container(units: int) -> Json:
    """Describe a container that asks for this many units and one core."""
    amounts = {names.CORE: "1", names.MEMORY: str(units)}
    return {"name": "main", "resources": {"requests": amounts, "limits": amounts}}


def placement_text(pod: Json, node: str, card: str, amount: Amount) -> str:
    """Write what the extender writes of a pod on one card."""
    metadata = pod["metadata"]
    ref = PodRef(PodUID(metadata["uid"]), metadata["namespace"], metadata["name"])
    share = Share(CardUUID(card), amount, (ContainerAmount("main", amount),))
    return encode_placement(Placement(ref, NodeName(node), (share,)), _AT)


def create_placed_pod(
    cluster: Embedded, name: str, node: str, card: str, units: int
) -> Json:
    """Create a pod of one container, bound and placed as the extender does it."""
    metadata = {"name": name, "namespace": "default"}
    body = {"metadata": metadata, "spec": {"containers": [container(units)]}}
    pod = cluster.create(Kind.PODS, body)
    text = placement_text(pod, node, card, Amount(1, units))
    annotations = {names.PLACEMENT: text}
    cluster.bind(PodTarget.of(pod), node, annotations)
    return pod
