"""The cluster as the commands see it, read once: nodes, pods, and who holds what."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import click

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Amount, NodeName, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import CARD_ORDERS, POLICIES, PolicyChoice
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import UNFINISHED, PodInformer
from gpushare.informers.resource_claims import (
    ResourceClaimInformer,
    place_resource_claim,
)
from gpushare.informers.snapshot import read_snapshot
from gpushare.kube import codec, facts, words
from gpushare.kube.annotations import read_cards
from gpushare.kube.cluster import Cluster, Json, Kind, ListPage
from gpushare.kube.codec import PodRecord, effective_request
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import CARDS, DEMO_BUILD
from gpushare.kube.node_filters import NodeProperties, read_properties
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.resource_claims.allocated import (
    ResourceClaim,
    ResourceClaimUser,
    read_resource_claim,
)
from gpusharectl.access import Access
from gpusharectl.state.extender import (
    FOLDERS,
    fetch_page,
    read_certificates,
)

_PAGE = 500
_LEASES = ("kube-scheduler", "vcuda-scheduler")
"""Leases of the cluster's own kube-schedulers and of gpushare's second one."""
_WEBHOOK = "webhook"
CLAIMS = "ResourceClaims"
"""What a trouble with all claims is about."""
_OUR_FOLDERS = ("/etc/kubernetes/vcuda/", "/etc/rancher/k3s/vcuda/")
"""Where the installer puts kube-scheduler's configuration."""


class Setup(StrEnum):
    """Whether gpushare is in a cluster."""

    DEMO = "demo"
    """The cluster of ``gpusharectl demo``, whose components are no pods."""
    ABSENT = "absent"
    """It is not installed: no component, label, cards or configuration of it."""
    INSTALLED = "installed"
    """Some part of it is there, whether it works or not."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that needs an operator: what it is about, what is wrong, what to do."""

    about: str
    what: str
    do: str


@dataclass(frozen=True, slots=True)
class Placements:
    """What each node's cards hold, and the cluster's default policy.

    ``nodes`` are sorted by name. ``not_asked`` says why this was computed from pods and
    nodes; empty if it comes from the extender. ``reserved`` are the ResourceClaims
    whose allocation the extender has not seen yet. ``users`` are the pods for which
    each claim is reserved; a claim that is not in it may have any.
    """

    nodes: tuple[Node, ...]
    choice: PolicyChoice
    not_asked: str = ""
    reserved: frozenset[PodUID] = frozenset()
    users: Mapping[PodUID, tuple[ResourceClaimUser, ...]] = field(default_factory=dict)

    def as_data(self) -> dict[str, str | None]:
        """Return where this comes from, as all commands print it."""
        origin = "pods and nodes" if self.not_asked else "extender"
        return {"from": origin, "because": self.not_asked or None}

    def node(self, name: str) -> Node | None:
        """Return a node's cards and what they hold; None if it is not known."""
        return next((node for node in self.nodes if node.name == name), None)


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod that names gpushare's resources: decoded, and as the API server has it."""

    record: PodRecord
    body: Json


@dataclass(frozen=True)
class ClusterState:
    """The placements, and the objects beside them, all read at one time.

    ``pods`` name gpushare's resources and have not ended, ``with_claims`` name
    ResourceClaims of whichever driver. ``parts`` are gpushare's pods
    and kube-scheduler's, all in kube-system. ``quotas`` are all ResourceQuotas, None if
    they could not be read. ``reviewed``: the API server calls the webhook; None if that
    could not be read. ``troubles`` were found while reading.
    """

    placements: Placements
    nodes: tuple[Json, ...]
    pods: Mapping[PodUID, SeenPod]
    parts: tuple[Json, ...]
    now: datetime
    troubles: tuple[Trouble, ...] = ()
    quotas: tuple[Json, ...] | None = ()
    reviewed: bool | None = None
    setup: Setup = Setup.INSTALLED
    with_claims: Mapping[PodUID, Json] = field(default_factory=dict)

    def node(self, name: str) -> Json | None:
        """Return a Node object; None if there is none."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, Json]:
        return {facts.name_of(node): node for node in self.nodes}

    @cached_property
    def properties(self) -> Mapping[NodeName, NodeProperties]:
        """Labels and taints of all nodes, by which pods may use them or not."""
        return {NodeName(facts.name_of(n)): read_properties(n) for n in self.nodes}

    @cached_property
    def refused_cards(self) -> Mapping[NodeName, str]:
        """What is wrong with the annotations of nodes that hide their cards."""
        refused = {}
        for node in self.nodes:
            try:
                read_cards(node)
            except Malformed as error:
                refused[NodeName(facts.name_of(node))] = str(error)
        return refused

    @cached_property
    def requested(self) -> Mapping[PodUID, Amount]:
        """What kube-scheduler counts of each of ``pods`` in the sums of its node."""
        return {uid: effective_request(seen.body) for uid, seen in self.pods.items()}

    @cached_property
    def plugins(self) -> Mapping[str, bool]:
        """The nodes with a device plugin's pod, and whether a pod there is ready."""
        ready_on: dict[str, bool] = {}
        for pod in self.parts:
            if facts.is_part(pod, facts.DEVICE_PLUGIN):
                name = facts.node_of(pod)
                ready_on[name] = ready_on.get(name, False) or facts.is_ready(pod)
        return ready_on


