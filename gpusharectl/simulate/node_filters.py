"""Filter nodes by what kube-scheduler checks beside the cards. Pure.

The sources are Kubernetes 1.36, ``pkg/scheduler/framework/plugins``: nodeunschedulable,
tainttoleration, nodeaffinity (selectors and required terms) and noderesources, with
their messages. Pod affinity, spreading, volumes and ports are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.domain.model import HostAmount
from gpushare.kube.cluster import Json
from gpusharectl.simulate.synthetic import is_number

_HARD = frozenset({"NoSchedule", "NoExecute"})
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


Taint = tuple[str, str, str]
"""Key, value and effect."""
Toleration = tuple[str, str, str, str]
"""Key, operator, value and effect; an empty key with ``Exists`` is everything."""
Expression = tuple[str, str, tuple[str, ...]]
"""Key, operator and values of a requirement in a node selector."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a pod requires of a node; equal ones are judged alike."""

    amount: HostAmount | None
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Expression, ...], ...] = ()
    """The required terms of node affinity: one must hold; empty if there is none."""
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeProperties:
    """What of a node does not depend on its pods; ``pods`` None: no limit."""

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    pods: int | None

    @property
    def closed(self) -> bool:
        """Whether the node is unschedulable, as a drained one is."""
        return any(key == _UNSCHEDULABLE for key, _, _ in self.taints)


def constraints_of(pod: Json, amount: HostAmount | None) -> Constraints:
    """Read the constraints from a pod's spec."""
    spec = pod.get("spec") or {}
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (affinity or {}).get("nodeSelectorTerms") or ()
    return Constraints(
        amount,
        tuple(sorted((spec.get("nodeSelector") or {}).items())),
        tuple(tuple(_expressions(term)) for term in terms),
        tuple(
            (
                str(one.get("key") or ""),
                str(one.get("operator") or "Equal"),
                str(one.get("value") or ""),
                str(one.get("effect") or ""),
            )
            for one in spec.get("tolerations") or ()
        ),
    )


def properties_of(node: Json) -> NodeProperties:
    """Read a node's labels, taints and limit of pods; unschedulable becomes a taint."""
    spec = node.get("spec") or {}
    taints = [
        (str(one.get("key", "")), str(one.get("value") or ""), str(one["effect"]))
        for one in spec.get("taints") or ()
        if one.get("effect") in _HARD
    ]
    if spec.get("unschedulable"):
        taints.append((_UNSCHEDULABLE, "", "NoSchedule"))
    pods = str(((node.get("status") or {}).get("allocatable") or {}).get("pods", ""))
    labels = dict(node["metadata"].get("labels") or {})
    labels["metadata.name"] = node["metadata"]["name"]
    return NodeProperties(
        labels, tuple(dict.fromkeys(taints)), int(pods) if pods.isdecimal() else None
    )


def keeps_away(properties: NodeProperties, constraints: Constraints) -> str | None:
    """Return why a node does not fit the pod even if it is empty; None if it does."""
    for taint in properties.taints:
        if not any(_covers(one, taint) for one in constraints.tolerations):
            if taint[0] == _UNSCHEDULABLE:
                return "node(s) were unschedulable"
            return f"node(s) had untolerated taint {taint[0]}"
    labels = properties.labels
    if any(labels.get(key) != value for key, value in constraints.selector) or (
        constraints.terms
        and not any(_holds(term, labels) for term in constraints.terms)
    ):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


def lacks(
    constraints: Constraints, room: HostAmount | None, slots: int | None
) -> tuple[str, ...]:
    """Return what a node lacks of CPU, memory and number of pods.

    A resource that the pod does not ask for is never lacking, even on a full node.
    """
    asked = constraints.amount
    crowded = slots is not None and slots < 1
    if not crowded and (asked is None or asked.fits(room)):
        return ()
    found = ["Too many pods"] if crowded else []
    if asked is not None and room is not None:
        if asked.cpu_milli and asked.cpu_milli > room.cpu_milli:
            found.append("Insufficient cpu")
        if asked.memory_mib and asked.memory_mib > room.memory_mib:
            found.append("Insufficient memory")
    return tuple(found)


def _covers(toleration: Toleration, taint: Taint) -> bool:
    key, operator, value, effect = toleration
    if effect not in ("", taint[2]) or key not in ("", taint[0]):
        return False
    return operator == "Exists" or (bool(key) and value == taint[1])


def _expressions(term: Json) -> list[Expression]:
    told = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return [
        (str(one["key"]), str(one["operator"]), tuple(one.get("values") or ()))
        for one in told
    ]


def _holds(term: tuple[Expression, ...], labels: Mapping[str, str]) -> bool:
    # An empty term matches no node, as in kube-scheduler.
    return bool(term) and all(_matches(one, labels) for one in term)


def _matches(expression: Expression, labels: Mapping[str, str]) -> bool:
    key, operator, values = expression
    found = labels.get(key)
    match operator:
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
    if found is None or not values or not (is_number(found) and is_number(values[0])):
        return False
    limit = int(values[0])
    return int(found) > limit if operator == "Gt" else int(found) < limit
