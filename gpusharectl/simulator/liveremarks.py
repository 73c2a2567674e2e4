"""What to know of a running cluster before its what-if is read, as sentences. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from gpushare.domain.policies import POLICIES, Choice
from gpushare.domain.summary import users_words
from gpushare.kube import codec, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.fields import Malformed
from gpusharectl.inspection import facts

_POLICY = "GPUSHARE_POLICY"
_MOST_NAMES = 5


def whose_policy(extender: Json | None, choice: Choice) -> str:
    """Say whose policy is taken, and where the extender's cannot be known."""
    taken = choice.default
    if extender is None:
        return f"No extender was found; {taken} is taken for its policy."
    told = facts.settings_of(extender).get(_POLICY, "")
    if told and told not in POLICIES:
        own = users_words(told)
        return f'The extender\'s policy "{own}" is not known here; {taken} is taken.'
    if not told and _set_elsewhere(extender):
        return (
            f"The extender's policy is not known: {_POLICY} may come from a ConfigMap "
            f"or a Secret, which are not read; {taken} is taken."
        )
    return f"The extender's own policy is {taken}."


def played(
    add: Mapping[str, int],
    counts: tuple[int, int],
    drain: Sequence[str],
    more: Sequence[tuple[str, int]],
) -> Iterator[str]:
    """Say what is played, in its order; ``counts``: pods placed afresh, and waiting."""
    afresh, waiting = counts
    steps = [
        f"{_are(each, 'node', f'like {like}')} added" for like, each in add.items()
    ]
    if afresh:
        steps.append(f"{_are(afresh, 'pod', 'with cards')} placed afresh")
    if waiting:
        waits = "that waits" if waiting == 1 else "that wait"
        steps.append(f"{_are(waiting, 'pod', waits)} tried")
    steps += [f"{name} is drained" for name in drain]
    steps += [
        f"{each} more of {name} {'comes' if each == 1 else 'come'}"
        for name, each in more
    ]
    if steps:
        order = ", in this order" if len(steps) > 1 else ""
        yield f"Played{order}: {'; '.join(steps)}."


def unknown(nodes: Sequence[Json], pods: Sequence[Json]) -> Iterator[str]:
    """Say what nobody knows of the cluster, or of what is left out."""
    dark = [facts.name_of(node) for node in nodes if is_dark(node)]
    if dark:
        yield (
            f"Cards not known, and counted as none: {words.listed(dark, _MOST_NAMES)}; "
            "gpusharectl inspect says why."
        )
    astray = [facts.full_name(pod) for pod in pods if _astray(pod)]
    if astray:
        yield (
            "Card not known, so room is kept on every card of the node, and nothing "
            f"counted as allotted: {words.listed(astray, _MOST_NAMES)}."
        )
    yield from _not_tried([pod for pod in pods if _waits(pod)])


def _not_tried(waiting: Sequence[Json]) -> Iterator[str]:
    gated = [pod for pod in waiting if codec.is_ours(pod) and facts.gates(pod)]
    plain = [pod for pod in waiting if not codec.is_ours(pod)]
    found = []
    if gated:
        found.append(
            f"{words.counted(len(gated), 'pod')} held back by scheduling gates"
        )
    if plain:
        wait = "waits and asks" if len(plain) == 1 else "wait and ask"
        found.append(f"{words.counted(len(plain), 'pod')} that {wait} no card")
    if found:
        yield f"Not tried: {'; '.join(found)}."


def _waits(pod: Json) -> bool:
    return not facts.node_of(pod) and not facts.is_leaving(pod)


def _set_elsewhere(extender: Json) -> bool:
    containers = (extender.get("spec") or {}).get("containers") or ()
    return any(
        container.get("envFrom")
        or any(one.get("name") == _POLICY for one in container.get("env") or ())
        for container in containers
    )


def is_dark(node: Json) -> bool:
    """Tell whether a node is to share cards, and nobody can read which it has."""
    if not facts.annotation(node, names.CARDS):
        return facts.is_labelled(node)
    try:
        codec.cards(node)
    except Malformed:
        return True
    return False


def _astray(pod: Json) -> bool:
    """Tell whether a pod holds part of a card, and nobody has told believably which."""
    if not facts.node_of(pod) or not codec.is_ours(pod):
        return False
    try:
        record = codec.pod_record(pod)
    except Malformed:
        return False
    return record.asks and record.placement is None


def _are(number: int, thing: str, which: str) -> str:
    verb = "is" if number == 1 else "are"
    return f"{words.counted(number, thing)} {which} {verb}"
