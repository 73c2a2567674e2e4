"""ResourceClaims that hold cards, and the pods that have claims.

The extender tells of claims if it follows them. If it does not, or does not answer,
they are read from the API server: what claims hold is not free, whoever knows of it.
"""

from collections.abc import Iterable, Mapping

from gpushare.domain.model import PodUID
from gpushare.domain.node import Node
from gpushare.informers.resource_claims import place_resource_claim
from gpushare.kube import facts
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.resource_claims.allocated import (
    ResourceClaim,
    ResourceClaimUser,
    read_resource_claim,
)

_LISTEN = "GPUSHARE_CLAIMS_LISTEN"
_DRIVER, _ON = "GPUSHARE_DRA", "on"


def follows_claims(pod: Json) -> bool:
    """Return whether this is a pod of an extender that follows ResourceClaims."""
    return facts.is_extender(pod) and bool(facts.read_environment(pod).get(_LISTEN))


def offers_to_claims(pod: Json) -> bool:
    """Return whether this is a pod of a device plugin that offers cards to claims."""
    is_plugin = facts.is_part(pod, facts.DEVICE_PLUGIN)
    return is_plugin and facts.read_environment(pod).get(_DRIVER) == _ON


def has_claims(pod: Json) -> bool:
    """Return whether a pod names ResourceClaims, of whichever driver."""
    return bool((pod.get("spec") or {}).get("resourceClaims"))


def find_allocated(
    bodies: Iterable[Json],
) -> tuple[list[ResourceClaim], dict[str, str]]:
    """Return the claims that hold devices of ours, and why others are not understood.

    The latter by ``namespace/name``.
    """
    ours: list[ResourceClaim] = []
    wrong: dict[str, str] = {}
    for body in bodies:
        try:
            claim = read_resource_claim(body)
        except Malformed as error:
            wrong[facts.full_name(body)] = str(error)
        else:
            if claim is not None:
                ours.append(claim)
    return ours, wrong


def charge_claims(
    nodes: Iterable[Node], claims: Iterable[ResourceClaim]
) -> tuple[Node, ...]:
    """Return nodes, sorted by name, with what claims hold of their cards."""
    by_name = {node.name: node for node in nodes}
    for claim in claims:
        node = by_name.get(claim.node) or Node(claim.node)
        placement = place_resource_claim(claim, node.cards)
        by_name[claim.node] = node.with_placement(placement)
    return tuple(by_name[name] for name in sorted(by_name))


def map_users(
    claims: Iterable[ResourceClaim],
) -> Mapping[PodUID, tuple[ResourceClaimUser, ...]]:
    """Return the pods for which each claim is reserved, by the claim's UID."""
    return {claim.uid: claim.reserved_for for claim in claims}
