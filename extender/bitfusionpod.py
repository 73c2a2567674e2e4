"""What the containers of a pod ask of Bitfusion, and what each would get here. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from extender.bitfusionasks import asked_by, bad_memory
from extender.bitfusioncalls import asked_by_calls
from extender.bitfusioncommand import Command, command_of
from extender.bitfusionnames import MEMORY, PERCENT
from extender.bitfusionrules import MIB, BitfusionRules
from extender.bitfusionsizes import (
    Ask,
    CardSize,
    Part,
    part_of,
    peak_of,
    said_size,
    smallest,
)
from extender.pool import Pool
from gpushare.domain.model import UNIT_MIB
from gpushare.kube.cluster import Json

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
