"""Filter nodes by what kube-scheduler checks beside the cards. Pure.

The sources are Kubernetes 1.36, ``pkg/scheduler/framework/plugins``: nodeunschedulable,
tainttoleration, nodeaffinity (selectors and required terms) and noderesources, with
their messages. Pod affinity, spreading, volumes and ports are left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpushare.domain.model import Amount, HostAmount
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import card_capacity
from gpushare.kube.json_reader import Reader
from gpushare.kube.label_selectors import (
    LabelRequirement,
    compare_numbers,
    is_number,
    read_requirements,
)

_HARD = frozenset({"NoSchedule", "NoExecute"})
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_STATES = {
    _UNSCHEDULABLE: "unschedulable",
    "node.kubernetes.io/not-ready": "not ready",
    "node.kubernetes.io/unreachable": "unreachable",
}
"""Taints by which Kubernetes says in which state a node is."""


Taint = tuple[str, str, str]
"""Key, value and effect."""
Toleration = tuple[str, str, str, str]
"""Key, operator, value and effect; an empty key with ``Exists`` is everything."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a pod requires of a node; equal ones are judged alike."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[LabelRequirement, ...], ...] = ()
    """The required terms of node affinity: one must hold; empty if there is none."""
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeProperties:
    """What of a node does not depend on its pods.

    ``pods`` is how many it takes, ``cards`` are the cores and units that it has for all
    of them in sum; None: no limit.
    """

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    pods: int | None
    cards: Amount | None = None

    @property
    def closed(self) -> bool:
        """Whether the node is unschedulable, as a drained one is."""
        return any(key == _UNSCHEDULABLE for key, _, _ in self.taints)


ANY_NODE = Constraints()


@dataclass(frozen=True, slots=True)
class Bar:
    """Why a pod may not go to a node, even if the node is empty.

    ``message`` is kube-scheduler's, ``reason`` says what differs: ``its nodeSelector is
    zone=a, the node has zone=b``.
    """

    message: str
    reason: str


def read_constraints(pod: Json) -> Constraints:
    """Read the constraints from a pod's spec; ``Malformed`` names a wrong field."""
    spec = Reader(pod).optional_object("spec")
    affinity = spec.optional_object("affinity").optional_object("nodeAffinity")
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = affinity.optional_object(required).optional_objects("nodeSelectorTerms")
    selector = spec.optional_object("nodeSelector").texts("")
    tolerations = spec.optional_objects("tolerations")
    if not (selector or terms or tolerations):
        return ANY_NODE
    return Constraints(
        tuple(sorted(selector.items())),
        tuple(map(_read_term, terms)),
        read_tolerations(tolerations),
    )


def _read_term(term: Reader) -> tuple[LabelRequirement, ...]:
    return (
        *read_requirements(term, "matchExpressions"),
        *read_requirements(term, "matchFields"),
    )


def read_tolerations(bodies: Iterable[Reader]) -> tuple[Toleration, ...]:
    """Read tolerations, of a pod or of a claim's request."""
    return tuple(
        (
            body.optional_text("key"),
            body.optional_text("operator") or "Equal",
            body.optional_text("value"),
            body.optional_text("effect"),
        )
        for body in bodies
    )


def read_properties(node: Json) -> NodeProperties:
    """Read a node's labels, taints and limit of pods; unschedulable becomes a taint."""
    spec = node.get("spec") or {}
    taints = list(read_hard_taints(spec))
    if spec.get("unschedulable"):
        taints.append((_UNSCHEDULABLE, "", "NoSchedule"))
    pods = str(((node.get("status") or {}).get("allocatable") or {}).get("pods", ""))
    labels = dict(node["metadata"].get("labels") or {})
    labels["metadata.name"] = node["metadata"]["name"]
    return NodeProperties(
        labels,
        tuple(dict.fromkeys(taints)),
        int(pods) if pods.isdecimal() else None,
        card_capacity(node),
    )


def read_hard_taints(holder: Json) -> Iterator[Taint]:
    """Return the taints of a node's spec, or of a device, that keep pods away."""
    for taint in holder.get("taints") or ():
        if taint.get("effect") in _HARD:
            yield (
                str(taint.get("key", "")),
                str(taint.get("value") or ""),
                taint["effect"],
            )


