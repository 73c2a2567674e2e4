"""Translate pods written for Bitfusion into pods with shares of this cluster's cards.

Pure. docs/bitfusion.md says what each field becomes, lists the denials, and what is not
possible.
"""

from dataclasses import dataclass, field

from gpushare.domain.model import UNIT_MIB, clean_text
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SYSTEM_NAMESPACES
from webhook.bitfusion import client, resources
from webhook.bitfusion.command_line import ContainerCommand, read_calls, remove_calls
from webhook.bitfusion.filter import (
    FilterConditions,
    limit_cards,
    limit_nodes,
    read_conditions,
)
from webhook.bitfusion.resources import (
    MEMORY,
    MIB,
    PERCENT,
    Ask,
    BitfusionRules,
    CardSize,
    ContainerShare,
    compute_share,
    configured_card_size,
    deny_memory,
    drop_bitfusion_resources,
    find_peak_share,
    read_resources,
    smallest_card_size,
)
from webhook.pod import (
    APP,
    INIT,
    PARTS,
    PodContainer,
    copy_to_change,
    pod_annotations,
    pod_containers,
)
from webhook.pool import CardPool

_ALL = "all"
_MODES = {
    **dict.fromkeys(("y", "yes", "true", "on", _ALL), _ALL),
    "injection": "injection",
    **dict.fromkeys(("", "n", "no", "false", "off", "none"), ""),
}
"""How to translate, by the words of the pod's annotation."""
_MOST_SHOWN = 30


@dataclass(frozen=True, slots=True)
class AskingContainer:
    """A container that asks for cards; ``command`` is its translated command.

    ``asks`` is what its resources say, or else what each call in its command says.
    """

    container: PodContainer
    asks: tuple[Ask, ...]
    command: ContainerCommand

    @property
    def path(self) -> str:
        """Its path in the pod."""
        return self.container.path


@dataclass(slots=True)
class BitfusionFindings:
    """What a pod's containers ask, and what each of them gets, in their order.

    ``uneven`` as in ``ContainerAsks``. ``assumed``: the size of the cluster's smallest
    card, if a part was computed from it. ``remarks`` tell what works differently than
    expected, ``waits`` what no card of the cluster has room for.
    """

    asking: list[AskingContainer] = field(default_factory=list)
    parts: list[ContainerShare] = field(default_factory=list)
    denials: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    uneven: bool = False
    assumed: CardSize | None = None


def _read(pod: Json, *, shell: str, calls: bool) -> BitfusionFindings:
    """Read what is asked; in commands too if ``calls`` is set."""
    findings = BitfusionFindings()
    for container in pod_containers(pod, INIT, APP):
        read = read_resources(container)
        silent = not read.asks and not read.denials
        if silent and not calls:
            continue
        command = remove_calls(container.raw, shell)
        if silent:
            read = read_calls(command.runs, container.path)
        findings.denials += read.denials
        findings.uneven = findings.uneven or read.uneven
        if read.asks:
            findings.asking.append(AskingContainer(container, read.asks, command))
    return findings


def _compute_parts(
    findings: BitfusionFindings, rules: BitfusionRules, pool: CardPool
) -> None:
    """Compute what each container gets; deny what is not possible."""
    configured = configured_card_size(rules, pool)
    for container in findings.asking:
        percents = [ask.percent for ask in container.asks if ask.memory is None]
        card = configured
        if card is None and (percents or rules.quota):
            card = smallest_card_size(pool)
        if card is None and percents:
            findings.denials.append(
                f"Invalid {PERCENT} quantity: {percents[0]} ({container.path}): the "
                "size of a card is not known; ask bitfusion.io/gpu-memory, or ask an "
                "administrator to set the webhook's TOTAL_GPU_MEMORY"
            )
            continue
        if card is not None and card.assumed:
            findings.assumed = card
        parts = [compute_share(ask, card) for ask in container.asks]
        findings.parts.append(find_peak_share(parts))
        for ask, part in zip(container.asks, parts, strict=True):
            units, most = part.amount.units, pool.largest_units
            _compare(findings, container.path, ask, units, card, most)


def _compare(
    findings: BitfusionFindings,
    path: str,
    ask: Ask,
    units: int,
    card: CardSize | None,
    most: int | None,
) -> None:
    """Note what is more than one card has, of those there are or as configured."""
    if ask.memory is None:
        if most and units > most * ask.cards:
            findings.waits.append(
                f"{path}: {ask.percent} percent of TOTAL are {units // ask.cards} "
                f"units, but the largest card has {most}; the pod waits"
            )
        return
    most = most or (card.units if card else None)
    if most and units > most:
        mib = most * UNIT_MIB
        because = f"the largest card has {mib} MiB; ask {mib}Mi"
        where = f'{path}, "{MEMORY}"'
        findings.denials.append(deny_memory(where, f"{ask.memory} bytes", because))
    elif card is not None and ask.memory > card.total:
        findings.remarks.append(
            f"{path}: {ask.memory // MIB} MiB are more than TOTAL, {card.mib} MiB; "
            "the container gets a whole card, 100 cores"
        )


