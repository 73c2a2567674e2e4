"""Pods written for Bitfusion, rewritten for cards of this cluster. Pure.

What each field becomes, the texts of denials, and what cannot be had:
``docs/bitfusion.md``.

What the containers of a pod ask of Bitfusion, and what each would get here. Pure.

The pod as it is to be, once it is known what its containers get. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from extender.bitfusion import client, resources
from extender.bitfusion import resources as bitfusionnames
from extender.bitfusion.command_line import Command, asked_by_calls, command_of
from extender.bitfusion.filter import Wishes, limit_cards, limit_nodes, wishes
from extender.bitfusion.resources import (
    MEMORY,
    PERCENT,
    Ask,
    CardSize,
    Part,
    asked_by,
    bad_memory,
    part_of,
    peak_of,
    said_size,
    smallest,
    without,
)
from extender.bitfusion.rules import MIB, BitfusionRules, CardTotal, total_of
from extender.pool import Pool
from gpushare.domain.model import UNIT_MIB
from gpushare.domain.refusal import users_words
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SYSTEM_NAMESPACES

INIT, APP = "initContainers", "containers"


@dataclass(frozen=True, slots=True)
class Asking:
    """A container that asks; ``command`` is its command as it is to be.

    ``asks`` is what its resources say, or else what each call in its command does.
    """

    kind: str
    index: int
    asks: tuple[Ask, ...]
    command: Command

    @property
    def path(self) -> str:
        """Where it stands in the pod."""
        return f"spec.{self.kind}[{self.index}]"


@dataclass(slots=True)
class Findings:
    """What reading a pod comes to; ``uneven`` as with one container's resources."""

    asking: list[Asking] = field(default_factory=list)
    denials: list[str] = field(default_factory=list)
    uneven: bool = False


@dataclass(slots=True)
class Parts:
    """What each asking container gets, in their order.

    ``assumed``: the size of the cluster's smallest card, where a part was made of it.
    ``remarks`` are about what works otherwise than a person may think, ``waits`` about
    what no card of the cluster has room for.
    """

    parts: list[Part] = field(default_factory=list)
    denials: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    assumed: CardSize | None = None


def containers(spec: Json) -> Iterator[tuple[str, int, Json]]:
    """Give the containers with where they stand, init containers first."""
    for kind in (INIT, APP):
        for index, container in enumerate(spec.get(kind) or ()):
            yield kind, index, container


def read_pod(spec: Json, *, shell: str, calls: bool) -> Findings:
    """Read what is asked, in commands too where ``calls`` says so."""
    found = Findings()
    for kind, index, container in containers(spec):
        path = f"spec.{kind}[{index}]"
        asked = asked_by(container, path)
        silent = not asked.asks and not asked.denials
        if silent and not calls:
            continue
        command = command_of(container, shell)
        if silent:
            asked = asked_by_calls(command.runs, path)
        found.denials += asked.denials
        found.uneven = found.uneven or asked.uneven
        if asked.asks:
            found.asking.append(Asking(kind, index, asked.asks, command))
    return found


def parts_of(asking: list[Asking], rules: BitfusionRules, pool: Pool) -> Parts:
    """Work out what each gets; what cannot be had is denied."""
    found = Parts()
    said = said_size(rules, pool)
    for one in asking:
        percents = [ask.percent for ask in one.asks if ask.memory is None]
        card = said
        if card is None and (percents or rules.quota):
            card = smallest(pool)
        if card is None and percents:
            found.denials.append(_unknown_size(one, percents[0]))
            continue
        if card is not None and card.assumed:
            found.assumed = card
        parts = [part_of(ask, card) for ask in one.asks]
        found.parts.append(peak_of(parts))
        for ask, part in zip(one.asks, parts, strict=True):
            _compare(found, one.path, ask, part, card=card, pool=pool)
    return found


def _compare(
    found: Parts,
    path: str,
    ask: Ask,
    part: Part,
    *,
    card: CardSize | None,
    pool: Pool,
) -> None:
    """Note what is more than one card has: than those there are, or than was said."""
    units, most = part.amount.units, pool.largest_units
    if ask.memory is None:
        if most and units > most * ask.cards:
            found.waits.append(
                f"{path}: {ask.percent} percent of TOTAL are {units // ask.cards} "
                f"units, the largest card has {most}; the pod waits"
            )
        return
    most = most or (card.units if card else None)
    if most and units > most:
        found.denials.append(_too_large(path, ask.memory, most))
    elif card is not None and ask.memory > card.total:
        found.remarks.append(
            f"{path}: {ask.memory // MIB} MiB are more than TOTAL, {card.mib} MiB; "
            "it gets a whole card, 100 cores"
        )


def _unknown_size(one: Asking, percent: int) -> str:
    return (
        f"Invalid {PERCENT} quantity: {percent} ({one.path}): no card is known "
        "to take it of; ask bitfusion.io/gpu-memory, or have the webhook's "
        "TOTAL_GPU_MEMORY set"
    )