def find_intolerable(
    taints: Iterable[Taint], tolerations: Sequence[Toleration]
) -> Taint | None:
    """Return the first taint that is not tolerated; None if all are."""
    for taint in taints:
        if not any(_covers(toleration, taint) for toleration in tolerations):
            return taint
    return None


def find_bar(properties: NodeProperties, constraints: Constraints) -> Bar | None:
    """Return why a node does not fit the pod even if it is empty; None if it does."""
    if taint := find_intolerable(properties.taints, constraints.tolerations):
        return _tainted(taint)
    labels = properties.labels
    for key, value in constraints.selector:
        if labels.get(key) != value:
            return _unmatched(f"its nodeSelector is {key}={value}", key, labels)
    terms = constraints.terms
    if not terms or any(_is_met(term, labels) for term in terms):
        return None
    if len(terms) > 1 or not terms[0]:
        return Bar(_AFFINITY, "no term of its node affinity matches")
    unmet = next(rule for rule in terms[0] if not rule.holds(labels))
    key, operator, values = unmet
    written = " ".join(filter(None, (key, operator, ", ".join(values))))
    return _unmatched(f"its node affinity is {written}", key, labels)


_AFFINITY = "node(s) didn't match Pod's node affinity/selector"


def _tainted(taint: Taint) -> Bar:
    key, value, effect = taint
    message = f"node(s) had untolerated taint {key}"
    if key == _UNSCHEDULABLE:
        message = "node(s) were unschedulable"
    if key in _STATES:
        return Bar(message, f"the node is {_STATES[key]}")
    whole = f"{key}={value}:{effect}" if value else f"{key}:{effect}"
    return Bar(message, f"it does not tolerate the taint {whole}")


def _unmatched(wanted: str, key: str, labels: Mapping[str, str]) -> Bar:
    has = f"{key}={labels[key]}" if key in labels else "no such label"
    return Bar(_AFFINITY, f"{wanted}, the node has {has}")


def find_lacks(
    amount: HostAmount | None, room: HostAmount | None, slots: int | None
) -> tuple[str, ...]:
    """Return what a node lacks of CPU, memory and number of pods.

    A resource that the pod does not ask for is never lacking, even on a full node.
    """
    crowded = slots is not None and slots < 1
    if not crowded and (amount is None or amount.fits(room)):
        return ()
    missing = ["Too many pods"] if crowded else []
    if amount is not None and room is not None:
        if amount.cpu_milli and amount.cpu_milli > room.cpu_milli:
            missing.append("Insufficient cpu")
        if amount.memory_mib and amount.memory_mib > room.memory_mib:
            missing.append("Insufficient memory")
    return tuple(missing)


def find_lacks_in_sum(amount: Amount, room: Amount | None) -> tuple[str, ...]:
    """Return what a node lacks of the sums of cores and units, None limits nothing.

    ``room`` is ``card_capacity`` less the ``effective_request`` of the node's pods.
    kube-scheduler asks no extender about a node that lacks any.
    """
    if room is None or amount.fits(room):
        return ()
    short = (
        (names.CORE, amount.cores, room.cores),
        (names.MEMORY, amount.units, room.units),
    )
    return tuple(
        f"Insufficient {name}" for name, wants, has in short if wants and wants > has
    )


def _covers(toleration: Toleration, taint: Taint) -> bool:
    """Return whether a toleration is for this taint."""
    key, operator, value, effect = toleration
    if effect not in ("", taint[2]) or key not in ("", taint[0]):
        return False
    match operator:
        case "Exists":
            return True
        case "Equal":
            return bool(key) and value == taint[1]
    # The API server accepts Gt and Lt only with the gate
    # TaintTolerationComparisonOperators (off in 1.36); then zeros may not lead.
    plain = all(
        is_number(number) and str(int(number)) == number for number in (taint[1], value)
    )
    return plain and compare_numbers(operator, taint[1], value)


def _is_met(term: tuple[LabelRequirement, ...], labels: Mapping[str, str]) -> bool:
    # An empty term matches no node, as in kube-scheduler.
    return bool(term) and all(rule.holds(labels) for rule in term)
