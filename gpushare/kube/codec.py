"""Read pods, nodes and disruption budgets from their JSON, and write refusals. Pure.

What the containers of a pod ask is read by ``resource_requests``; the JSON formats
inside annotations are in ``annotations``.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from sys import intern
from types import MappingProxyType

from gpushare.domain.eviction.preemption import Budget
from gpushare.domain.model import (
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Reason,
    Refusal,
    clean_text,
    refuse_invalid,
)
from gpushare.kube import names
from gpushare.kube.annotations import (
    LIMITS,
    decode_cards,
    read_card_selector,
    read_placements,
)
from gpushare.kube.cluster import Json
from gpushare.kube.facts import TERMINAL
from gpushare.kube.json_reader import Reader
from gpushare.kube.label_selectors import read_selector
from gpushare.kube.node_filters import ANY_NODE, Constraints, read_constraints
from gpushare.kube.resource_requests import RequestedResources, Unmeetable

_WORDS = {
    Reason.MEMORY: f"Insufficient {names.MEMORY} on one card",
    Reason.CORE: f"Insufficient {names.CORE} on one card",
    Reason.CORE_AND_MEMORY: (
        f"Insufficient {names.CORE} and {names.MEMORY} on one card"
    ),
    Reason.UNTOUCHED_CARDS: "Insufficient untouched cards",
    Reason.NO_CARDS: "No shared cards",
    Reason.CHANGING: "The node changes faster than a pod can be placed on it",
}


_USERS = {
    key.removeprefix(f"{names.PREFIX}-"): key
    for key in (names.POLICY, names.CONTAINERS, names.MODELS, names.UUIDS)
}
"""The pod annotations that users write, by the last part of the name."""
_KNOWN = frozenset({*_USERS.values(), names.PLACEMENT, names.ACTUAL, names.ISOLATION})
_OURS = names.PREFIX.removeprefix(f"{names.DOMAIN}/")
_ALL = ", ".join(f"{_OURS}-{word}" for word in _USERS)
NO_LABELS: Mapping[str, str] = MappingProxyType({})
"""Of all pods that have none."""
_MOST_LABELS = 16
_MOST_UNKNOWN = 5
_LIKE = 0.8
"""How similar a misspelt name must be to a known one."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What is kept of a pod.

    ``node`` is empty before the binding. ``terminal`` means that its containers have
    ended for good; ``terminating`` that it has a deletion timestamp and still holds its
    share. ``nominated`` is the node whose victims make room for it, usually empty.
    ``complaint`` says why a placement cannot be read. ``plan`` is the planned one;
    ``placement`` is the actual one if there is one, else the plan. ``started`` is the
    time since when kubelet knows the pod, empty before. ``charged`` is what it asks of
    cards; of a bound pod with broken annotations what its spec asks; None if nothing.
    ``constraints`` are what a pod without a node requires of nodes beside cards.
    """

    pod: PodRef
    request: PodRequest | Refusal
    node: NodeName
    placement: Placement | None
    terminal: bool
    terminating: bool
    nominated: NodeName
    labels: Mapping[str, str]
    complaint: str = ""
    plan: Placement | None = None
    started: str = ""
    charged: PodRequest | None = None
    constraints: Constraints = ANY_NODE

    @property
    def asks(self) -> bool:
        """Whether the pod asks for any part of a card."""
        return self.charged is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for cards; an invalid request, until a person changes it."""
        return not self.node and (self.asks or isinstance(self.request, Refusal))


def refusal_text(refusal: Refusal) -> str:
    """Return the fixed text of a refusal, which ``kubectl describe pod`` shows."""
    if refusal.reason is Reason.INVALID:
        return f"Invalid vcuda request: {refusal.detail}"
    if not refusal.limits:
        return _WORDS[refusal.reason]
    allow = "allows" if len(refusal.limits) == 1 else "allow"
    who = " and ".join(LIMITS[limit] for limit in refusal.limits)
    return f"{_WORDS[refusal.reason]} that {who} {allow}"


def read_pod_ref(pod: Json) -> PodRef:
    """Read a pod's identity; ``Malformed`` names what is missing."""
    whole = Reader(pod)
    return _ref(whole.object("metadata"), whole.optional_object("spec"))


