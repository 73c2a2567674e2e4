"""Translate pods written for Bitfusion into pods with shares of this cluster's cards.

Pure. docs/bitfusion.md says what each field becomes, lists the denials, and what is not
possible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from extender.bitfusion import client, resources
from extender.bitfusion.command_line import Command, asked_by_calls, command_of
from extender.bitfusion.filter import Wishes, limit_cards, limit_nodes, wishes
from extender.bitfusion.resources import (
    MEMORY,
    MIB,
    PERCENT,
    Ask,
    BitfusionRules,
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
from extender.pool import Pool
from gpushare.domain.model import UNIT_MIB
from gpushare.domain.refusal import users_words
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SYSTEM_NAMESPACES

INIT, APP = "initContainers", "containers"
_ALL, _INJECTION = "all", "injection"
_YES = frozenset({"y", "yes", "true", "on", _ALL})
_NO = frozenset({"", "n", "no", "false", "off", "none"})
_MOST_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Asking:
    """A container that asks for cards; ``command`` is its translated command.

    ``asks`` is what its resources say, or else what each call in its command says.
    """

    kind: str
    index: int
    asks: tuple[Ask, ...]
    command: Command

    @property
    def path(self) -> str:
        """Its path in the pod."""
        return f"spec.{self.kind}[{self.index}]"


@dataclass(slots=True)
class Findings:
    """What a pod's containers ask; ``uneven`` as in ``Asked``."""

    asking: list[Asking] = field(default_factory=list)
    denials: list[str] = field(default_factory=list)
    uneven: bool = False


@dataclass(slots=True)
class Parts:
    """What each asking container gets, in their order.

    ``assumed``: the size of the cluster's smallest card, if a part was computed from
    it. ``remarks`` tell what works differently than expected, ``waits`` what no card of
    the cluster has room for.
    """

    parts: list[Part] = field(default_factory=list)
    denials: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    assumed: CardSize | None = None


def containers(spec: Json) -> Iterator[tuple[str, int, Json]]:
    """Yield each container with its kind and index, init containers first."""
    for kind in (INIT, APP):
        for index, container in enumerate(spec.get(kind) or ()):
            yield kind, index, container


def read_pod(spec: Json, *, shell: str, calls: bool) -> Findings:
    """Read what is asked; in commands too if ``calls`` is set."""
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
    """Compute what each container gets; deny what is not possible."""
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
    """Note what is more than one card has, of those there are or as configured."""
    units, most = part.amount.units, pool.largest_units
    if ask.memory is None:
        if most and units > most * ask.cards:
            found.waits.append(
                f"{path}: {ask.percent} percent of TOTAL are {units // ask.cards} "
                f"units, but the largest card has {most}; the pod waits"
            )
        return
    most = most or (card.units if card else None)
    if most and units > most:
        found.denials.append(_too_large(path, ask.memory, most))
    elif card is not None and ask.memory > card.total:
        found.remarks.append(
            f"{path}: {ask.memory // MIB} MiB are more than TOTAL, {card.mib} MiB; "
            "the container gets a whole card, 100 cores"
        )


def _unknown_size(one: Asking, percent: int) -> str:
    return (
        f"Invalid {PERCENT} quantity: {percent} ({one.path}): the size of a card is "
        "not known; ask bitfusion.io/gpu-memory, or ask an administrator to set the "
        "webhook's TOTAL_GPU_MEMORY"
    )


