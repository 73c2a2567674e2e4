"""Kubernetes JSON to our nouns and back; nobody else looks inside an object. Pure.

The part of a pod that says what it asks, to tell pods that ask the same.

A Deployment's pods differ in their names alone. Where thousands are read at a start, as
many amounts are worked out as there are kinds of pods.

What a pod's containers ask of cards, read from its spec. Pure.

What pods ask of a node's own CPU and memory, and what nodes have of it.

PodDisruptionBudgets, joined with the pods that they cover. Pure.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from sys import intern

import orjson

from gpushare.domain.hosts import Hosts
from gpushare.domain.model import (
    UNIT_MIB,
    Amount,
    Card,
    CardUUID,
    Claim,
    HostAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.preemption import Budget
from gpushare.domain.quantity import (
    NotAQuantity,
    NotWhole,
    is_in_bytes,
    mebibytes,
    thousandths,
    whole,
)
from gpushare.domain.refusal import Reason, Refusal, invalid, users_words
from gpushare.domain.request import ContainerSpec, Role, claims
from gpushare.kube import names
from gpushare.kube.annotations import LIMITS, card_selector, decode_cards, placements
from gpushare.kube.cluster import Json
from gpushare.kube.facts import TERMINAL
from gpushare.kube.json_reader import MOST, Malformed, Reader

MOST_KINDS = 4096
LONGEST_KEPT = 2048
"""What comes of so many, none of them longer, is kept at a time: 8 MiB at the most.
Anybody may make pods, and large ones."""
_OF_CONTAINERS = ("name", "resources", "restartPolicy")
_LISTS = ("initContainers", "containers")


def essence(pod: Json) -> bytes | None:
    """Return a pod with nothing left in it but what it asks, as JSON.

    Whoever reads what is asked finds the same in it as in the pod, complaints included.
    None for what is so far from a pod that its complaints need all of it.
    """
    spec = pod.get("spec")
    if type(spec) is not dict:
        return None
    left = {key: spec[key] for key in ("overhead", "resources") if key in spec}
    for key in _LISTS:
        containers = spec.get(key)
        if containers is None:
            continue
        if type(containers) is not list:
            return None
        left[key] = kept = []
        for each in containers:
            if type(each) is not dict:
                return None
            kept.append({k: each[k] for k in _OF_CONTAINERS if k in each})
    try:
        return orjson.dumps({"spec": left})
    except TypeError:
        # It reads deeper than it writes.
        return None


class Unmeetable(ValueError):
    """A quantity in order for Kubernetes that no card can meet."""


def claims_of(
    pod: Json, kind: bytes | None, *, apart: bool
) -> tuple[Claim, ...] | Refusal:
    """Return the pod's claims, or why it can have none; ``kind`` is its ``essence``.

    ``Malformed`` and ``Unmeetable`` as ``containers``.
    """
    if kind is None or len(kind) > LONGEST_KEPT:
        return claims_by(containers(pod), apart=apart)
    return _claims_of(kind, apart)


@lru_cache(MOST_KINDS)
def _claims_of(kind: bytes, apart: bool) -> tuple[Claim, ...] | Refusal:  # noqa: FBT001
    return claims_by(containers(orjson.loads(kind)), apart=apart)


def claims_by(
    containers: Sequence[ContainerSpec], *, apart: bool
) -> tuple[Claim, ...] | Refusal:
    """Return the claims; a refusal names the annotation where that alone would help."""
    found = claims(containers, apart=apart)
    if apart or not isinstance(found, Refusal):
        return found
    if isinstance(claims(containers, apart=True), Refusal):
        return found
    return invalid(
        f'{found.detail}, or set {names.CONTAINERS} to "{names.APART}": each container '
        "may then have a card of its own"
    )


def containers(pod: Json) -> list[ContainerSpec]:
    """Read the containers in the order in which kubelet admits them.

    Those that ask nothing too. ``Malformed``, or ``Unmeetable`` for an amount that no
    card can meet.
    """
    spec = Reader(pod).object("spec")
    found = []
    for container in spec.optional_objects("initContainers"):
        stays = container.optional_text("restartPolicy") == "Always"
        role = Role.SIDECAR if stays else Role.INIT
        found.append(ContainerSpec(container.text("name"), role, _amount(container)))
    for container in spec.optional_objects("containers"):
        name = container.text("name")
        found.append(ContainerSpec(name, Role.APP, _amount(container)))
    return found


def _amount(container: Reader) -> Amount:
    resources = container.optional_object("resources")
    return Amount(
        cores=_quantity(resources, names.CORE), units=_quantity(resources, names.MEMORY)
    )


def _quantity(resources: Reader, resource: str) -> int:
    """Read what is asked: ``requests``, or ``limits``, its default."""
    for part in ("requests", "limits"):
        asked = resources.optional_object(part)
        raw = asked.raw.get(resource)
        if raw is None:
            continue
        try:
            number = whole(raw)
        except NotAQuantity as error:
            raise Malformed(asked.path(resource), str(error)) from error
        except NotWhole as error:
            text = users_words(str(raw))
            raise Unmeetable(f"{resource} is {text}; it must be whole") from error
        if is_in_bytes(raw):
            raise Unmeetable(_bytes_for_units(resource, str(raw), number))
        if number > MOST:
            text = users_words(str(raw))
            raise Unmeetable(f"{resource} is {text}; no node has so much")
        return number
    return 0


def _bytes_for_units(resource: str, text: str, number: int) -> str:
    if resource != names.MEMORY:
        return f"{resource} is {users_words(text)}; it must be a plain number"
    units = -(-number // (UNIT_MIB * 1024 * 1024))
    return (
        f"{resource} is {users_words(text)}, but it counts units of "
        f"{UNIT_MIB} MiB; ask {users_words(str(units))}"
    )


def host_amount(pod: Json) -> HostAmount | None:
    """Return what a pod holds at its peak, as kube-scheduler reckons (contracts 5).

    Its overhead too; where the pod as a whole names an amount, that one counts. None
    where it cannot be read: no API server would let that through.
    """
    kind = essence(pod)
    return None if kind is None else amount_of(kind)


def amount_of(kind: bytes) -> HostAmount | None:
    """Return the same by the pod's ``essence``."""
    return _kept(kind) if len(kind) <= LONGEST_KEPT else _read(kind)


