"""Why a pod with ResourceClaims waits: each card's answer, which events leave out."""

from collections.abc import Iterator, Mapping

from gpushare.cache.claims import placement_of
from gpushare.domain.model import Amount, Card, Placement, PodRef, PodUID, Share
from gpushare.domain.node import Node
from gpushare.domain.reservation import why_no_room
from gpushare.kube import facts, words
from gpushare.kube.claims.allocated import Claim, read_claim
from gpushare.kube.claims.asked import claims_of, requests_of
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed
from gpusharectl.state.read import ClusterState
from gpusharectl.why.explain import ByClaims, ClaimVerdict


def by_claims(cluster: Cluster, state: ClusterState, pod: Json) -> ByClaims | None:
    """Explain a pod by its ResourceClaims; None if all are others', or not there.

    A pod that has ended is explained without them.
    """
    try:
        named = {} if facts.is_terminal(pod) else claims_of(pod)
    except Malformed:
        named = {}
    namespace = pod["metadata"]["namespace"]
    found = [
        verdict
        for own, name in named.items()
        if (verdict := _of(cluster, state, namespace, name or own, exists=bool(name)))
    ]
    # What is not there may be anybody's: alone it is no reason to speak of cards.
    if not any(is_ours for is_ours, _ in found):
        return None
    return ByClaims(pod, tuple(verdict for _, verdict in found))


def _of(
    cluster: Cluster, state: ClusterState, namespace: str, name: str, *, exists: bool
) -> tuple[bool, ClaimVerdict] | None:
    """Return whether a claim is ours, and the verdict; None for another driver's."""
    if not exists:
        text = "it is not created yet; kube-controller-manager makes it"
        return False, ClaimVerdict(name, allocated=False, words=text)
    try:
        body = cluster.get(Kind.CLAIMS, namespace, name)
        claim, asked = read_claim(body), requests_of(body)
    except NotFound:
        text = "there is no such ResourceClaim"
        return False, ClaimVerdict(name, allocated=False, words=text)
    except ClusterError as error:
        text = f"not known, since it cannot be read: {error}"
        # It may be ours: not known is not the same as nothing.
        return True, ClaimVerdict(name, allocated=False, words=text)
    except Malformed as error:
        text = f"it is not understood: {error}"
        return True, ClaimVerdict(name, allocated=False, words=text)
    if claim is not None:
        return True, ClaimVerdict(name, allocated=True, words=_has(claim, state))
    return (True, _waits(name, body, asked, state)) if asked else None


def _has(claim: Claim, state: ClusterState) -> str:
    node = state.placements.node(claim.node) or Node(claim.node)
    indexes = {card.uuid: card.index for card in node.cards}
    shares = placement_of(claim, node.cards).shares
    parts = (
        f"card {indexes.get(share.card, share.card)}, {words.amount(share.amount)}"
        for share in shares
    )
    return f"it has {' and '.join(parts)} of {claim.node}"


def _waits(
    name: str, body: Json, asked: Mapping[str, Amount], state: ClusterState
) -> ClaimVerdict:
    metadata = body["metadata"]
    ref = PodRef(PodUID(metadata["uid"]), metadata["namespace"], name, is_claim=True)
    room: list[str] = []
    refusals: list[str] = []
    for request, amount in asked.items():
        prefix = f"{request}: " if len(asked) > 1 else ""
        for node, card in _cards(state):
            held = Placement(ref, node.name, (Share(card.uuid, amount),))
            if why_not := why_no_room(node, held):
                refusals.append(prefix + why_not)
            else:
                room.append(f"{prefix}card {card.index} of node {node.name}")
    amounts = " and ".join(map(words.amount, asked.values()))
    text = f"it asks for {amounts} and is not allocated"
    return ClaimVerdict(name, False, text, tuple(room), tuple(refusals))  # noqa: FBT003


def _cards(state: ClusterState) -> Iterator[tuple[Node, Card]]:
    for node in state.placements.nodes:
        for card in node.cards:
            yield node, card
