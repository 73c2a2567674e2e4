"""Read what kube-scheduler sends and write its answers (contracts 1.1). Pure.

The fields have Go's names, in PascalCase; the Pod inside is an ordinary v1 Pod. Every
function that reads raises ``Malformed``, which names the field. After it nothing needs
to be checked again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap

import orjson

from gpushare.domain.eviction.preemption import Victims
from gpushare.domain.model import NodeName, PodRef, PodRequest, PodUID, Refusal
from gpushare.kube import codec
from gpushare.kube.json_reader import Malformed, Reader

NODE_CACHE = (
    "kube-scheduler sent whole Nodes; set nodeCacheCapable: true in the extender's "
    "stanza of its KubeSchedulerConfiguration"
)


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """What filter and prioritize are asked.

    ``names`` is None if kube-scheduler sent whole Nodes instead.
    """

    pod: PodRef
    request: PodRequest | Refusal
    names: list[NodeName] | None
    nominated: NodeName | None = None
    """The node that victims leave for this pod; mostly None."""
    group: str = ""
    """The pod's scheduling group, with its namespace; mostly empty."""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """What filter answers: the names kept, and the other names by reason.

    There are few reasons and may be thousands of names. ``awaited`` is the refused
    node, if any, that victims still leave for this pod.
    """

    kept: Sequence[NodeName] = ()
    reasons: Mapping[str, Sequence[NodeName]] = field(default_factory=dict)
    error: str = ""
    awaited: NodeName | None = None

    @property
    def refused(self) -> dict[NodeName, str]:
        """The reason for each name that is not kept."""
        groups = self.reasons.items()
        return {name: reason for reason, names in groups for name in names}


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """What bind is asked."""

    namespace: str
    name: str
    uid: PodUID
    node: NodeName


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """What preempt is asked: for each node, kube-scheduler's own victims."""

    pod: PodRef
    request: PodRequest | Refusal
    proposals: Mapping[NodeName, Victims]
    group: str = ""


def read_extender_args(body: bytes) -> ExtenderArgs:
    """Read the body of filter or prioritize."""
    args = _body(body)
    pod = args.object("Pod")
    names = args.raw.get("NodeNames")
    if names is None and args.raw.get("Nodes") is None:
        raise Malformed("NodeNames", "is missing")
    if names is not None and not isinstance(names, list):
        raise Malformed("NodeNames", "must be a list of names")
    try:
        # There may be 10,000: joining them checks all in C.
        "".join(names or ())
    except TypeError as error:
        raise Malformed("NodeNames", f"must hold only strings: {error}") from error
    nominated = pod.optional_object("status").optional_text("nominatedNodeName")
    ref, request, group = _asked(pod)
    return ExtenderArgs(ref, request, names, NodeName(nominated) or None, group)


def read_binding_args(body: bytes) -> BindingArgs:
    """Read the body of bind."""
    args = _body(body)
    return BindingArgs(
        args.text("PodNamespace"),
        args.text("PodName"),
        PodUID(args.text("PodUID")),
        NodeName(args.text("Node")),
    )


def read_preemption_args(body: bytes) -> PreemptionArgs:
    """Read the body of preempt, in the form with victims' UIDs or with whole Pods."""
    args = _body(body)
    pod = args.object("Pod")
    if args.raw.get("NodeNameToMetaVictims") is not None:
        nodes, whole = args.object("NodeNameToMetaVictims"), False
    else:
        nodes, whole = args.object("NodeNameToVictims"), True
    proposals = {
        NodeName(name): _victims(nodes.object(name), whole=whole) for name in nodes.raw
    }
    ref, request, group = _asked(pod)
    return PreemptionArgs(ref, request, proposals, group)


def write_filter_reply(result: FilterResult) -> bytes:
    """Write what filter answers; refused nodes are unresolvable (contracts 1.8).

    An awaited node is not: kube-scheduler would take the nomination from the pod while
    its victims are still leaving, and look for other victims.
    """
    reasons, awaited = result.reasons, result.awaited
    failed = {}
    if awaited is not None:
        failed = {awaited: result.refused[awaited]}
        reasons = {
            reason: [name for name in names if name != awaited]
            for reason, names in reasons.items()
        }
    refused = filter(None, starmap(_each_with, reasons.items()))
    return orjson.dumps(
        {
            "Nodes": None,
            "NodeNames": result.kept,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": orjson.Fragment(b"{%b}" % b",".join(refused)),
            "Error": result.error,
        }
    )


def _each_with(reason: str, names: Sequence[NodeName]) -> bytes:
    """Write the members of an object that has the same value for all names.

    For thousands of names one join takes a fraction of the time of a dictionary.
    """
    all_names = "".join(names)
    if len(orjson.dumps(all_names)) != len(all_names) + len('""'):
        # A character that JSON or UTF-8 writes as several.
        return orjson.dumps(dict.fromkeys(names, reason))[1:-1]
    if not names:
        return b""
    value = f'":{orjson.dumps(reason).decode()}'
    between = value + ',"'
    return f'"{between.join(names)}{value}'.encode()


def write_prioritize_reply(scores: Iterable[tuple[NodeName, int]]) -> bytes:
    """Write what prioritize answers: a bare list of names with scores of 0 to 10."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in scores])


def write_bind_reply(error: str = "") -> bytes:
    """Write what bind answers; an empty error means that the pod is bound."""
    return orjson.dumps({"Error": error})


def write_preempt_reply(chosen: Mapping[NodeName, Victims]) -> bytes:
    """Write what preempt answers, always in the form with UIDs."""
    nodes = {
        name: {
            "Pods": [{"UID": uid} for uid in victims.uids],
            "NumPDBViolations": victims.budget_violations,
        }
        for name, victims in chosen.items()
    }
    return orjson.dumps({"NodeNameToMetaVictims": nodes})


def _body(body: bytes) -> Reader:
    """Read the body; the paths of its fields have no prefix."""
    return Reader(Reader.parse(body, "body").raw) if body else Reader(None)


def _asked(pod: Reader) -> tuple[PodRef, PodRequest | Refusal, str]:
    """Read which pod it is, what it asks for, and its scheduling group."""
    try:
        ref = codec.read_pod_ref(pod.raw)
        group = codec.read_scheduling_group(pod.raw)
        return ref, codec.read_pod_request(pod.raw, ref), group
    except Malformed as error:
        raise Malformed(f"Pod.{error.field}", error.problem) from error


def _victims(victims: Reader, *, whole: bool) -> Victims:
    pods = victims.optional_objects("Pods")
    uids = tuple(
        PodUID((pod.object("metadata").text("uid")) if whole else pod.text("UID"))
        for pod in pods
    )
    return Victims(uids, victims.optional_integer("NumPDBViolations"))