def _too_large(path: str, memory: int, most: int) -> str:
    where = f'{path}, "{MEMORY}"'
    mib = most * UNIT_MIB
    because = f"the largest card has {mib} MiB; ask {mib}Mi"
    return bad_memory(where, f"{memory} bytes", because)


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
        if not plan.commands or client.is_called(container):
            callers.append(container)
    if len(plan.asking) > 1 and not _handing_on(spec):
        # Each of them ran a client of its own.
        annotations.setdefault(names.CONTAINERS, names.APART)
    limit_nodes(spec, plan.wishes.hostnames)
    limit_cards(annotations, plan.wishes)
    if callers:
        client.put_into(after, callers)
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


__all__ = ["BitfusionRules", "CardTotal", "Translation", "total_of", "translate"]

_ALL, _INJECTION = "all", "injection"
_YES = frozenset({"y", "yes", "true", "on", _ALL})
_NO = frozenset({"", "n", "no", "false", "off", "none"})
_MOST_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Translation:
    """A pod after its translation, or as it came where there was nothing to translate.

    With ``denials``, all that is wrong with it, it is as it came. ``sharing`` says why
    several containers that ask are not apart, and what would make them so.
    """

    pod: Json
    denials: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sharing: str = ""


@dataclass(frozen=True, slots=True)
class _Mode:
    """``word`` is all, injection or empty; ``own`` where the pod itself says so."""

    word: str
    own: bool
    warnings: tuple[str, ...] = ()


def translate(
    pod: Json, *, namespace: str, mode: str, rules: BitfusionRules, pool: Pool
) -> Translation:
    """Rewrite a pod that asks for parts of Bitfusion's cards; it is not changed itself.

    ``namespace`` is the request's, since the pods of controllers name none; ``mode``
    (all, injection, or empty) holds where the pod's annotation is silent. A pod whose
    requests are not its limits is left to the API server, which refuses it.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    chosen = _mode(annotations, mode)
    status = annotations.get(resources.STATUS) or ""
    if namespace in SYSTEM_NAMESPACES or status.lower() == resources.INJECTED:
        return Translation(pod)
    if not chosen.word:
        return Translation(pod, warnings=chosen.warnings)
    found = read_pod(pod["spec"], shell=rules.shell, calls=chosen.own)
    sized = parts_of(found.asking, rules, pool)
    denials = [*found.denials, *sized.denials]
    if denials:
        return Translation(pod, tuple(denials))
    if found.uneven:
        return Translation(pod)
    if not found.asking:
        return Translation(pod, warnings=_nothing_asked(chosen))
    asking = tuple(found.asking)
    wished = wishes(_filters(annotations, asking), pool)
    may_fail = [*wished.complaints, *_no_node(pool), *sized.waits]
    if rules.strict and may_fail:
        return Translation(pod, tuple(may_fail))
    plan = Plan(asking, sized, wished, commands=chosen.word == _ALL)
    warnings = [
        *_packing(annotations, chosen),
        *may_fail,
        *sized.remarks,
        *_commands(plan),
    ]
    after = rewritten(pod, plan, rules)
    sharing = why_they_share(after["spec"], asking)
    return Translation(after, (), tuple(warnings), sharing)


def _mode(annotations: Json, of_namespace: str) -> _Mode:
    """Say how to translate; the pod's own word goes before its namespace's."""
    own = annotations.get(resources.MODE)
    if own is None:
        return _Mode(of_namespace, own=False)
    word = own.strip().lower()
    if word in _YES:
        return _Mode(_ALL, own=True)
    if word == _INJECTION:
        return _Mode(_INJECTION, own=True)
    if word in _NO:
        return _Mode("", own=True)
    shown = users_words(own)[:_MOST_SHOWN]
    told = f'{resources.MODE} is "{shown}"; only all, injection and none are known'
    return _Mode("", own=True, warnings=(told,))


def _nothing_asked(chosen: _Mode) -> tuple[str, ...]:
    if not chosen.own:
        return ()
    asked = resources.AMOUNT
    return (f"{resources.MODE} is {chosen.word}, but no container asks {asked}",)


def _filters(annotations: Json, asking: tuple[Asking, ...]) -> list[str]:
    texts = [annotations.get(resources.FILTER) or ""]
    for one in asking:
        for run in one.command.runs:
            texts += run.filters
    return texts


def _no_node(pool: Pool) -> tuple[str, ...]:
    if pool.has_resource is not False:
        return ()
    return (f"Resource validation failed: no node has {names.MEMORY} yet",)


def _packing(annotations: Json, chosen: _Mode) -> tuple[str, ...]:
    if not chosen.own or client.packed(annotations):
        return ()
    described = f"{resources.OS} or {resources.VERSION}"
    return (
        f"{described} is missing or unknown, which does no harm: no client is used",
    )


def _commands(plan: Plan) -> list[str]:
    if not plan.commands:
        return []
    return [
        f"{one.path}.command {warning}"
        for one in plan.asking
        for warning in one.command.warnings
    ]
