"""Read the running cluster as the beginning of a scenario; nothing is written.

If rights are missing, all of them are found by trying the same reads in small. So a
right counts however it was granted, even for one object by its name.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpushare.domain.model import Placement, clean_text
from gpushare.domain.policies import POLICIES, PolicyChoice
from gpushare.informers.pods import UNFINISHED
from gpushare.informers.resource_claims import place_resource_claim
from gpushare.kube import codec, facts, names, words
from gpushare.kube.annotations import encode_cards, read_cards
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden, NotFound
from gpushare.kube.json_reader import Malformed
from gpushare.kube.objects import Ref
from gpushare.kube.resource_claims.allocated import ResourceClaim
from gpusharectl.access import Access
from gpusharectl.simulator import synthetic
from gpusharectl.simulator.scenario import (
    Arrive,
    Drain,
    Event,
    Join,
    NotPlayable,
    Scenario,
    ScenarioStep,
)
from gpusharectl.simulator.synthetic import (
    is_bound_to_node,
    read_template,
    strip_run_state,
)
from gpusharectl.state.read import (
    find_allocated,
    follows_claims,
    has_claims,
    list_all,
    offers_to_claims,
    read_policy_choice,
)

_POLICY = "GPUSHARE_POLICY"
_PASSING = ("node.kubernetes.io/", "startup-taint.cluster-autoscaler.kubernetes.io/")
"""Prefixes of the taints of a node in trouble or at its start; a new node has none."""
_CLAIMS_UNKNOWN = "What ResourceClaims hold of cards is not known, and counted as free"
_MOST_NAMES = 5
_MOST_NODES = 10
_MOST_NAME = 200
"""Characters of a name, so that a number fits behind it."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How the simulation differs from the running cluster.

    ``add`` has the number of new nodes by the node they are like. ``more`` has name,
    template and number of further pods. ``afresh``: the running pods with cards are
    placed again, in the order of their creation.
    """

    add: Mapping[str, int] = field(default_factory=dict)
    drain: Sequence[str] = ()
    more: Sequence[tuple[str, Json, int]] = ()
    afresh: bool = False


def read_live(access: Access, what: WhatIf, more: Sequence["MorePods"]) -> Scenario:
    """Read the cluster once for a scenario; ``NotPlayable`` says what is wrong."""
    host = access.objects.host
    try:
        templates = [(str(pods), _template(access, pods), pods.number) for pods in more]
        nodes = list(list_all(access.cluster, Kind.NODES))
        unfinished = list(list_all(access.cluster, Kind.PODS, UNFINISHED))
        claims, unknown = _read_claims(access.cluster, unfinished)
    except Forbidden as error:
        raise NotPlayable(describe_missing_rights(access, more, error)) from error
    except ClusterError as error:
        raise NotPlayable(f"{host}: {error}") from error
    what = replace(what, more=templates)
    scenario = make_live_scenario(nodes, unfinished, what, host, claims)
    return replace(scenario, remarks=(*scenario.remarks, *unknown))


def _read_claims(
    cluster: Cluster, pods: Iterable[Json]
) -> tuple[Sequence[ResourceClaim], Sequence[str]]:
    """Return the ResourceClaims with parts of cards, and what is not known of others.

    They are read if a pod has any, or a component of gpushare has to do with them.
    """
    signs = (has_claims, offers_to_claims, follows_claims)
    if not any(sign(pod) for pod in pods for sign in signs):
        return (), ()
    try:
        claims, wrong = find_allocated(list_all(cluster, Kind.CLAIMS))
    except NotFound:
        # An API server without ResourceClaims has none.
        return (), ()
    except ClusterError as error:
        return (), (f"{_CLAIMS_UNKNOWN}: they cannot be read: {error}.",)
    listed = words.listed(sorted(wrong), _MOST_NAMES)
    return claims, (f"{_CLAIMS_UNKNOWN}: {listed}.",) if wrong else ()


def make_live_scenario(
    nodes: Sequence[Json],
    pods: Sequence[Json],
    what: WhatIf,
    host: str,
    claims: Sequence[ResourceClaim] = (),
) -> Scenario:
    """Make a scenario of nodes and unfinished pods, or raise ``NotPlayable``.

    Nodes are added, then pending pods are tried by priority, then nodes are drained,
    and further pods come last. The policy is the extender's. ``claims`` keep their
    parts of cards, whatever is played.
    """
    by_name = {facts.name_of(node): node for node in nodes}
    for name in (*what.add, *what.drain):
        if name not in by_name:
            known = words.listed(sorted(by_name), _MOST_NODES) or "none"
            raise NotPlayable(f'there is no node "{name}"; there are: {known}')
    there = [pod for pod in pods if facts.node_of(pod) in by_name]
    again: list[Json] = []
    if what.afresh:
        again = sorted(filter(_moves, there), key=_came)
        there = [pod for pod in there if not _moves(pod)]
    pending = [pod for pod in pods if not (facts.node_of(pod) or facts.is_leaving(pod))]
    ours = [pod for pod in pending if codec.is_ours(pod)]
    others = [pod for pod in pending if not codec.is_ours(pod)]
    claiming = sum(map(has_claims, others))
    tried = sorted((pod for pod in ours if not facts.gates(pod)), key=_queued)
    taken = frozenset(map(facts.full_name, pods))
    happenings: list[Event] = [
        *(Join(node) for node in _added(by_name, what.add)),
        *(Arrive(_unbound(pod)) for pod in (*again, *tried)),
        *(Drain(name) for name in what.drain),
        *(Arrive(pod) for pod in _further(what.more, taken)),
    ]
    extender = next(filter(facts.is_extender, pods), None)
    choice = read_policy_choice(
        {} if extender is None else facts.read_environment(extender)
    )
    return Scenario(
        name=host,
        nodes=tuple(nodes),
        steps=tuple(ScenarioStep(0.0, event) for event in happenings),
        there=tuple(there),
        claims=tuple(_charges(claims, by_name)),
        choice=choice,
        remarks=(
            _whose_policy(extender, choice),
            *_played(what, len(again), len(tried)),
            *_unknown(nodes, pods),
            *_kept(claims),
            *_not_tried(len(ours) - len(tried), claiming, len(others) - claiming),
        ),
    )


def _whose_policy(extender: Json | None, choice: PolicyChoice) -> str:
    """Say which policy is used, and whether it is known to be the extender's."""
    taken = choice.default
    if extender is None:
        return f"No extender was found; the policy {taken} is used."
    setting = facts.read_environment(extender).get(_POLICY, "")
    if setting and setting not in POLICIES:
        shown = clean_text(setting)
        return f'The extender\'s policy "{shown}" is not known here; {taken} is used.'
    containers = (extender.get("spec") or {}).get("containers") or ()
    if not setting and any(
        container.get("envFrom")
        or any(env.get("name") == _POLICY for env in container.get("env") or ())
        for container in containers
    ):
        return (
            f"The extender's policy is not known: {_POLICY} may come from a ConfigMap "
            f"or a Secret, which are not read; {taken} is used."
        )
    return f"The policy is the extender's: {taken}."


