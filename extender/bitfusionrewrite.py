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
    if len(plan.asking) > 1 and not _handing_on(spec):
        # Each of them ran a client of its own.
        annotations.setdefault(names.CONTAINERS, names.APART)
    limit_nodes(spec, plan.wishes.hostnames)
    limit_cards(annotations, plan.wishes)
    if callers:
        bitfusionclient.put_into(after, callers)
    return after


def _copied(pod: Json) -> Json:
    """Copy as deep as changes go: a whole copy costs more than all the rest."""
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod["spec"])
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


def why_they_share(spec: Json, asking: Sequence[Asking]) -> str:
    """Say why several containers share a card; empty where they do not."""
    handing_on = _handing_on(spec)
    if len(asking) < 2 or not handing_on:  # noqa: PLR2004
        return ""
    them = " and ".join(handing_on)
    return (
        f"a card asked in {them} is handed on to the others, so they share it; "
        f"ask none in {them}, and each of the others gets one"
    )


def _handing_on(spec: Json) -> list[str]:
    """Name the init containers that end and ask for a card, in whatever words."""
    return [
        f"spec.{INIT}[{index}]"
        for index, container in enumerate(spec.get(INIT) or ())
        if container.get("restartPolicy") != "Always" and _asks(container)
    ]


def _asks(container: Json) -> bool:
    resources = container.get("resources") or {}
    return any(
        str((resources.get(part) or {}).get(name, "0")) != "0"
        for part in ("limits", "requests")
        for name in (names.CORE, names.MEMORY)
    )