def _ref(metadata: Reader, spec: Reader) -> PodRef:
    return PodRef(
        PodUID(metadata.text("uid")),
        intern(metadata.text("namespace")),
        metadata.text("name"),
        spec.optional_integer("priority"),
    )


def read_scheduling_group(pod: Json) -> str:
    """Read the namespace and name of a pod's PodGroup; usually empty."""
    spec = Reader(pod).optional_object("spec")
    name = spec.optional_object("schedulingGroup").optional_text("podGroupName")
    namespace = Reader(pod).optional_object("metadata").optional_text("namespace")
    return f"{namespace}/{name}" if name else ""


def read_pod_request(pod: Json, ref: PodRef) -> PodRequest | Refusal:
    """Read what a pod asks of cards; ``ref`` is its ``read_pod_ref``.

    Raises ``Malformed`` for what no API server would send. Returns an invalid
    ``Refusal`` for what an API server accepts and no card can meet.
    """
    return _request(RequestedResources(pod), ref, _annotations(pod))


def _request(
    requested: RequestedResources, ref: PodRef, annotations: Mapping[str, str]
) -> PodRequest | Refusal:
    where = annotations.get(names.CONTAINERS)
    if where not in (None, names.APART):
        return refuse_invalid(
            f'{names.CONTAINERS} is "{clean_text(where)}"; the only value is "apart"'
        )
    try:
        claims = requested.claims(apart=where == names.APART)
    except Unmeetable as error:
        return refuse_invalid(str(error))
    if isinstance(claims, Refusal):
        return claims
    # Most pods have no annotation of gpushare, and filter reads many pods.
    chosen = read_card_selector(annotations) if annotations else None
    if isinstance(chosen, Refusal):
        return chosen
    policy = annotations.get(names.POLICY)
    return PodRequest(ref, claims, policy, chosen, requested.host())


def read_pod_record(
    pod: Json, requested: RequestedResources | None = None
) -> PodRecord:
    """Read all that is kept of a pod; ``Malformed`` as for the parts.

    ``requested`` is given where it was read already, because at a start there are many.
    """
    whole = Reader(pod)
    metadata, spec = whole.object("metadata"), whole.optional_object("spec")
    status = whole.optional_object("status")
    ref = _ref(metadata, spec)
    node = NodeName(intern(spec.optional_text("nodeName")))
    annotations = metadata.optional_object("annotations").texts(names.PREFIX)
    requested = requested or RequestedResources(pod)
    request = _request(requested, ref, annotations)
    charged = _by_spec(requested, ref, request) if node else request
    by_key: dict[str, Placement] = {}
    complaint = ""
    if node:
        by_key, complaint = read_placements(annotations, ref, charged, node)
    plan = by_key.get(names.PLACEMENT)
    return PodRecord(
        pod=ref,
        request=request,
        node=node,
        placement=by_key.get(names.ACTUAL, plan),
        terminal=status.optional_text("phase") in TERMINAL,
        terminating=metadata.raw.get("deletionTimestamp") is not None,
        nominated=NodeName(status.optional_text("nominatedNodeName")),
        labels=_labels(metadata),
        complaint=complaint,
        plan=plan,
        started=status.optional_text("startTime"),
        charged=charged if isinstance(charged, PodRequest) and charged.claims else None,
        constraints=ANY_NODE if node else read_constraints(pod),
    )


def _labels(metadata: Reader) -> Mapping[str, str]:
    """Read a pod's labels; the pods of a Deployment share theirs in memory."""
    labels = metadata.optional_object("labels").texts("")
    if not labels:
        return NO_LABELS
    # Any user can create pods, and with many labels.
    return labels if len(labels) > _MOST_LABELS else _shared(tuple(labels.items()))