def _rewrite_pod(
    pod: Json,
    findings: BitfusionFindings,
    filters: FilterConditions,
    rules: BitfusionRules,
    *,
    commands: bool,
) -> Json:
    """Return a changed copy of the pod; unchanged parts are the same objects.

    ``commands`` tells whether commands are rewritten too.
    """
    after = copy_to_change(pod)
    annotations = dict(pod_annotations(pod))
    after["metadata"] = {**(pod.get("metadata") or {}), "annotations": annotations}
    spec = after["spec"]
    annotations[resources.STATUS] = resources.INJECTED
    if findings.assumed is not None:
        annotations[resources.CARD_MIB] = str(findings.assumed.mib)
    callers = []
    for asking, part in zip(findings.asking, findings.parts, strict=True):
        container = spec[asking.container.kind][asking.container.place]
        container["resources"] = _resources(container, part, rules)
        if commands:
            _set_command(container, asking)
        if not commands or client.calls_client(container):
            callers.append(container)
    if len(findings.asking) > 1 and not _handing_on(after):
        # Each of them ran its own Bitfusion client.
        annotations.setdefault(names.CONTAINERS, names.APART)
    limit_nodes(spec, filters.hostnames)
    limit_cards(annotations, filters)
    if callers:
        client.mount_stand_in(after, callers)
    return after


def _resources(container: Json, part: ContainerShare, rules: BitfusionRules) -> Json:
    amounts = drop_bitfusion_resources(container.get("resources") or {})
    amount = part.amount
    added = {names.CORE: str(amount.cores), names.MEMORY: str(amount.units)}
    if rules.quota:
        added[names.BITFUSION_GPU] = str(part.quota)
    for key in ("limits", "requests"):
        amounts[key] = {**amounts.get(key, {}), **added}
    return amounts


def _set_command(container: Json, asking: AskingContainer) -> None:
    for key, words in (
        ("command", asking.command.command),
        ("args", asking.command.args),
    ):
        if words:
            container[key] = list(words)
        else:
            container.pop(key, None)


def _handing_on(pod: Json) -> list[str]:
    """Return the paths of init containers that ask for a card and end."""
    return [
        container.path
        for container in pod_containers(pod, INIT)
        if container.raw.get("restartPolicy") != "Always"
        and any(
            str(container.amounts(part).get(name, "0")) != "0"
            for part in PARTS
            for name in (names.CORE, names.MEMORY)
        )
    ]


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


def translate_pod(
    pod: Json, *, namespace: str, mode: str, rules: BitfusionRules, pool: CardPool
) -> Translation:
    """Translate a copy of a pod that asks for parts of Bitfusion's cards.

    ``namespace`` is the request's, since pods of controllers do not name theirs.
    ``mode`` (all, injection, or empty) is for pods without the annotation. A pod whose
    requests differ from its limits is left to the API server, which refuses it.
    """
    annotations = pod_annotations(pod)
    status = annotations.get(resources.STATUS) or ""
    if namespace in SYSTEM_NAMESPACES or status.lower() == resources.INJECTED:
        return Translation(pod)
    own_mode = annotations.get(resources.MODE)
    chosen = mode if own_mode is None else _MODES.get(own_mode.strip().lower())
    if chosen is None:
        shown = clean_text(own_mode or "")[:_MOST_SHOWN]
        warning = f'{resources.MODE} is "{shown}"; it must be all, injection or none'
        return Translation(pod, warnings=(warning,))
    if not chosen:
        return Translation(pod)
    findings = _read(pod, shell=rules.shell, calls=own_mode is not None)
    _compute_parts(findings, rules, pool)
    if findings.denials:
        return Translation(pod, tuple(findings.denials))
    if findings.uneven:
        return Translation(pod)
    if not findings.asking:
        warning = (
            f"{resources.MODE} is {chosen}, but no container asks {resources.AMOUNT}"
        )
        return Translation(pod, warnings=() if own_mode is None else (warning,))
    return _translated(
        pod, findings, rules, pool, mode=chosen, mode_is_own=own_mode is not None
    )


def _translated(
    pod: Json,
    findings: BitfusionFindings,
    rules: BitfusionRules,
    pool: CardPool,
    *,
    mode: str,
    mode_is_own: bool,
) -> Translation:
    """Rewrite the pod, unless the rules are strict and it might not run.

    ``mode_is_own`` if the pod's annotation says ``mode``.
    """
    annotations = pod_annotations(pod)
    texts = [annotations.get(resources.FILTER) or ""]
    for asking in findings.asking:
        texts += [text for run in asking.command.runs for text in run.filters]
    filters = read_conditions(texts, pool)
    may_fail = list(filters.complaints)
    if pool.has_resource is False:
        warning = f"Resource validation failed: no node has {names.MEMORY} yet"
        may_fail.append(warning)
    may_fail += findings.waits
    if rules.strict and may_fail:
        return Translation(pod, tuple(may_fail))
    after = _rewrite_pod(pod, findings, filters, rules, commands=mode == _ALL)
    warnings = [*may_fail, *findings.remarks]
    if mode_is_own and not client.packed_folder(annotations):
        described = f"{resources.OS} or {resources.VERSION}"
        warning = (
            f"{described} is missing or unknown; no client is used, so nothing is lost"
        )
        warnings.insert(0, warning)
    if mode == _ALL:
        for asking in findings.asking:
            warnings += [
                f"{asking.path}.command {warning}"
                for warning in asking.command.warnings
            ]
    sharing = ""
    if len(findings.asking) > 1 and (handing_on := _handing_on(after)):
        them = " and ".join(handing_on)
        sharing = (
            f"the other containers share the card that {them} asks for; ask for no "
            f"card in {them}, and each of the others gets one of its own"
        )
    return Translation(after, (), tuple(warnings), sharing)
