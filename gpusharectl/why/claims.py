"""Why a pod with ResourceClaims waits: each card's answer, which events leave out.

Judged is what the ledger, the nodes' ResourceSlices and the pod's node selectors say:
whether a card has the room, is offered to claims, and has a taint. What only
kube-scheduler can judge, as selectors in CEL, is named beside it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gpushare.domain.model import (
    Amount,
    Card,
    NodeName,
    Placement,
    PodRef,
    PodUID,
    Share,
)
from gpushare.domain.node import Node, why_no_room
from gpushare.informers.resource_claims import place_resource_claim
from gpushare.informers.shortage import find_bars
from gpushare.kube import codec, facts, words
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed, Reader
from gpushare.kube.names import DRA_DRIVER
from gpushare.kube.node_filters import find_intolerable, read_hard_taints
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.resource_claims.allocated import (
    ResourceClaim,
    name_device,
    read_amount,
    read_claim_names,
    read_resource_claim,
)
from gpushare.kube.resource_claims.templates import read_template_name
from gpusharectl.output import Data
from gpusharectl.state.read import ClusterState, list_all
from gpusharectl.why.claim_requests import (
    CardRequest,
    CardRequests,
    read_card_requests,
    read_class_names,
)
from gpusharectl.why.explain import FINE, WAITS, PodAnswer

_API = "resource.k8s.io/v1"
_SEVERAL = "the pod has several claims; they are judged one by one"


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """One ResourceClaim of a pod: what it has, or each card's answer to it.

    ``because`` says what it has or lacks. ``room`` are the cards that have room now, as
    node and index; ``refusals`` are a sentence for each other card, or for all of a
    node. ``not_judged`` are sentences about what else decides.
    """

    name: str
    allocated: bool
    because: str
    room: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ByClaims(PodAnswer):
    """It asks by ResourceClaims, to which kube-scheduler gives cards itself."""

    state: ClassVar[str] = "by-claims"
    claims: tuple[ClaimVerdict, ...]
    not_judged: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """It waits until each claim is allocated."""
        return FINE if all(one.allocated for one in self.claims) else WAITS

    def details(self) -> Data:
        """Return its own part of the data."""
        return {
            "node": self.node or None,
            "phase": facts.phase(self.body),
            "claims": self.claims,
            "not_judged": self.not_judged,
            "kube_scheduler": self.kube_scheduler or None,
        }


def explain_claims(
    cluster: Cluster, objects: Objects, state: ClusterState, pod: Json
) -> ByClaims | None:
    """Explain a pod by its ResourceClaims; None if all are others', or not there.

    A pod that has ended is explained without them.
    """
    try:
        named = {} if facts.is_terminal(pod) else read_claim_names(pod)
    except Malformed:
        named = {}
    looked = _PodsClaims(cluster, objects, state, pod)
    verdicts = [
        verdict for alias, name in named.items() if (verdict := looked.at(alias, name))
    ]
    # What is not there may be anybody's: alone it is no reason to speak of cards.
    if not any(is_ours for is_ours, _ in verdicts):
        return None
    waiting = sum(not verdict.allocated for _, verdict in verdicts)
    beside = (_SEVERAL,) if waiting > 1 else ()
    return ByClaims(pod, tuple(verdict for _, verdict in verdicts), beside)


@dataclass(frozen=True, slots=True)
class _OfferedDevices:
    """The devices that each node offers to claims, by name; None: not known."""

    nodes: Mapping[str, Mapping[str, Json]] | None
    problem: str = ""

    @classmethod
    def read(cls, cluster: Cluster) -> "_OfferedDevices":
        """Read the ResourceSlices, of each pool the newest generation."""
        try:
            slices = list_all(cluster, Kind.SLICES, f"spec.driver={DRA_DRIVER}")
            specs = [slice_["spec"] for slice_ in slices]
        except ClusterError as error:
            return cls(None, f"ResourceSlices cannot be read: {error}")
        newest: defaultdict[str, int] = defaultdict(int)
        for spec in specs:
            pool = spec["pool"]
            newest[pool["name"]] = max(newest[pool["name"]], pool["generation"])
        nodes: defaultdict[str, dict[str, Json]] = defaultdict(dict)
        for spec in specs:
            if spec["pool"]["generation"] == newest[spec["pool"]["name"]]:
                devices = {d["name"]: d for d in spec.get("devices") or ()}
                nodes[spec.get("nodeName", "")] |= devices
        return cls(nodes)

    def why_not_node(self, name: str) -> str:
        """Return why no card of a node is offered; empty if some may be."""
        if self.nodes is None or self.nodes.get(name):
            return ""
        return (
            f"node {name} offers no card to claims: it has no ResourceSlice of "
            f"{DRA_DRIVER}"
        )

    def why_not_card(self, node: NodeName, card: Card, request: CardRequest) -> str:
        """Return why a card that has the room is not offered; empty if it is."""
        if self.nodes is None:
            return ""
        name = f"card {card.uuid} of node {node}"
        device = self.nodes[node].get(name_device(card.uuid))
        if device is None:
            return f"{name} is not in the node's ResourceSlice"
        if taint := find_intolerable(read_hard_taints(device), request.tolerations):
            return f"{name} has the taint {taint[0]} in its ResourceSlice"
        shown = _shown(device)
        if shown is None or request.amount.fits(shown):
            return ""
        return (
            f"{name} has the room, but its ResourceSlice shows only "
            f"{words.format_bare_amount(shown)}; the device plugin of the node writes "
            "it again"
        )


@dataclass
class _PodsClaims:
    """What is looked at for the claims of one pod."""

    cluster: Cluster
    objects: Objects
    state: ClusterState
    pod: Json
    _offers: _OfferedDevices | None = None
    _classes: dict[str, Json | None] = field(default_factory=dict)

    def at(self, alias: str, name: str) -> tuple[bool, ClaimVerdict] | None:
        """Return whether a claim is ours, and the verdict; None for another driver's.

        ``alias`` is the pod's name for it; ``name`` is empty if it does not exist yet.
        """
        if not name:
            return self._not_made(alias)
        namespace = self.pod["metadata"]["namespace"]
        try:
            body = self.cluster.get(Kind.CLAIMS, namespace, name)
            claim = read_resource_claim(body)
            requests = read_card_requests(body, self._classes_of(body))
        except NotFound:
            return False, _unknown(name, "there is no such ResourceClaim")
        except ClusterError as error:
            # It may be ours: not known is not the same as nothing.
            return True, _unknown(name, f"not known, since it cannot be read: {error}")
        except Malformed as error:
            return True, _unknown(name, f"it is not understood: {error}")
        if claim is not None:
            return True, ClaimVerdict(
                name, allocated=True, because=_has(claim, self.state)
            )
        return (True, self._waits(name, body, requests)) if requests.cards else None

    def _not_made(self, alias: str) -> tuple[bool, ClaimVerdict]:
        spec = Reader(self.pod).object("spec")
        template = next(
            claim.optional_text("resourceClaimTemplateName")
            for claim in spec.optional_objects("resourceClaims")
            if claim.optional_text("name") == alias
        )
        namespace = self.pod["metadata"]["namespace"]
        ref = Ref(_API, "ResourceClaimTemplate", template, namespace)
        is_ours = bool(read_template_name(template))
        text = "it is not created yet; kube-controller-manager makes it"
        try:
            missing = bool(template) and self.objects.get(ref) is None
        except ClusterError:
            missing = False
        if missing:
            text = f"its template {template} does not exist in {namespace}"
            if is_ours:
                text += (
                    f": gpusharectl claim-template {template} | kubectl -n {namespace} "
                    "apply -f -"
                )
        return is_ours, _unknown(alias, text)

    def _classes_of(self, claim: Json) -> Mapping[str, Json | None]:
        for name in read_class_names(claim) - self._classes.keys():
            try:
                self._classes[name] = self.objects.get(Ref(_API, "DeviceClass", name))
            except ClusterError:
                continue
        return self._classes

    def _waits(self, name: str, body: Json, requests: CardRequests) -> ClaimVerdict:
        self._offers = self._offers or _OfferedDevices.read(self.cluster)
        uid = PodUID(body["metadata"]["uid"])
        ref = PodRef(uid, body["metadata"]["namespace"], name, is_resource_claim=True)
        room: list[str] = []
        refusals: list[str] = []
        not_judged = [*requests.not_judged]
        for request in requests.cards:
            prefix = f"{request.name}: " if len(requests.cards) > 1 else ""
            not_judged += request.not_judged
            for card, why_not in self._answers(ref, request, self._offers):
                if why_not:
                    refusals.append(prefix + why_not)
                else:
                    room.append(prefix + card)
        if self._offers.problem:
            unknown = "which cards are offered to claims is not known: "
            not_judged.append(unknown + self._offers.problem)
        amounts = " and ".join(
            words.format_amount(request.amount)
            + (f" ({request.name})" if "/" in request.name else "")
            for request in requests.cards
        )
        return ClaimVerdict(
            name,
            allocated=False,
            because=f"it asks for {amounts} and is not allocated",
            room=tuple(room),
            refusals=tuple(refusals),
            not_judged=tuple(dict.fromkeys(not_judged)),
        )

    def _answers(
        self, claim: PodRef, request: CardRequest, offers: _OfferedDevices
    ) -> Iterator[tuple[str, str]]:
        """Return each card, and why it cannot be the one: empty if it has room.

        What is so for a whole node, or for all of them, is said once.
        """
        if request.never:
            yield "", request.never
            return
        barred = self._barred()
        for node in self.state.placements.nodes:
            if not node.cards:
                continue
            if node.name in barred:
                yield "", f"the pod may not use node {node.name}: {barred[node.name]}"
            elif why := offers.why_not_node(node.name):
                yield "", why
            else:
                for card in node.cards:
                    placement = Placement(
                        claim, node.name, (Share(card.uuid, request.amount),)
                    )
                    why = why_no_room(node, placement)
                    why = why or offers.why_not_card(node.name, card, request)
                    yield f"card {card.index} of node {node.name}", why

    def _barred(self) -> Mapping[NodeName, str]:
        try:
            record = codec.read_pod_record(self.pod)
        except Malformed:
            return {}
        return find_bars(record, self.state.placements.nodes, self.state.properties)


def _unknown(name: str, text: str) -> ClaimVerdict:
    return ClaimVerdict(name, allocated=False, because=text)


def _shown(device: Json) -> Amount | None:
    """Return what a ResourceSlice shows of a card; None if it is not understood."""
    capacity = device.get("capacity") or {}
    try:
        return read_amount(
            Reader({key: part.get("value") for key, part in capacity.items()})
        )
    except Malformed:
        return None


def _has(claim: ResourceClaim, state: ClusterState) -> str:
    node = state.placements.node(claim.node) or Node(claim.node)
    indexes = {card.uuid: card.index for card in node.cards}
    shares = place_resource_claim(claim, node.cards).shares
    parts = (
        f"card {indexes.get(share.card, share.card)}, "
        f"{words.format_amount(share.amount)}"
        for share in shares
    )
    return f"it has {' and '.join(parts)} of {claim.node}"