def _read(kind: bytes) -> HostAmount | None:
    try:
        return _host_amount(orjson.loads(kind)["spec"])
    except (NotAQuantity, KeyError, TypeError, AttributeError):
        return None


_kept = lru_cache(MOST_KINDS)(_read)


def _host_amount(spec: Json) -> HostAmount:
    cpu, memory = _peak(spec)
    whole = _asked(spec)
    over = spec.get("overhead") or {}
    return HostAmount(
        (thousandths(whole["cpu"]) if "cpu" in whole else cpu)
        + thousandths(over.get("cpu", 0)),
        (mebibytes(whole["memory"]) if "memory" in whole else memory)
        + mebibytes(over.get("memory", 0)),
    )


def host_capacity(node: Json) -> HostAmount | None:
    """Return what a node has for its pods; None where it does not say, or not readably.

    Memory is rounded up to MiB on both sides, by less than anything is decided by.
    """
    try:
        has = node["status"]["allocatable"]
        return HostAmount(thousandths(has["cpu"]), mebibytes(has["memory"]))
    except (NotAQuantity, KeyError, TypeError):
        return None


def follow_host(hosts: Hosts, uid: PodUID, pod: Json) -> None:
    """Write a pod as it is now into the book of its host: from binding to its end."""
    spec = pod.get("spec") or {}
    node = spec.get("nodeName")
    if (pod.get("status") or {}).get("phase") in TERMINAL:
        hosts.release(uid)
    elif node and (amount := host_amount(pod)) is not None:
        priority = spec.get("priority")
        known = priority if type(priority) is int else 0
        hosts.hold(uid, NodeName(node), amount, known)


def _peak(spec: Json) -> tuple[int, int]:
    """Sum up containers and sidecars, or what an init container needs where more."""
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
        asked = _asked(container)
        if "cpu" in asked:
            cpu += thousandths(asked["cpu"])
        if "memory" in asked:
            memory += mebibytes(asked["memory"])
    return cpu, memory


def _asked(thing: Json) -> Json:
    """Return what is asked: ``requests``, or ``limits``, the default of each."""
    resources = thing.get("resources")
    if not resources:
        return {}
    asked: Json = resources.get("requests") or {}
    limits = resources.get("limits")
    return {**limits, **asked} if limits else asked


_WORDS = {
    Reason.MEMORY: f"Insufficient {names.MEMORY} on one card",
    Reason.CORE: f"Insufficient {names.CORE} on one card",
    Reason.CORE_AND_MEMORY: (
        f"Insufficient {names.CORE} and {names.MEMORY} on one card"
    ),
    Reason.UNTOUCHED_CARDS: "Insufficient untouched cards",
    Reason.NO_CARDS: "No shared cards",
}