def _played(what: WhatIf, afresh: int, waiting: int) -> Iterator[str]:
    """Say what is played, in order."""
    steps = [
        f"{_are(each, 'node', f'like {like}')} added" for like, each in what.add.items()
    ]
    if afresh:
        steps.append(f"{_are(afresh, 'pod', 'with cards')} placed afresh")
    if waiting:
        waits = "that waits" if waiting == 1 else "that wait"
        steps.append(f"{_are(waiting, 'pod', waits)} tried")
    steps += [f"{name} is drained" for name in what.drain]
    steps += [
        f"{each} more of {name} {'comes' if each == 1 else 'come'}"
        for name, _, each in what.more
    ]
    if steps:
        order = ", in this order" if len(steps) > 1 else ""
        yield f"Played{order}: {'; '.join(steps)}."


def _unknown(nodes: Sequence[Json], pods: Sequence[Json]) -> Iterator[str]:
    dark = [facts.name_of(node) for node in nodes if has_unknown_cards(node)]
    if dark:
        listed = words.listed(dark, _MOST_NAMES)
        yield (
            f"Cards not known, so counted as none, on: {listed}; gpusharectl inspect "
            "says why."
        )
    astray = [facts.full_name(pod) for pod in pods if _astray(pod)]
    if astray:
        yield (
            "Card not known, so room is kept on every card of the node and nothing is "
            f"counted as allotted, for: {words.listed(astray, _MOST_NAMES)}."
        )


