"""The pod as it is to be, once it is known what its containers get. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from extender import bitfusionclient, bitfusionnames
from extender.bitfusionasks import without
from extender.bitfusionfilter import Wishes, limit_cards, limit_nodes
from extender.bitfusionpod import APP, INIT, Asking, Parts
from extender.bitfusionrules import BitfusionRules
from extender.bitfusionsizes import Part
from gpushare.kube import names
from gpushare.kube.cluster import Json


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is to change; ``commands`` whether they are rewritten too."""

    asking: tuple[Asking, ...]
    parts: Parts
    wishes: Wishes
    commands: bool


def rewritten(pod: Json, plan: Plan, rules: BitfusionRules) -> Json:
    """Give a changed copy of the pod; what is not spoken of stays, and is shared."""
    after = _copied(pod)
    spec, annotations = after["spec"], after["metadata"]["annotations"]
    annotations[bitfusionnames.STATUS] = bitfusionnames.INJECTED
    if plan.parts.assumed is not None:
        annotations[bitfusionnames.CARD_MIB] = str(plan.parts.assumed.mib)
    callers = []
    for one, part in zip(plan.asking, plan.parts.parts, strict=True):
        container = spec[one.kind][one.index]
        container["resources"] = _resources(container, part, rules)
        if plan.commands:
            _set_command(container, one)
        if not plan.commands or bitfusionclient.is_called(container):
            callers.append(container)
    if _are_apart(spec, plan.asking):
        annotations.setdefault(names.CONTAINERS, names.APART)
    limit_nodes(spec, plan.wishes.hostnames)
    limit_cards(annotations, plan.wishes)
    if callers:
        bitfusionclient.put_into(after, callers)
    return after


def _copied(pod: Json) -> Json:
    """Copy as deep as changes go: a whole copy costs more than all the rest."""
    metadata, spec = dict(pod["metadata"]), dict(pod["spec"])
    metadata["annotations"] = dict(metadata.get("annotations") or {})
    for kind in (INIT, APP):
        if spec.get(kind):
            spec[kind] = [dict(container) for container in spec[kind]]
    return {**pod, "metadata": metadata, "spec": spec}


def _resources(container: Json, part: Part, rules: BitfusionRules) -> Json:
    resources = without(container.get("resources") or {})
    ours = {
        names.CORE: str(part.amount.cores),
        names.MEMORY: str(part.amount.units),
    }
    if rules.quota:
        ours[names.BITFUSION_GPU] = str(part.quota)
    for key in ("limits", "requests"):
        resources[key] = {**resources.get(key, {}), **ours}
    return resources


def _set_command(container: Json, one: Asking) -> None:
    for key, words in (("command", one.command.command), ("args", one.command.args)):
        if words:
            container[key] = list(words)
        else:
            container.pop(key, None)


def _are_apart(spec: Json, asking: Sequence[Asking]) -> bool:
    """Tell whether several containers ask, each of which ran a client of its own.

    Not with an init container that ends: its card is handed on to the others.
    """
    for one in asking:
        stays = spec[one.kind][one.index].get("restartPolicy") == "Always"
        if one.kind == INIT and not stays:
            return False
    return len(asking) > 1
