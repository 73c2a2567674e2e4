"""Read pods and disruption budgets from their JSON, and write refusals. Pure.

What a pod asks of cards and of its node is computed once for each kind of pod. The pods
of a Deployment differ in their names only. So the results are kept by the part of the
spec that says what is asked: ``filter`` and the caches read a pod once, and compute
something only for the first pod of a kind. The formats inside annotations are in
``annotations``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from types import MappingProxyType

import orjson

from gpushare.domain.eviction.preemption import Budget
from gpushare.domain.model import (
    UNIT_MIB,
    Amount,
    Claim,
    HostAmount,
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
from gpushare.domain.quantity import (
    NotAQuantity,
    NotWhole,
    is_in_bytes,
    parse_mebibytes,
    parse_thousandths,
    parse_whole,
    read_whole,
)
from gpushare.domain.request import ContainerSpec, Role, build_claims, peak_amount
from gpushare.kube import names
from gpushare.kube.annotations import (
    LIMITS,
    read_card_selector,
    read_placements,
)
from gpushare.kube.cluster import Json
from gpushare.kube.facts import TERMINAL
from gpushare.kube.json_reader import MOST, Malformed, Reader
from gpushare.kube.label_selectors import read_selector
from gpushare.kube.node_filters import ANY_NODE, Constraints, read_constraints

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
NO_LABELS: Mapping[str, str] = MappingProxyType({})
"""Of all pods that have none."""
_MOST_LABELS = 16
MOST_KINDS = 4096
LONGEST_KEY = 2048
"""Limits of the cache, in results and bytes of a key: at most 8 MiB of keys. Any user
can create pods, and large ones."""
_LISTS = ("initContainers", "containers")


class Unmeetable(ValueError):
    """A quantity that is valid for Kubernetes and that no card can meet."""


class _ResourceKind:
    """What was computed for pods that ask the same; ``host`` may also be None."""

    __slots__ = ("apart", "has_host", "host", "is_ours", "together")

    def __init__(self) -> None:
        self.apart: tuple[Claim, ...] | Refusal | None = None
        self.together: tuple[Claim, ...] | Refusal | None = None
        self.has_host = False
        self.host: HostAmount | None = None
        self.is_ours: bool | None = None


_KINDS: dict[bytes, _ResourceKind] = {}


class RequestedResources:
    """What one pod asks; results are shared with all pods that ask the same."""

    __slots__ = ("_is_readable", "_kind", "_pod")

    def __init__(self, pod: Json) -> None:
        self._pod = pod
        key = _key(pod)
        self._is_readable = key is not None
        self._kind = _KINDS.get(key or b"") or _new_kind(key)

    def is_ours(self) -> bool:
        """Return whether any gpushare resource is named, even with quantity 0."""
        kind = self._kind
        if kind.is_ours is None:
            kind.is_ours = _names_cards(self._pod)
        return kind.is_ours

    def claims(self, *, apart: bool) -> tuple[Claim, ...] | Refusal:
        """Return the pod's claims, or why it can have none.

        Raises ``Malformed`` and ``Unmeetable`` as ``containers`` does.
        """
        kind = self._kind
        claims = kind.apart if apart else kind.together
        if claims is None:
            claims = build_claims_by_annotation(read_containers(self._pod), apart=apart)
            if apart:
                kind.apart = claims
            else:
                kind.together = claims
        return claims

    def host(self) -> HostAmount | None:
        """Return the CPU and memory that the pod needs at its peak (contracts 5).

        Computed as kube-scheduler does, with the pod's overhead; an amount for the pod
        as a whole replaces the sum. None if the spec cannot be read.
        """
        kind = self._kind
        if not kind.has_host:
            kind.host = self._host() if self._is_readable else None
            kind.has_host = True
        return kind.host

    def _host(self) -> HostAmount | None:
        try:
            return _host_amount(self._pod["spec"])
        except (NotAQuantity, KeyError, TypeError, AttributeError):
            return None


def _new_kind(key: bytes | None) -> _ResourceKind:
    """Return an empty kind, kept if its key is short; a full cache starts again."""
    kind = _ResourceKind()
    if key is not None and len(key) <= LONGEST_KEY:
        if len(_KINDS) >= MOST_KINDS:
            _KINDS.clear()
        _KINDS[key] = kind
    return kind


def _key(pod: Json) -> bytes | None:
    spec = pod.get("spec")
    if type(spec) is not dict:
        return None
    key_parts = {"overhead": spec.get("overhead"), "resources": spec.get("resources")}
    for key in _LISTS:
        containers = spec.get(key)
        if containers is None:
            continue
        if type(containers) is not list:
            return None
        kept = []
        for container in containers:
            if type(container) is not dict:
                return None
            kept.append(
                {
                    "name": container.get("name"),
                    "resources": container.get("resources"),
                    "restartPolicy": container.get("restartPolicy"),
                }
            )
        key_parts[key] = kept
    try:
        return orjson.dumps(key_parts)
    except TypeError:
        # orjson parses deeper objects than it writes.
        return None


def _names_cards(pod: Json) -> bool:
    spec = pod.get("spec") or {}
    for key in _LISTS:
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            for part in ("requests", "limits"):
                amounts = resources.get(part) or {}
                if names.MEMORY in amounts or names.CORE in amounts:
                    return True
    return False


def build_claims_by_annotation(
    containers: Sequence[ContainerSpec], *, apart: bool
) -> tuple[Claim, ...] | Refusal:
    """Return the claims; a refusal names the annotation if that alone would help."""
    built = build_claims(containers, apart=apart)
    if apart or not isinstance(built, Refusal):
        return built
    if isinstance(build_claims(containers, apart=True), Refusal):
        return built
    return refuse_invalid(
        f'{built.detail}, or set {names.CONTAINERS} to "{names.APART}": each container '
        "may then have a card of its own"
    )


def read_containers(pod: Json) -> list[ContainerSpec]:
    """Read all containers in the order in which kubelet admits them.

    Raises ``Malformed``, or ``Unmeetable`` for an amount that no card can meet.
    """
    spec = Reader(pod).object("spec")
    specs = []
    for container in spec.optional_objects("initContainers"):
        role = _first_role(container.optional_text("restartPolicy"))
        specs.append(ContainerSpec(container.text("name"), role, _amount(container)))
    for container in spec.optional_objects("containers"):
        name = container.text("name")
        specs.append(ContainerSpec(name, Role.APP, _amount(container)))
    return specs


def _first_role(restart_policy: object) -> Role:
    return Role.SIDECAR if restart_policy == "Always" else Role.INIT


def effective_request(pod: Json) -> Amount:
    """Return what kube-scheduler counts of a pod in the sums of its node (contracts 5).

    What is no whole number counts as nothing, because no API server accepts it.
    """
    first, rest = (pod["spec"].get(key) or () for key in _LISTS)
    specs = [
        ContainerSpec(
            "", _first_role(container.get("restartPolicy")), _counted(container)
        )
        for container in first
    ]
    specs += [ContainerSpec("", Role.APP, _counted(container)) for container in rest]
    return peak_amount(specs)


def _counted(container: Json) -> Amount:
    amounts = _amounts_of(container)
    cores, units = (read_whole(amounts.get(n)) for n in (names.CORE, names.MEMORY))
    return Amount(cores or 0, units or 0)


def _amount(container: Reader) -> Amount:
    resources = container.optional_object("resources")
    return Amount(
        cores=_quantity(resources, names.CORE), units=_quantity(resources, names.MEMORY)
    )


def _quantity(resources: Reader, resource: str) -> int:
    for part in ("requests", "limits"):
        amounts = resources.optional_object(part)
        raw = amounts.raw.get(resource)
        if raw is None:
            continue
        try:
            number = parse_whole(raw)
        except NotAQuantity as error:
            raise Malformed(amounts.path(resource), str(error)) from error
        except NotWhole as error:
            text = clean_text(str(raw))
            raise Unmeetable(f"{resource} is {text}; it must be whole") from error
        if is_in_bytes(raw):
            raise Unmeetable(_bytes_for_units(resource, str(raw), number))
        if number > MOST:
            text = clean_text(str(raw))
            raise Unmeetable(f"{resource} is {text}; no node has so much")
        return number
    return 0


def _bytes_for_units(resource: str, text: str, number: int) -> str:
    if resource != names.MEMORY:
        return f"{resource} is {clean_text(text)}; it must be a plain number"
    units = -(-number // (UNIT_MIB * 1024 * 1024))
    return (
        f"{resource} is {clean_text(text)}, but it counts units of "
        f"{UNIT_MIB} MiB; ask {clean_text(str(units))}"
    )


def _host_amount(spec: Json) -> HostAmount:
    cpu, memory = _peak(spec)
    whole = _amounts_of(spec)
    over = spec.get("overhead") or {}
    return HostAmount(
        (parse_thousandths(whole["cpu"]) if "cpu" in whole else cpu)
        + parse_thousandths(over.get("cpu", 0)),
        (parse_mebibytes(whole["memory"]) if "memory" in whole else memory)
        + parse_mebibytes(over.get("memory", 0)),
    )


def _peak(spec: Json) -> tuple[int, int]:
    """Return the sum of containers and sidecars, or an init container's larger need."""
    cpu, memory = _sum(spec.get("containers") or ())
    first = spec.get("initContainers")
    if not first:
        return cpu, memory
    side_cpu, side_memory, most_cpu, most_memory = 0, 0, 0, 0
    for container in first:
        more_cpu, more_memory = _sum((container,))
        if container.get("restartPolicy") == "Always":
            side_cpu += more_cpu
            side_memory += more_memory
            more_cpu = more_memory = 0
        most_cpu = max(most_cpu, side_cpu + more_cpu)
        most_memory = max(most_memory, side_memory + more_memory)
    return max(cpu + side_cpu, most_cpu), max(memory + side_memory, most_memory)


def _sum(containers: Iterable[Json]) -> tuple[int, int]:
    cpu = memory = 0
    for container in containers:
        amounts = _amounts_of(container)
        if "cpu" in amounts:
            cpu += parse_thousandths(amounts["cpu"])
        if "memory" in amounts:
            memory += parse_mebibytes(amounts["memory"])
    return cpu, memory


def _amounts_of(thing: Json) -> Json:
    """Return ``requests``, completed from ``limits``, which is the default of each."""
    resources = thing.get("resources")
    if not resources:
        return {}
    amounts: Json = resources.get("requests") or {}
    limits = resources.get("limits")
    return {**limits, **amounts} if limits else amounts


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
    metadata = Reader(pod).object("metadata")
    annotations = metadata.optional_object("annotations").texts(names.PREFIX)
    return _request(RequestedResources(pod), ref, annotations)


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


def is_ours(pod: Json) -> bool:
    """Return whether a pod names any gpushare resource, even with quantity 0."""
    return RequestedResources(pod).is_ours()


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