def _charges(
    claims: Iterable[ResourceClaim], nodes: Mapping[str, Json]
) -> Iterator[Placement]:
    """Return what claims hold of the cards of these nodes."""
    for claim in claims:
        node = nodes.get(claim.node)
        if node is not None and not has_unknown_cards(node):
            yield place_resource_claim(claim, read_cards(node))


def _kept(claims: Sequence[ResourceClaim]) -> Iterator[str]:
    if claims:
        keep = "keeps its part" if len(claims) == 1 else "keep their parts"
        counted = words.counted(len(claims), "ResourceClaim")
        yield f"{counted} {keep} of cards; pods with claims stay on drained nodes."


def _not_tried(gated: int, claiming: int, plain: int) -> Iterator[str]:
    kinds = []
    if gated:
        kinds.append(f"{words.counted(gated, 'pod')} with scheduling gates")
    if claiming:
        kinds.append(f"{words.counted(claiming, 'pod')} with ResourceClaims")
    if plain:
        verb = "asks" if plain == 1 else "ask"
        kinds.append(f"{words.counted(plain, 'pod')} that {verb} for no card")
    if kinds:
        yield f"Not tried: {'; '.join(kinds)}."


def has_unknown_cards(node: Json) -> bool:
    """Tell whether a node shares cards, but its cards are not known."""
    if not facts.annotation(node, names.CARDS):
        return facts.is_labelled(node)
    try:
        read_cards(node)
    except Malformed:
        return True
    return False


def _astray(pod: Json) -> bool:
    """Tell whether a pod holds part of a card, but the card is not known."""
    if not facts.node_of(pod) or not codec.is_ours(pod):
        return False
    try:
        record = codec.read_pod_record(pod)
    except Malformed:
        return False
    return record.asks and record.placement is None


def _are(number: int, thing: str, which: str) -> str:
    return f"{words.counted(number, thing)} {which} {'is' if number == 1 else 'are'}"


def _moves(pod: Json) -> bool:
    stays = is_bound_to_node(pod) or facts.is_leaving(pod)
    return codec.is_ours(pod) and not stays


def _queued(pod: Json) -> tuple[int, str, str]:
    """Order pods as kube-scheduler's queue does: priority first, then age."""
    return (-int(pod["spec"].get("priority") or 0), *_came(pod))


def _came(pod: Json) -> tuple[str, str]:
    return (facts.created(pod), facts.full_name(pod))


def _unbound(pod: Json) -> Json:
    """Return a pod as it was before it was placed."""
    metadata = pod["metadata"]
    return synthetic.instantiate_pod(
        strip_run_state(pod), metadata["namespace"], metadata["name"]
    )


def _further(
    more: Sequence[tuple[str, Json, int]], taken: frozenset[str]
) -> Iterator[Json]:
    """Make the further pods, under names that are not in ``taken``."""
    for number, (name, template, count) in enumerate(more):
        try:
            pod = read_template(template)
        except Malformed as error:
            problem = f"no more pods of {name} can be added: {error}"
            raise NotPlayable(problem) from error
        space, _, plain = name.rpartition("/")
        begun = f"{plain[:_MOST_NAME]}-more-{number}"
        numbered = (f"{begun}-{index}" for index in itertools.count())
        free = (new for new in numbered if f"{space}/{new}" not in taken)
        for new in itertools.islice(free, count):
            yield synthetic.instantiate_pod(pod, space, new)


def _added(by_name: Mapping[str, Json], add: Mapping[str, int]) -> Iterator[Json]:
    for like, count in add.items():
        numbered = (f"{like}-new-{number}" for number in itertools.count(1))
        free = (name for name in numbered if name not in by_name)
        for name in itertools.islice(free, count):
            yield _like(by_name[like], name)


