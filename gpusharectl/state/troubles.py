"""What needs an operator, each with the next step. Pure.

One function for each kind of trouble; to add one, write it and name it in ``_ALL``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gpushare.domain.model import CORES_PER_CARD
from gpushare.domain.node import Node
from gpushare.kube import facts, names, words
from gpushare.kube.annotations import find_unknown_annotations, read_cards, read_uuids
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpusharectl.output import rounded
from gpusharectl.state.read import (
    ClusterState,
    Setup,
    Trouble,
    find_config,
    is_configured_by_us,
)


def find_troubles(
    state: ClusterState, of_host: Sequence[Trouble] = ()
) -> Iterator[Trouble]:
    """Return all troubles, those of the whole cluster first.

    A kube-scheduler whose host is among ``of_host`` is not reported again. Components
    are missed only where gpushare is installed.
    """
    yield from of_host
    yield from state.troubles
    if state.setup is Setup.INSTALLED:
        yield from _extender(state)
        yield from _scheduler(state, {trouble.about for trouble in of_host})
        yield from _device_plugin(state)
    for look in _ALL:
        yield from look(state)


def _extender(state: ClusterState) -> Iterator[Trouble]:
    pods = [pod for pod in state.parts if facts.is_extender(pod)]
    if not pods:
        what = (
            f"there is no extender pod in {facts.SYSTEM}; unless it runs in another "
            "way, pods that request cards wait, or are bound without one"
        )
        yield Trouble("extender", what, "gpusharectl install")
    elif not any(map(facts.is_ready, pods)):
        name = facts.label(pods[0], facts.PART_NAME)
        yield Trouble("extender", _none_ready(pods), _of_part("logs", name))


def _none_ready(pods: Sequence[Json]) -> str:
    if len(pods) == 1:
        return f"its pod in {facts.SYSTEM} is not ready"
    return f"none of its {len(pods)} pods in {facts.SYSTEM} is ready"


def _of_part(command: str, part: str) -> str:
    return f"kubectl -n {facts.SYSTEM} {command} -l {facts.PART_NAME}={part}"


def _scheduler(state: ClusterState, reported: set[str]) -> Iterator[Trouble]:
    """Report each kube-scheduler that does not use gpushare's configuration."""
    if any(facts.is_part(pod, facts.SECOND_SCHEDULER) for pod in state.parts):
        return
    for pod in filter(facts.is_kube_scheduler, state.parts):
        if facts.node_of(pod) in reported or is_configured_by_us(pod):
            continue
        how = "without --config"
        if config := find_config(pod):
            how = f"with --config={config}, which the installer did not write"
        what = (
            f"it is started {how}; unless it calls the extender, it binds pods without "
            "a card"
        )
        yield Trouble(facts.name_of(pod), what, "gpusharectl install, on that host")


def _webhook(state: ClusterState) -> Iterator[Trouble]:
    """Report a webhook that is called or has pods, none of which is ready."""
    pods = [pod for pod in state.parts if facts.is_part(pod, facts.WEBHOOK)]
    if any(map(facts.is_ready, pods)):
        return
    if pods:
        what = _none_ready(pods)
        look = _of_part("describe pods", facts.WEBHOOK)
    elif state.reviewed:
        what = f"the API server calls it, but it has no pod in {facts.SYSTEM}"
        look = f"kubectl -n {facts.SYSTEM} describe deployment {facts.WEBHOOK}"
    else:
        return
    so = "until one is ready, no pod that requests a card can be created"
    if state.reviewed is False:
        so = "the API server does not call it either, so pods are created unchecked"
    yield Trouble("webhook", f"{what}; {so}", look)


def _device_plugin(state: ClusterState) -> Iterator[Trouble]:
    for node in state.nodes:
        name = facts.name_of(node)
        ready = state.plugins.get(name)
        if ready or not facts.is_labelled(node):
            continue
        lacks = "its plugin is not ready"
        if ready is None:
            lacks = "it has no device plugin"
        what = f"the node has the label {names.GPU_NODE_LABEL}=true, but {lacks}"
        yield Trouble(name, what, _of_part("describe pods", facts.DEVICE_PLUGIN))


def _node_ready(state: ClusterState) -> Iterator[Trouble]:
    for body, _ in _with_cards(state):
        ready = facts.holds(body, "Ready")
        if ready is not True:
            how = "is not ready" if ready is False else "does not report its status"
            what = f"the node {how}; no pod starts there, and running pods stay charged"
            name = facts.name_of(body)
            yield Trouble(name, what, f"kubectl describe node {name}")


def _offered(state: ClusterState) -> Iterator[Trouble]:
    """Report a kubelet that does not count what the device plugin has published."""
    for body, node in _with_cards(state):
        healthy = [card for card in node.cards if card.healthy]
        wanted = {
            names.MEMORY: sum(card.units for card in healthy),
            names.CORE: CORES_PER_CARD * len(healthy),
        }
        offered = {key: facts.allocatable(body, key) for key in wanted}
        if offered != wanted and any((*wanted.values(), *offered.values())):
            what = "; ".join(
                f"kubelet offers {rounded(offered[key])} of {key}, the cards have {has}"
                for key, has in wanted.items()
                if offered[key] != has
            )
            do = (
                "check in the log of the device plugin there that it has registered "
                "with kubelet"
            )
            yield Trouble(facts.name_of(body), what, do)


