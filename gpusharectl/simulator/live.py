"""A cluster that runs as the beginning of a scenario; nothing is written. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpushare.kube import codec, names, words
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.fields import Malformed
from gpusharectl.inspection import facts
from gpusharectl.inspection.books import chosen
from gpusharectl.simulator import liveremarks, made
from gpusharectl.simulator.podtemplate import OURS, playable
from gpusharectl.simulator.scenario import (
    Arrive,
    Drain,
    Happening,
    Join,
    Scenario,
    Step,
)

_HOSTNAME = "kubernetes.io/hostname"
_MOST_NODES = 10
_MOST_NAME = 200
"""Of a name, so that it may get a number behind it."""
_PASSING = "node.kubernetes.io/"
"""What the taints of a node that ails begin with; a new one is well."""


class LiveError(ValueError):
    """The question cannot be asked of this cluster; the message says why."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is to be different from the cluster that runs.

    ``add``: how many nodes like one that is there; ``more``: how many pods of a
    template, by what people call it. ``afresh``: the pods with cards that run are
    placed anew, in the order in which they came.
    """

    add: Mapping[str, int] = field(default_factory=dict)
    drain: Sequence[str] = ()
    more: Sequence[tuple[str, Json, int]] = ()
    afresh: bool = False


def live_scenario(
    nodes: Sequence[Json], pods: Sequence[Json], what: WhatIf, host: str
) -> Scenario:
    """Make a scenario of nodes and unfinished pods; ``LiveError``.

    Nodes are added, then the pods that wait are tried, the most important first, then
    nodes are drained, and the further pods come last. The policy is the extender's.
    """
    by_name = {facts.name_of(node): node for node in nodes}
    for name in (*what.add, *what.drain):
        if name not in by_name:
            known = words.listed(sorted(by_name), _MOST_NODES) or "none"
            raise LiveError(f'there is no node "{name}"; there are: {known}')
    there = [pod for pod in pods if facts.node_of(pod) in by_name]
    again: list[Json] = []
    if what.afresh:
        again = sorted(filter(_moves, there), key=_came)
        there = [pod for pod in there if not _moves(pod)]
    waiting = sorted(filter(_waits, pods), key=_queued)
    taken = frozenset(map(facts.full_name, pods))
    happenings: list[Happening] = [
        *(Join(node) for node in _added(by_name, what.add)),
        *(Arrive(_unbound(pod)) for pod in (*again, *waiting)),
        *(Drain(name) for name in what.drain),
        *(Arrive(pod) for pod in _further(what.more, taken)),
    ]
    extender = next(filter(facts.is_extender, pods), None)
    choice = chosen({} if extender is None else facts.settings_of(extender))
    counts = (len(again), len(waiting))
    further = [(name, each) for name, _, each in what.more]
    return Scenario(
        name=host,
        nodes=tuple(nodes),
        steps=tuple(Step(0.0, one) for one in happenings),
        there=tuple(there),
        choice=choice,
        remarks=(
            liveremarks.whose_policy(extender, choice),
            *liveremarks.played(what.add, counts, what.drain, further),
            *liveremarks.unknown(nodes, pods),
        ),
    )


def _moves(pod: Json) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    bound_here = any(owner.get("kind") in ("DaemonSet", "Node") for owner in owners)
    return codec.is_ours(pod) and not bound_here and not facts.is_leaving(pod)


def _waits(pod: Json) -> bool:
    if facts.node_of(pod) or facts.is_leaving(pod):
        return False
    return codec.is_ours(pod) and not facts.gates(pod)


def _queued(pod: Json) -> tuple[int, str, str]:
    """Order pods as kube-scheduler's queue does: priority first, then age."""
    return (-int(pod["spec"].get("priority") or 0), *_came(pod))


def _came(pod: Json) -> tuple[str, str]:
    return (facts.created(pod), facts.full_name(pod))


def _unbound(pod: Json) -> Json:
    """Give a pod as it was before anybody placed it."""
    metadata = pod["metadata"]
    told = metadata.get("annotations") or {}
    kept = {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "labels": metadata.get("labels") or {},
        "annotations": {k: text for k, text in told.items() if k not in OURS},
    }
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {**pod, "metadata": kept, "spec": spec}


def _further(
    more: Sequence[tuple[str, Json, int]], taken: frozenset[str]
) -> Iterator[Json]:
    """Make the further pods, under names that no pod has of those in ``taken``."""
    for number, (name, template, count) in enumerate(more):
        try:
            pod = playable(template)
        except Malformed as error:
            raise LiveError(f"no more of {name} can come: {error}") from error
        space, _, plain = name.rpartition("/")
        begun = f"{plain[:_MOST_NAME]}-more-{number}"
        told = (f"{begun}-{index}" for index in itertools.count())
        free = (own for own in told if f"{space}/{own}" not in taken)
        for own in itertools.islice(free, count):
            yield made.named_after(pod, space, own)


def _added(by_name: Mapping[str, Json], add: Mapping[str, int]) -> Iterator[Json]:
    for like, count in add.items():
        taken = 0
        for _ in range(count):
            taken += 1
            while (name := f"{like}-new-{taken}") in by_name:
                taken += 1
            yield _like(by_name[like], name)


def _like(node: Json, name: str) -> Json:
    """Give a new node like one that is there: empty, well, with cards of its own."""
    metadata: dict[str, Any] = node["metadata"]
    try:
        cards = [
            replace(made.card(name, card.index, card.units, card.model), healthy=True)
            for card in codec.cards(node)
        ]
    except Malformed as error:
        like = metadata["name"]
        raise LiveError(f"a node like {like} cannot be added: {error}") from error
    if liveremarks.is_dark(node):
        like = metadata["name"]
        raise LiveError(
            f"a node like {like} cannot be added: it has not told its cards; "
            "gpusharectl inspect says why"
        )
    labels = dict(metadata.get("labels") or {})
    if _HOSTNAME in labels:
        labels[_HOSTNAME] = name
    spec = node.get("spec") or {}
    taints = [
        taint
        for taint in spec.get("taints") or ()
        if not str(taint.get("key", "")).startswith(_PASSING)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {names.CARDS: encode_cards(cards)} if cards else {},
        },
        "spec": {"taints": taints},
        "status": {"allocatable": (node.get("status") or {}).get("allocatable") or {}},
    }