def _like(node: Json, name: str) -> Json:
    """Return a new node like an existing one: empty, healthy, with cards of its own."""
    metadata: dict[str, Any] = node["metadata"]
    wrong = f"a node like {metadata['name']} cannot be added"
    try:
        cards = [
            replace(
                synthetic.make_card(name, card.index, card.units, card.model),
                links=card.links,
            )
            for card in read_cards(node)
        ]
    except Malformed as error:
        raise NotPlayable(f"{wrong}: {error}") from error
    if has_unknown_cards(node):
        problem = "it has not reported its cards; gpusharectl inspect says why"
        raise NotPlayable(f"{wrong}: {problem}")
    labels = dict(metadata.get("labels") or {})
    if synthetic.HOSTNAME in labels:
        labels[synthetic.HOSTNAME] = name
    taints = [
        taint
        for taint in (node.get("spec") or {}).get("taints") or ()
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


_KINDS = {
    "deployment": ("apps/v1", "Deployment", "deployments.apps"),
    "statefulset": ("apps/v1", "StatefulSet", "statefulsets.apps"),
    "replicaset": ("apps/v1", "ReplicaSet", "replicasets.apps"),
    "job": ("batch/v1", "Job", "jobs.batch"),
    "pod": ("v1", "Pod", "pods"),
}
_MOST_MORE = 100_000
_WITH_KIND = 3


class MorePods:
    """Further pods from a controller's template, as the command line names it."""

    def __init__(self, text: str) -> None:
        """Parse ``edge/app=10``, or ``statefulset/edge/db=3``; ``NotPlayable``."""
        what, equals, number = text.rpartition("=")
        parts = what.split("/")
        kind = parts[0].lower() if len(parts) == _WITH_KIND else "deployment"
        wrong = f'"{clean_text(text)}" does not name pods'
        counts = number.isdecimal() and len(number) <= len(str(_MOST_MORE))
        if not equals or not counts or not 0 < int(number) <= _MOST_MORE:
            raise NotPlayable(
                f"{wrong}; give NAMESPACE/NAME=N, such as edge/app=10, with N of 1 to "
                f"{_MOST_MORE}"
            )
        if len(parts) not in (2, _WITH_KIND) or not all(parts):
            raise NotPlayable(
                f"{wrong}; give NAMESPACE/NAME=N for a Deployment, or KIND before it"
            )
        if kind not in _KINDS:
            raise NotPlayable(f"{wrong}; a kind is one of {', '.join(_KINDS)}")
        version, kind_name, self.resource = _KINDS[kind]
        self.ref = Ref(version, kind_name, parts[-1], parts[-2])
        self.number = int(number)

    def __str__(self) -> str:
        return f"{self.ref.namespace}/{self.ref.name}"


def _template(access: Access, pods: MorePods) -> Json:
    owner = access.objects.get(pods.ref)
    if owner is None:
        raise NotPlayable(f"there is no {pods.ref}; kubectl get {pods.resource} -A")
    template: Json = owner if pods.ref.kind == "Pod" else owner["spec"]["template"]
    return template


_MEND = (
    "take an administrator's kubeconfig by --kubeconfig, or have what is missing "
    "granted: docs/simulator.md has a ClusterRole"
)
_WHO = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "SelfSubjectReview",
    "metadata": {},
}


def describe_missing_rights(
    access: Access, more: Sequence[MorePods], error: Forbidden
) -> str:
    """Say in one sentence who lacks which rights, all of them, and what to do.

    If all of it can be read by now, ``error`` is told instead.
    """
    list_one, get = partial(access.cluster.list_page, limit=1), access.objects.get
    reads: list[tuple[str, Callable[[], object]]] = [
        ("list nodes", partial(list_one, Kind.NODES)),
        ("list pods in all namespaces", partial(list_one, Kind.PODS)),
        *(
            (f"get {pods.resource} in {pods.ref.namespace}", partial(get, pods.ref))
            for pods in more
        ),
    ]
    missing = ", ".join(dict.fromkeys(right for right, read in reads if _refused(read)))
    host = access.objects.host
    if not missing:
        return f"{host}: {error}; {_MEND}"
    if who := _who(access):
        return f'{host} does not let "{who}" {missing}; {_MEND}'
    # The refusal of the API server names the account, too.
    return f"{host} does not let you {missing} ({error}); {_MEND}"


def _refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except Forbidden:
        return True
    except ClusterError:
        # Not known.
        return False
    return False


def _who(access: Access) -> str:
    """Return the account, as the API server knows it; empty if it does not say.

    A POST, but nothing is stored. Kubernetes 1.28 and newer.
    """
    try:
        review = access.objects.create(_WHO)
    except ClusterError:
        return ""
    user = (review.get("status") or {}).get("userInfo") or {}
    return str(user.get("username") or "")