def _too_large(path: str, memory: int, most: int) -> str:
    where = f'{path}, "{MEMORY}"'
    mib = most * UNIT_MIB
    because = f"the largest card has {mib} MiB; ask {mib}Mi"
    return bad_memory(where, f"{memory} bytes", because)


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes to a pod; ``commands`` tells whether commands are rewritten too."""

    asking: tuple[Asking, ...]
    parts: Parts
    wishes: Wishes
    commands: bool


def rewritten(pod: Json, plan: Plan, rules: BitfusionRules) -> Json:
    """Return a changed copy of the pod; unchanged parts are the same objects."""
    after = _copied(pod)
    spec, annotations = after["spec"], after["metadata"]["annotations"]
    annotations[resources.STATUS] = resources.INJECTED
    if plan.parts.assumed is not None:
        annotations[resources.CARD_MIB] = str(plan.parts.assumed.mib)
    callers = []
    for one, part in zip(plan.asking, plan.parts.parts, strict=True):
        container = spec[one.kind][one.index]
        container["resources"] = _resources(container, part, rules)
        if plan.commands:
            _set_command(container, one)
        if not plan.commands or client.is_called(container):
            callers.append(container)
    if len(plan.asking) > 1 and not _handing_on(spec):
        # Each of them ran its own Bitfusion client.
        annotations.setdefault(names.CONTAINERS, names.APART)
    limit_nodes(spec, plan.wishes.hostnames)
    limit_cards(annotations, plan.wishes)
    if callers:
        client.put_into(after, callers)
    return after


def _copied(pod: Json) -> Json:
    """Copy what may change; a deep copy would cost more than the translation."""
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod["spec"])
    metadata["annotations"] = dict(metadata.get("annotations") or {})
    for kind in (INIT, APP):
        if spec.get(kind):
            spec[kind] = [dict(container) for container in spec[kind]]
    return {**pod, "metadata": metadata, "spec": spec}


def _resources(container: Json, part: Part, rules: BitfusionRules) -> Json:
    amounts = without(container.get("resources") or {})
    ours = {
        names.CORE: str(part.amount.cores),
        names.MEMORY: str(part.amount.units),
    }
    if rules.quota:
        ours[names.BITFUSION_GPU] = str(part.quota)
    for key in ("limits", "requests"):
        amounts[key] = {**amounts.get(key, {}), **ours}
    return amounts


def _set_command(container: Json, one: Asking) -> None:
    for key, words in (("command", one.command.command), ("args", one.command.args)):
        if words:
            container[key] = list(words)
        else:
            container.pop(key, None)


def why_they_share(spec: Json, asking: Sequence[Asking]) -> str:
    """Return why several containers share a card; empty if they do not."""
    handing_on = _handing_on(spec)
    if len(asking) < 2 or not handing_on:  # noqa: PLR2004
        return ""
    them = " and ".join(handing_on)
    return (
        f"the other containers share the card that {them} asks for; ask for no card in "
        f"{them}, and each of the others gets one of its own"
    )


def _handing_on(spec: Json) -> list[str]:
    """Return the paths of init containers that ask for a card and end."""
    return [
        f"spec.{INIT}[{index}]"
        for index, container in enumerate(spec.get(INIT) or ())
        if container.get("restartPolicy") != "Always" and _asks(container)
    ]


def _asks(container: Json) -> bool:
    amounts = container.get("resources") or {}
    return any(
        str((amounts.get(part) or {}).get(name, "0")) != "0"
        for part in ("limits", "requests")
        for name in (names.CORE, names.MEMORY)
    )


@dataclass(frozen=True, slots=True)
class Translation:
    """A pod after its translation, or unchanged if there was nothing to translate.

    It is unchanged if there are ``denials``, which tell all that is wrong. ``sharing``
    tells why several containers share a card, and how each would get its own.
    """

    pod: Json
    denials: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sharing: str = ""


@dataclass(frozen=True, slots=True)
class _Mode:
    """``word`` is all, injection or empty; ``own`` if the pod's annotation says so."""

    word: str
    own: bool
    warnings: tuple[str, ...] = ()


def translate(
    pod: Json, *, namespace: str, mode: str, rules: BitfusionRules, pool: Pool
) -> Translation:
    """Translate a copy of a pod that asks for parts of Bitfusion's cards.

    ``namespace`` is the request's, since pods of controllers do not name theirs.
    ``mode`` (all, injection, or empty) is for pods without the annotation. A pod whose
    requests differ from its limits is left to the API server, which refuses it.
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
    """Return how to translate; the pod's annotation overrules its namespace."""
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
    told = f'{resources.MODE} is "{shown}"; it must be all, injection or none'
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
        f"{described} is missing or unknown; no client is used, so nothing is lost",
    )


def _commands(plan: Plan) -> list[str]:
    if not plan.commands:
        return []
    return [
        f"{one.path}.command {warning}"
        for one in plan.asking
        for warning in one.command.warnings
    ]