@lru_cache(maxsize=1024)
def _shared(labels: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return MappingProxyType(dict(labels))


def _by_spec(
    requested: RequestedResources, ref: PodRef, request: PodRequest | Refusal
) -> PodRequest | Refusal:
    """Return what a bound pod asks, ignoring annotations that make it invalid.

    A user may have written them after the binding. ``apart`` is tried last.
    """
    for notes in ({}, {names.CONTAINERS: names.APART}):
        if isinstance(request, Refusal):
            request = _request(requested, ref, notes)
    return request


def find_unknown_annotations(pod: Json) -> Iterator[str]:
    """Yield messages about a few unknown annotations that look like gpushare's.

    Those are gpushare's names with a typing error, or under another domain or none.
    """
    raw = (pod.get("metadata") or {}).get("annotations") or {}
    unknown = (key for key in raw if _looks_ours(key) and key not in _KNOWN)
    for key in islice(unknown, _MOST_UNKNOWN):
        word = key.rpartition("/")[2].removeprefix(f"{_OURS}-").lower()
        close = difflib.get_close_matches(word, _USERS, 1, _LIKE)
        meant = f"did you mean {_USERS[close[0]]}?" if close else f"known are {_ALL}"
        yield f"the annotation {clean_text(key)} is unknown here; {meant}"


def find_untranslated_mib(pod: Json) -> Iterator[str]:
    """Yield a message if a pod asks for memory in MiB, which no node offers."""
    spec = pod.get("spec") or {}
    every = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    limits = (
        (container.get("resources") or {}).get("limits") or () for container in every
    )
    if any(names.MEMORY_MIB in resources for resources in limits):
        yield (
            f"it asks for {names.MEMORY_MIB}, which no node offers: the webhook writes "
            f"{names.MEMORY} in its place, and was not called for this pod"
        )


def _looks_ours(key: str) -> bool:
    # The webhook writes several annotations with this prefix.
    return not key.startswith(names.BITFUSION_LABEL) and (
        key.startswith(names.PREFIX) or key.rpartition("/")[2].startswith(_OURS)
    )


def is_ours(pod: Json) -> bool:
    """Return whether a pod names any gpushare resource, even with quantity 0."""
    return RequestedResources(pod).is_ours()


def read_cards(node: Json) -> tuple[Card, ...]:
    """Read the node's cards, with cordons; empty without annotation; ``Malformed``."""
    text = _annotations(node).get(names.CARDS)
    listed = () if text is None else decode_cards(text)
    closed = read_cordon(node)
    if not closed:
        return listed
    return tuple(replace(card, cordoned=card.uuid in closed) for card in listed)


def read_cordon(node: Json) -> frozenset[CardUUID]:
    """Read the cards that an operator cordoned, also those that do not exist."""
    return read_uuids(_annotations(node).get(names.CORDON, ""))


def read_uuids(text: str) -> frozenset[CardUUID]:
    """Read UUIDs from a comma-separated list, as operators write it by hand.

    An entry with ``=`` says who owns the order for the UUID before it: it adds none.

    >>> sorted(read_uuids(" GPU-1, ,GPU-0,GPU-0=make-room-1f9c,"))
    ['GPU-0', 'GPU-1']
    """
    entries = (entry.strip() for entry in text.split(","))
    return frozenset(CardUUID(entry) for entry in entries if entry and "=" not in entry)


def _annotations(thing: Json) -> Mapping[str, str]:
    metadata = Reader(thing).object("metadata")
    return metadata.optional_object("annotations").texts(names.PREFIX)


def read_budgets(
    objects: Iterable[Json], pods: Iterable[PodRecord]
) -> tuple[Budget, ...]:
    """Read PodDisruptionBudgets with the pods that they cover; ``Malformed``.

    As in kube-scheduler, an empty selector covers nothing, and a pod whose disruption
    has already started does not count
    (``pkg/scheduler/framework/plugins/defaultpreemption``).
    """
    known = tuple(pods)
    return tuple(_budget(Reader(budget), known) for budget in objects)


def _budget(budget: Reader, pods: Iterable[PodRecord]) -> Budget:
    namespace = budget.object("metadata").text("namespace")
    selector = budget.object("spec").optional_object("selector")
    rules = read_selector(selector)
    status = budget.optional_object("status")
    disrupted = status.optional_object("disruptedPods").raw
    covered = frozenset(
        pod.pod.uid
        for pod in pods
        if pod.pod.namespace == namespace
        and pod.pod.name not in disrupted
        and selector.raw
        and all(rule.holds(pod.labels) for rule in rules)
    )
    return Budget(covered, status.optional_integer("disruptionsAllowed"))