_USERS = {
    key.removeprefix(f"{names.PREFIX}-"): key
    for key in (names.POLICY, names.CONTAINERS, names.MODELS, names.UUIDS)
}
"""The pod annotations that users write, by their last word."""
_KNOWN = frozenset({*_USERS.values(), names.PLACEMENT, names.ACTUAL})
_OURS = names.PREFIX.removeprefix(f"{names.DOMAIN}/")
_ALL = ", ".join(f"{_OURS}-{word}" for word in _USERS)
_MOST_UNKNOWN = 5
_LIKE = 0.8
"""How alike two names must be for one to be taken for a misspelt other."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """All that the house keeps of a pod.

    ``node`` is empty before the binding; ``terminal`` once its containers have ended
    for good; ``terminating`` while it has a deletion timestamp and still holds its
    share; ``nominated`` the node whose victims make room for it, mostly empty;
    ``complaint`` what is wrong with a placement that cannot be read; ``plan`` the
    planned placement, which is not ``placement`` where an actual one wins over it;
    ``started`` the time since which kubelet knows the pod, empty before;
    ``charged`` what it asks of cards, once bound by its spec alone where its
    annotations are broken; None for nothing, or what no card can meet.
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

    @property
    def asks(self) -> bool:
        """Return whether the pod asks for any part of a card."""
        return self.charged is not None


def refusal_text(refusal: Refusal) -> str:
    """Return the fixed words of a refusal, as ``kubectl describe pod`` shows them."""
    if refusal.reason is Reason.INVALID:
        return f"Invalid vcuda request: {refusal.detail}"
    if not refusal.limits:
        return _WORDS[refusal.reason]
    allow = "allows" if len(refusal.limits) == 1 else "allow"
    who = " and ".join(LIMITS[limit] for limit in refusal.limits)
    return f"{_WORDS[refusal.reason]} that {who} {allow}"


def pod_ref(pod: Json) -> PodRef:
    """Read which pod this is; ``Malformed`` names what is missing."""
    metadata = Reader(pod).object("metadata")
    spec = Reader(pod).optional_object("spec")
    return PodRef(
        PodUID(metadata.text("uid")),
        intern(metadata.text("namespace")),
        metadata.text("name"),
        spec.optional_integer("priority"),
    )


def scheduling_group(pod: Json) -> str:
    """Read which pods this one is scheduled together with; empty for most.

    The name of a PodGroup, after its namespace.
    """
    spec = Reader(pod).optional_object("spec")
    name = spec.optional_object("schedulingGroup").optional_text("podGroupName")
    namespace = Reader(pod).optional_object("metadata").optional_text("namespace")
    return f"{namespace}/{name}" if name else ""


def pod_request(pod: Json, ref: PodRef) -> PodRequest | Refusal:
    """Read what a pod, of which ``pod_ref`` has told the name, asks of cards.

    ``Malformed`` for what no API server would send; an invalid ``Refusal`` for what one
    would let through and no card can meet.
    """
    return _request(pod, ref, _annotations(pod))


def _request(
    pod: Json, ref: PodRef, annotations: Mapping[str, str]
) -> PodRequest | Refusal:
    where, kind = annotations.get(names.CONTAINERS), essence(pod)
    if where not in (None, names.APART):
        return invalid(
            f'{names.CONTAINERS} is "{users_words(where)}"; the only value is "apart"'
        )
    try:
        found = claims_of(pod, kind, apart=where == names.APART)
    except Unmeetable as error:
        return invalid(str(error))
    if isinstance(found, Refusal):
        return found
    chosen = card_selector(annotations)
    if isinstance(chosen, Refusal):
        return chosen
    policy = annotations.get(names.POLICY)
    host = None if kind is None else amount_of(kind)
    return PodRequest(ref, found, policy, chosen, host)


def pod_record(pod: Json) -> PodRecord:
    """Read all that the house keeps of a pod; ``Malformed`` as with the parts."""
    ref = pod_ref(pod)
    status = Reader(pod).optional_object("status")
    spec = Reader(pod).optional_object("spec")
    node = NodeName(intern(spec.optional_text("nodeName")))
    annotations = _annotations(pod)
    request = _request(pod, ref, annotations)
    charged = _by_spec(pod, ref, request) if node else request
    found: dict[str, Placement] = {}
    complaint = ""
    if node:
        found, complaint = placements(annotations, ref, charged, node)
    plan = found.get(names.PLACEMENT)
    return PodRecord(
        pod=ref,
        request=request,
        node=node,
        placement=found.get(names.ACTUAL, plan),
        terminal=status.optional_text("phase") in TERMINAL,
        terminating=pod["metadata"].get("deletionTimestamp") is not None,
        nominated=NodeName(status.optional_text("nominatedNodeName")),
        labels=Reader(pod).object("metadata").optional_object("labels").texts(""),
        complaint=complaint,
        plan=plan,
        started=status.optional_text("startTime"),
        charged=charged if isinstance(charged, PodRequest) and charged.claims else None,
    )