def read_state(
    access: Access,
    now: datetime,
    *,
    whole: bool = False,
    certificates: Sequence[Path] = FOLDERS,
) -> ClusterState:
    """Read the cluster once; ``ClusterError`` if pods or nodes cannot be read.

    The placements come from the extender if it answers; otherwise they are computed
    from pods and nodes. ``whole`` adds quotas and the webhook's configurations, which
    the user may lack the rights for; then the state says so. ``certificates`` are
    folders to look in for what an extender with TLS requires.
    """
    # The cache logs what it cannot understand; here the screen says it.
    logging.getLogger("gpushare").addHandler(logging.NullHandler())
    nodes = tuple(list_all(access.cluster, Kind.NODES))
    pods = _SortedPods.read(access.cluster)
    setup = _setup(access.objects, nodes, pods.parts)
    troubles: list[Trouble] = []
    claims = _ClaimsToRead(access.cluster, pods.parts, bool(pods.with_claims), troubles)
    placements, seen = _placements(access.objects, nodes, pods, certificates, claims)
    if setup is Setup.DEMO:
        why = "the demo's extender is not in a pod"
        placements = replace(placements, not_asked=why)
    quotas: tuple[Json, ...] | None = ()
    reviewed: bool | None = None
    if whole:
        quotas = read_quotas(access.objects, troubles)
        reviewed = _reviewed(access.objects, troubles)
        if any(map(offers_to_claims, pods.parts)):
            troubles += _unasked(access.objects)
        if reviewed or any(trouble.about == _WEBHOOK for trouble in troubles):
            setup = Setup.INSTALLED
    return ClusterState(
        placements=placements,
        nodes=nodes,
        pods=seen,
        parts=tuple(pods.parts),
        now=now,
        troubles=tuple(troubles),
        quotas=quotas,
        reviewed=reviewed,
        setup=setup,
        with_claims=pods.with_claims,
    )


@dataclass(frozen=True, slots=True)
class _SortedPods:
    """The unfinished pods that commands look at, as the API server has them.

    ``ours`` name gpushare's resources; the others are as in ``ClusterState``.
    """

    ours: list[Json] = field(default_factory=list)
    parts: list[Json] = field(default_factory=list)
    with_claims: dict[PodUID, Json] = field(default_factory=dict)

    @classmethod
    def read(cls, cluster: Cluster) -> "_SortedPods":
        """Read all pods page by page, and keep these."""
        pods = cls()
        for pod in list_all(cluster, Kind.PODS, UNFINISHED):
            if codec.is_ours(pod):
                pods.ours.append(pod)
            if has_claims(pod):
                pods.with_claims[PodUID(pod["metadata"]["uid"])] = pod
            if _is_part(pod):
                pods.parts.append(pod)
        return pods


def detect_setup(access: Access) -> Setup:
    """Return whether gpushare is in this cluster, for a command that reads no state."""
    nodes = tuple(list_all(access.cluster, Kind.NODES))
    pods = list_all(access.cluster, Kind.PODS, UNFINISHED)
    return _setup(access.objects, nodes, tuple(filter(_is_part, pods)))


def is_demo(objects: Objects) -> bool:
    """Return whether this is the cluster of ``gpusharectl demo``; needs no right."""
    return objects.version().endswith(DEMO_BUILD)


def is_configured_by_us(scheduler: Json) -> bool:
    """Return whether a kube-scheduler is started with the installer's configuration."""
    return find_config(scheduler).startswith(_OUR_FOLDERS)


def find_config(pod: Json) -> str:
    """Return the file after ``--config``, in one word or two; empty without it."""
    words_run = " ".join(facts.words_run(pod)).replace("--config ", "--config=").split()
    options = (word for word in words_run if word.startswith("--config="))
    return next(options, "").removeprefix("--config=")