def _annotations(state: ClusterState) -> Iterator[Trouble]:
    """Report annotations that cannot be read or name cards that do not exist."""
    for node in state.nodes:
        name = facts.name_of(node)
        try:
            here = {card.uuid for card in read_cards(node)}
        except Malformed as error:
            what = f"it shares no cards, because its annotation cannot be read: {error}"
            do = "find out who wrote it; the device plugin writes it again"
            yield Trouble(name, what, do)
            continue
        for key, command in ((names.CORDON, "uncordon-card"), (names.CLEAR, "")):
            missing = read_uuids(facts.annotation(node, key)) - here
            if missing:
                cards = words.listed(sorted(missing), 3)
                what = f"{key} names cards that the node does not have: {cards}"
                by_hand = f"kubectl annotate node {name} {key}-"
                by_command = f"gpusharectl {command} {name} {min(missing)}"
                yield Trouble(name, what, by_command if command else by_hand)


def _placements(state: ClusterState) -> Iterator[Trouble]:
    for seen in state.pods.values():
        if seen.record.complaint:
            do = "delete the pod; if it comes back so, find out who writes placements"
            yield Trouble(facts.full_name(seen.body), seen.record.complaint, do)


def _unplaced(state: ClusterState) -> Iterator[Trouble]:
    """Report pods that were bound without the extender: charged on every card."""
    for node in state.placements.nodes:
        if node.unplaced:
            pods = sorted(str(request.pod) for request in node.unplaced.values())
            what = (
                f"the card of {words.listed(pods, 3)} is not known, so each card "
                "here is charged for it"
            )
            do = (
                "wait for the device plugin to report it; if this stays, check that "
                "kube-scheduler calls the extender"
            )
            yield Trouble(str(node.name), what, do)


def _over_placed(state: ClusterState) -> Iterator[Trouble]:
    """Report cards of which more is held than they have."""
    for node in state.placements.nodes:
        charged = replace(node, nominations={}).charged
        for card in node.cards:
            cores, units = charged.get(card.uuid, (0, 0))
            if units > card.units or cores > CORES_PER_CARD:
                claims = any(p.pod.is_resource_claim for p in node.placements.values())
                holders = "pods and ResourceClaims" if claims else "pods"
                what = (
                    f"{holders} hold {units} of {card.units} units and {cores} of "
                    f"{CORES_PER_CARD} cores of card {card.index}, more than it has"
                )
                do = "delete pods there until they hold no more than the card has"
                yield Trouble(str(node.name), what, do)


def _not_started(state: ClusterState) -> Iterator[Trouble]:
    """Report bound pods whose container the device plugin refuses."""
    for seen in state.pods.values():
        waits = facts.waits_because(seen.body)
        if seen.record.node and waits.startswith("CreateContainerConfigError"):
            name = facts.full_name(seen.body)
            yield Trouble(name, f"does not start: {waits}", f"gpusharectl why {name}")


def _misspelt(state: ClusterState) -> Iterator[Trouble]:
    """Report annotations of pods that look like gpushare's and have no meaning."""
    pods_by_text: dict[str, list[str]] = {}
    for seen in state.pods.values():
        for text in find_unknown_annotations(seen.body):
            pods_by_text.setdefault(text, []).append(facts.full_name(seen.body))
    for text, pods in pods_by_text.items():
        do = "correct it where these pods are created"
        yield Trouble(words.listed(pods, 3), text, do)


def _uncounted(state: ClusterState) -> Iterator[Trouble]:
    return check_quotas(state.quotas or ())


def check_quotas(quotas: Iterable[Json]) -> Iterator[Trouble]:
    """Report ResourceQuotas with keys that look like gpushare's and count nothing."""
    by_keys: dict[str, list[str]] = {}
    for body in quotas:
        if keys := facts.uncounted(body):
            by_keys.setdefault(words.listed(keys, 3), []).append(facts.full_name(body))
    for text, quota_names in by_keys.items():
        what = f"keys that count nothing: {text}; limit {' and '.join(facts.COUNTED)}"
        do = "correct the keys where these quotas are created"
        yield Trouble(f"quota {words.listed(quota_names, 3)}", what, do)


def _idle_quotas(state: ClusterState) -> Iterator[Trouble]:
    """Report quotas on Bitfusion's resource if no node offers it."""
    resource = names.BITFUSION_GPU
    if any(facts.allocatable(node, resource) for node in state.nodes):
        return
    idle = [
        str(body["metadata"].get("namespace") or "")
        for body in state.quotas or ()
        if f"requests.{resource}" in ((body.get("spec") or {}).get("hard") or {})
    ]
    for namespace in dict.fromkeys(idle):
        what = f"its quota on {resource} counts nothing, because no node offers it"
        yield Trouble(namespace, what, f"gpusharectl migrate-quota -n {namespace}")


_ALL: tuple[Callable[[ClusterState], Iterator[Trouble]], ...] = (
    _webhook,
    _node_ready,
    _offered,
    _annotations,
    _placements,
    _unplaced,
    _over_placed,
    _not_started,
    _misspelt,
    _uncounted,
    _idle_quotas,
)


def _with_cards(state: ClusterState) -> Iterator[tuple[Json, Node]]:
    for node in state.placements.nodes:
        body = state.node(node.name)
        if body is not None and node.cards:
            yield body, node