def _by_spec(
    pod: Json, ref: PodRef, request: PodRequest | Refusal
) -> PodRequest | Refusal:
    """Return what a bound pod asks, where its annotations make that invalid, without.

    Its user may have written them since. Apart only where it cannot be together.
    """
    for notes in ({}, {names.CONTAINERS: names.APART}):
        if isinstance(request, Refusal):
            request = _request(pod, ref, notes)
    return request


def unknown_annotations(pod: Json) -> Iterator[str]:
    """Return which annotations of a pod look like ours and mean nothing, a few of them.

    Those of ours under another name, and our names under another domain or none.
    """
    raw = (pod.get("metadata") or {}).get("annotations") or {}
    unknown = (key for key in raw if _looks_ours(key) and key not in _KNOWN)
    for key in islice(unknown, _MOST_UNKNOWN):
        word = key.rpartition("/")[2].removeprefix(f"{_OURS}-").lower()
        close = difflib.get_close_matches(word, _USERS, 1, _LIKE)
        meant = f"did you mean {_USERS[close[0]]}?" if close else f"known are {_ALL}"
        yield f"the annotation {users_words(key)} is unknown here; {meant}"


def _looks_ours(key: str) -> bool:
    # One space of names is the webhook's own: it writes more than one of them.
    return not key.startswith(names.BITFUSION_LABEL) and (
        key.startswith(names.PREFIX) or key.rpartition("/")[2].startswith(_OURS)
    )


def is_ours(pod: Json) -> bool:
    """Return whether a pod names any of our resources, a zero quantity included."""
    spec = pod.get("spec") or {}
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            resources = container.get("resources") or {}
            for part in ("requests", "limits"):
                asked = resources.get(part) or {}
                if names.MEMORY in asked or names.CORE in asked:
                    return True
    return False


def cards(node: Json) -> tuple[Card, ...]:
    """Read the node's cards, none where it has no annotation of ours; ``Malformed``.

    Those that an operator has cordoned say so.
    """
    text = _annotations(node).get(names.CARDS)
    found = () if text is None else decode_cards(text)
    closed = cordon(node)
    if not closed:
        return found
    return tuple(replace(card, cordoned=card.uuid in closed) for card in found)


def cordon(node: Json) -> frozenset[CardUUID]:
    """Read which cards an operator has cordoned, whether the node has them or not."""
    return uuids(_annotations(node).get(names.CORDON, ""))


def uuids(text: str) -> frozenset[CardUUID]:
    """Read UUIDs from a list with commas, as operators write it by hand.

    >>> sorted(uuids(" GPU-1, ,GPU-0,"))
    ['GPU-0', 'GPU-1']
    """
    return frozenset(CardUUID(one.strip()) for one in text.split(",") if one.strip())


def _annotations(thing: Json) -> Mapping[str, str]:
    metadata = Reader(thing).object("metadata")
    return metadata.optional_object("annotations").texts(names.PREFIX)


def budgets(objects: Iterable[Json], pods: Iterable[PodRecord]) -> tuple[Budget, ...]:
    """Read budgets, each with those of our pods that it covers; ``Malformed``.

    As kube-scheduler counts them: an empty selector covers nothing, and a pod whose
    disruption is under way already counts no more
    (``pkg/scheduler/framework/plugins/defaultpreemption``).
    """
    known = tuple(pods)
    return tuple(_budget(Reader(each), known) for each in objects)


def _budget(budget: Reader, pods: Iterable[PodRecord]) -> Budget:
    namespace = budget.object("metadata").text("namespace")
    selector = budget.object("spec").optional_object("selector")
    status = budget.optional_object("status")
    disrupted = status.optional_object("disruptedPods").raw
    covered = frozenset(
        pod.pod.uid
        for pod in pods
        if pod.pod.namespace == namespace
        and pod.pod.name not in disrupted
        and selector.raw
        and _selects(selector, pod.labels)
    )
    return Budget(covered, status.optional_integer("disruptionsAllowed"))


def _selects(selector: Reader, labels: Mapping[str, str]) -> bool:
    wanted = selector.optional_object("matchLabels").texts("")
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(
        _holds(rule, labels) for rule in selector.optional_objects("matchExpressions")
    )


def _holds(rule: Reader, labels: Mapping[str, str]) -> bool:
    found = labels.get(rule.text("key"))
    values = rule.raw.get("values") or ()
    match rule.text("operator"):
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
    return False