def require_node(state: ClusterState, name: str) -> None:
    """Raise ``ClickException`` if the cluster has no such node; empty is any."""
    if name and state.node(name) is None:
        known = words.listed(sorted(map(facts.name_of, state.nodes)), 10)
        raise click.ClickException(f'there is no node "{name}"; there are: {known}')


def compute_placements(
    nodes: Iterable[Json],
    pods: Iterable[Json],
    choice: PolicyChoice,
    because: str,
    claims: Iterable[Json] = (),
) -> tuple[Placements, Mapping[PodUID, SeenPod]]:
    """Compute the placements as the extender does when it starts, with the pods."""
    ledger = Ledger()
    pod_informer = PodInformer(ledger, choice)
    claim_informer = ResourceClaimInformer(ledger, set_cards=pod_informer.set_cards)
    node_informer = NodeInformer(ledger, set_cards=claim_informer.set_cards)
    bodies = {PodUID(pod["metadata"]["uid"]): pod for pod in pods}
    node_informer.replace(iter([ListPage(tuple(nodes), "")]))
    claim_informer.replace(iter([ListPage(tuple(claims), "")]))
    pod_informer.replace(iter([ListPage(tuple(bodies.values()), "")]))
    in_order = tuple(sorted(ledger.nodes(), key=lambda node: node.name))
    placements = Placements(in_order, choice, because, users=claim_informer.users())
    seen = {
        record.pod.uid: SeenPod(record, bodies[record.pod.uid])
        for record in pod_informer.records()
    }
    return placements, seen


def read_policy_choice(settings: Mapping[str, str]) -> PolicyChoice:
    """Return the policy and card order of an extender's settings, else the defaults."""
    policy = settings.get("GPUSHARE_POLICY", "")
    order = settings.get("GPUSHARE_CARD_ORDER", "")
    plain = PolicyChoice()
    return PolicyChoice(
        policy if policy in POLICIES else plain.default,
        next((known for known in CARD_ORDERS if known == order), plain.card_order),
    )


def list_all(cluster: Cluster, kind: Kind, field_selector: str = "") -> Iterator[Json]:
    """Read a collection page by page."""
    token = ""
    while True:
        page = cluster.list_page(
            kind, limit=_PAGE, continue_token=token, field_selector=field_selector
        )
        yield from page.items
        token = page.continue_token
        if not token:
            return


def _is_part(pod: Json) -> bool:
    # In other namespaces anybody may use the labels of gpushare's parts.
    in_system = pod["metadata"]["namespace"] == facts.SYSTEM
    return in_system and (facts.is_part(pod) or facts.is_kube_scheduler(pod))


def _setup(objects: Objects, nodes: Iterable[Json], parts: Iterable[Json]) -> Setup:
    if any(facts.is_part(pod) or is_configured_by_us(pod) for pod in parts):
        return Setup.INSTALLED
    if is_demo(objects):
        return Setup.DEMO
    shares = any(facts.is_labelled(n) or facts.annotation(n, CARDS) for n in nodes)
    return Setup.INSTALLED if shares else Setup.ABSENT


def _placements(
    objects: Objects,
    nodes: Sequence[Json],
    pods: "_SortedPods",
    certificates: Sequence[Path],
    claims: "_ClaimsToRead",
) -> tuple[Placements, Mapping[PodUID, SeenPod]]:
    extenders = [pod for pod in pods.parts if facts.is_extender(pod)]
    because = "no extender pod is ready"
    if not extenders:
        because = f"there is no extender pod in {facts.SYSTEM}"
    for pod in _leaders_first(objects, list(filter(facts.is_ready, extenders))):
        name = facts.name_of(pod)
        try:
            tls = read_certificates(None, certificates)
            snapshot = read_snapshot(fetch_page(objects, pod, "/snapshot", tls))
        except (ClusterError, Malformed) as error:
            because = f"{name}: {error}"
        else:
            placements = Placements(
                snapshot.nodes,
                snapshot.choice,
                reserved=snapshot.reserved,
                users=snapshot.users,
            )
            if not follows_claims(pod):
                ours, _ = find_allocated(claims.read(followed=False))
                with_ours, users = charge_claims(snapshot.nodes, ours), map_users(ours)
                placements = replace(placements, nodes=with_ours, users=users)
            return placements, _decoded(pods.ours)
    settings = facts.read_environment(extenders[0]) if extenders else {}
    bodies = claims.read(followed=any(map(follows_claims, extenders)))
    choice = read_policy_choice(settings)
    return compute_placements(nodes, pods.ours, choice, because, bodies)


