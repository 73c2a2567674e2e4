"""What the containers of a pod ask of Bitfusion, and what each would get here. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from extender.bitfusionasks import asked_by, bad_memory
from extender.bitfusioncalls import asked_by_calls
from extender.bitfusioncommand import Command, command_of
from extender.bitfusionnames import MEMORY, PERCENT
from extender.bitfusionrules import BitfusionRules
from extender.bitfusionsizes import (
    Ask,
    CardSize,
    Part,
    part_of,
    said_size,
    smallest,
)
from extender.pool import Pool
from gpushare.domain.model import UNIT_MIB
from gpushare.kube.cluster import Json

INIT, APP = "initContainers", "containers"


@dataclass(frozen=True, slots=True)
class Asking:
    """A container that asks; ``command`` is its command as it is to be."""

    kind: str
    index: int
    ask: Ask
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
    """

    parts: list[Part] = field(default_factory=list)
    denials: list[str] = field(default_factory=list)
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
        if asked.ask is None and not asked.denials and not calls:
            continue
        command = command_of(container, shell)
        if asked.ask is None and not asked.denials:
            asked = asked_by_calls(command.runs, path)
        found.denials += asked.denials
        found.uneven = found.uneven or asked.uneven
        if asked.ask is not None:
            found.asking.append(Asking(kind, index, asked.ask, command))
    return found


def parts_of(asking: list[Asking], rules: BitfusionRules, pool: Pool) -> Parts:
    """Work out what each gets; what cannot be had is denied."""
    found = Parts()
    said = said_size(rules, pool)
    for one in asking:
        card = said
        if card is None and (one.ask.memory is None or rules.quota):
            card = smallest(pool)
        if card is None and one.ask.memory is None:
            found.denials.append(_unknown_size(one))
            continue
        if card is not None and card.assumed:
            found.assumed = card
        part = part_of(one.ask, card)
        found.parts.append(part)
        most = pool.largest_units or (card.units if card else None)
        if one.ask.memory is not None and most and part.amount.units > most:
            found.denials.append(_too_large(one, most))
    return found


def _unknown_size(one: Asking) -> str:
    return (
        f"Invalid {PERCENT} quantity: {one.ask.percent} ({one.path}): no card is known "
        "to take it of; ask bitfusion.io/gpu-memory, or have the webhook's "
        "TOTAL_GPU_MEMORY set"
    )


def _too_large(one: Asking, most: int) -> str:
    shown = f"{one.ask.memory} bytes"
    where = f'{one.path}, "{MEMORY}"'
    mib = most * UNIT_MIB
    return bad_memory(where, shown, f"the largest card has {mib} MiB; ask {mib}Mi")