def _decoded(pods: Iterable[Json]) -> Mapping[PodUID, SeenPod]:
    seen = {}
    for pod in pods:
        try:
            record = codec.read_pod_record(pod)
        except Malformed:
            # The extender ignores it as well; the API server lets none such in.
            continue
        seen[record.pod.uid] = SeenPod(record, pod)
    return seen


def _leaders_first(objects: Objects, ready: Sequence[Json]) -> Sequence[Json]:
    """Return the extenders, first those beside a leading kube-scheduler.

    Any of them is right; the leader's has seen the last bind.
    """
    leaders = set()
    for name in _LEASES if len(ready) > 1 else ():
        ref = Ref("coordination.k8s.io/v1", "Lease", name, facts.SYSTEM)
        with suppress(ClusterError):
            spec = (objects.get(ref) or {}).get("spec") or {}
            leaders.add(str(spec.get("holderIdentity") or "").partition("_")[0])

    def is_elsewhere(pod: Json) -> bool:
        # Either may be the host's name for a kube-scheduler beside this extender.
        return leaders.isdisjoint((facts.node_of(pod), facts.name_of(pod)))

    return sorted(ready, key=is_elsewhere)


@dataclass(frozen=True, slots=True)
class _ClaimsToRead:
    """The ResourceClaims of a cluster, read only if some may be ours.

    ``used``: a pod names one. What is wrong is added to ``troubles``.
    """

    cluster: Cluster
    parts: Sequence[Json]
    used: bool
    troubles: list[Trouble]

    def read(self, *, followed: bool) -> Sequence[Json]:
        """Return the claims, or none if nothing says that some may be ours.

        ``followed``: an extender knows them.
        """
        expected = followed or any(map(offers_to_claims, self.parts))
        if not (expected or self.used):
            return ()
        try:
            bodies = tuple(list_all(self.cluster, Kind.CLAIMS))
        except NotFound:
            # An API server without ResourceClaims has none.
            return ()
        except ClusterError as error:
            if expected:
                self._add(
                    f"what they hold is not known, since they cannot be read: {error}",
                    "get the right to `list` resourceclaims.resource.k8s.io in all "
                    "namespaces",
                )
            return ()
        ours, wrong = find_allocated(bodies)
        for name, why in wrong.items():
            what = f"what this ResourceClaim holds of cards is not known: {why}"
            namespace, _, claim = name.partition("/")
            do = f"kubectl -n {namespace} get resourceclaim {claim} -o yaml"
            self.troubles.append(Trouble(name, what, do))
        if ours and not followed:
            many = "1 holds" if len(ours) == 1 else f"{len(ours)} hold"
            self._add(
                f"the extender does not follow them, and {many} parts of cards: it may "
                "give a pod the same part, and the later one then waits on its node",
                "gpusharectl install --dra",
            )
        return bodies

    def _add(self, what: str, do: str) -> None:
        self.troubles.append(Trouble(CLAIMS, what, do))


def read_quotas(
    objects: Objects, troubles: list[Trouble], namespace: str = ""
) -> tuple[Json, ...] | None:
    """Read the ResourceQuotas of a namespace or all; None: ``troubles`` say why not."""
    try:
        return tuple(objects.list("v1", "ResourceQuota", namespace=namespace))
    except NotFound:
        # An API server without ResourceQuotas, such as the demo's.
        return ()
    except ClusterError as error:
        do = "get the right to `list` resourcequotas in all namespaces"
        troubles.append(Trouble("quotas", f"they cannot be read: {error}", do))
    return None


def _unasked(objects: Objects) -> Iterator[Trouble]:
    """Report that allocations of claims are stored unasked; nothing if not known."""
    with suppress(ClusterError):
        if objects.get(facts.CLAIMS_CONFIGURATION) is None:
            what = (
                f"{facts.CLAIMS_CONFIGURATION} does not exist: the API server stores "
                "allocations without asking the extender, so a claim and a pod may be "
                "given the same part of a card, and the later one waits on its node"
            )
            yield Trouble(CLAIMS, what, "gpusharectl install --dra")


def _reviewed(objects: Objects, troubles: list[Trouble]) -> bool | None:
    try:
        configurations = [objects.get(ref) for ref in facts.WEBHOOK_CONFIGURATIONS]
    except ClusterError:
        return None
    interrupted = any(map(facts.is_narrowed, filter(None, configurations)))
    if interrupted:
        what = (
            "the webhook still answers only the installer's probe pod; the "
            "installation was interrupted"
        )
        do = "run gpusharectl install again, with the same options"
        troubles.append(Trouble(_WEBHOOK, what, do))
    return configurations[0] is not None and not interrupted


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
