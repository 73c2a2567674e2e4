"""The values of the domain, all immutable: cards, requests, placements, refusals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import NewType

from gpushare.domain.card_selector import CardSelector, Limit

CORES_PER_CARD = 100
"""A card's compute, in cores."""

UNIT_MIB = 256
"""MiB in one unit: the smallest amount of memory to ask for."""

NodeName = NewType("NodeName", str)
CardUUID = NewType("CardUUID", str)
PodUID = NewType("PodUID", str)

_MAX_USER_TEXT = 100


def units_of(memory_mib: int) -> int:
    """Return the units of one card, rounded down; never apply it to a sum of cards.

    >>> units_of(24259), units_of(7611), units_of(2002)
    (94, 29, 7)
    """
    return memory_mib // UNIT_MIB


@dataclass(frozen=True, slots=True)
class Amount:
    """Cores and units of 256 MiB; either may be below zero."""

    cores: int = 0
    units: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cores + other.cores, self.units + other.units)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.cores - other.cores, self.units - other.units)

    def __bool__(self) -> bool:
        return bool(self.cores or self.units)

    def fits(self, room: "Amount") -> bool:
        """Return whether both parts are at most the room's."""
        return self.cores <= room.cores and self.units <= room.units

    def peak(self, other: "Amount") -> "Amount":
        """Return the maximum of each part: the need of two that never run together."""
        return Amount(max(self.cores, other.cores), max(self.units, other.units))


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class HostAmount:
    """CPU in thousandths and memory in MiB of the node itself."""

    cpu_milli: int = 0
    memory_mib: int = 0

    def __add__(self, other: "HostAmount") -> "HostAmount":
        return HostAmount(
            self.cpu_milli + other.cpu_milli, self.memory_mib + other.memory_mib
        )

    def __sub__(self, other: "HostAmount") -> "HostAmount":
        return HostAmount(
            self.cpu_milli - other.cpu_milli, self.memory_mib - other.memory_mib
        )

    def fits(self, room: "HostAmount | None") -> bool:
        """Return whether both parts are at most the room's; None limits nothing.

        As with kube-scheduler, a part that is not requested never fails.
        """
        if room is None:
            return True
        return (not self.cpu_milli or self.cpu_milli <= room.cpu_milli) and (
            not self.memory_mib or self.memory_mib <= room.memory_mib
        )


NO_HOST = HostAmount()


@dataclass(frozen=True, slots=True)
class Card:
    """One physical GPU or one MIG instance; ``index`` is for display and order only.

    ``cordoned``: an operator allows no new placements on it; running pods continue.
    ``parent`` is the UUID of the card that a MIG instance is a part of, else empty.
    ``reason`` says in a few words why it is not healthy; empty if that is not known.
    ``links`` has its pair score with each card of its node, in the order of the node's
    list (``links``); 0 where it is not known, empty if none is known and for instances.
    """

    uuid: CardUUID
    index: int
    units: int
    healthy: bool = True
    model: str = ""
    cordoned: bool = False
    parent: str = ""
    reason: str = ""
    links: tuple[int, ...] = ()

    @property
    def open(self) -> bool:
        """Whether something new may be placed here."""
        return self.healthy and not self.cordoned

    @property
    def kind(self) -> str:
        """Which cards may serve one claim of whole cards together: those of one kind.

        Empty for all full cards; for an instance its model, which has its profile. A
        program that has an instance beside another size, or beside a full card, would
        find an unequal number of processors behind equal cores.
        """
        return f"MIG {self.model}" if self.parent else ""

    @property
    def capacity(self) -> Amount:
        """The whole card: 100 cores and all units."""
        return Amount(CORES_PER_CARD, self.units)


@dataclass(frozen=True, slots=True)
class ContainerAmount:
    """What one container asks, or what it holds of one card."""

    name: str
    amount: Amount


@dataclass(frozen=True, slots=True)
class Claim:
    """What must be placed on one card, or on several whole cards from 100 cores on.

    ``containers`` in the order in which kubelet admits them, init containers first.
    ``passing`` names the init containers that end before the next container starts;
    later containers reuse their cores and units (contracts 2.3, 5).
    """

    amount: Amount
    containers: tuple[ContainerAmount, ...]
    passing: frozenset[str] = frozenset()

    @property
    def whole_cards(self) -> int:
        """The number of untouched cards that the claim needs; 0 for a share."""
        return self.amount.cores // CORES_PER_CARD


@dataclass(frozen=True, slots=True)
class PodRef:
    """Identify a pod; ``priority`` as kube-scheduler resolved it, 0 if none is set.

    ``is_resource_claim``: kube-scheduler chose its card itself. It is charged as a pod
    is, and is no pod: nobody can evict it.
    """

    uid: PodUID
    namespace: str
    name: str
    priority: int = 0
    is_resource_claim: bool = False

    @property
    def key(self) -> PodUID:
        """The key of what it is charged: a pod's UID, and none of them for a claim.

        A claim can be reviewed before the API server has stored it, with any UID.
        """
        return PodUID(f"claim/{self.uid}") if self.is_resource_claim else self.uid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A pod's claims; none for a pod that asks for nothing.

    ``policy`` is the policy that the pod names, None for the cluster's. ``cards``
    selects the cards that it may have, None for all. ``host`` is its CPU and memory,
    None if unknown; it affects preference only, so it does not count in comparisons.
    """

    pod: PodRef
    claims: tuple[Claim, ...]
    policy: str | None = None
    cards: CardSelector | None = None
    host: HostAmount | None = field(default=None, compare=False)

    def allows(self, card: Card) -> bool:
        """Return whether the pod's lists allow the card."""
        return self.cards is None or self.cards.allows(card.uuid, card.model)

    def limits(self, card: Card) -> tuple[Limit, ...]:
        """Return the pod's lists that exclude the card; empty if it may have it."""
        if self.cards is None:
            return ()
        return self.cards.against(card.uuid, card.model)


@dataclass(frozen=True, slots=True)
class Share:
    """What one pod holds of one card; parts of several claims may be one share or more.

    ``amount`` is what is charged; for a whole card its full capacity. ``containers``
    has what each container asked of this card.
    """

    card: CardUUID
    amount: Amount
    containers: tuple[ContainerAmount, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether one claim of 100 cores or more has the card, so nobody else may.

        Parts of several claims never make one: no share of parts reaches 100 cores.
        """
        return self.amount.cores >= CORES_PER_CARD


@dataclass(frozen=True, slots=True)
class Placement:
    """All shares of one pod on one node."""

    pod: PodRef
    node: NodeName
    shares: tuple[Share, ...]

    def cards(self) -> tuple[CardUUID, ...]:
        """Return the cards of the shares, in the order of the pod's claims."""
        return tuple(dict.fromkeys(share.card for share in self.shares))

    def by_card(self) -> dict[CardUUID, Amount]:
        """Return what all shares have of each card together."""
        amounts: dict[CardUUID, Amount] = {}
        for share in self.shares:
            amounts[share.card] = amounts.get(share.card, NOTHING) + share.amount
        return amounts

    def differs_from(self, planned: "Placement | None") -> bool:
        """Return whether it has other cards or amounts than were planned."""
        return planned is None or self.by_card() != planned.by_card()


def share_whole_cards(claim: Claim, cards: Sequence[Card]) -> list[Share]:
    """Charge whole cards in full, and assign them to containers.

    Containers take cores in the order in which kubelet admits them, and units from
    their own cards first. Later containers reuse what an init container had.
    """
    rooms = {card.uuid: card.capacity for card in cards}
    parts_on: dict[CardUUID, list[ContainerAmount]] = {card.uuid: [] for card in cards}
    for container in claim.containers:
        pool = dict(rooms) if container.name in claim.passing else rooms
        for uuid, part in _split(container.amount, pool).items():
            parts_on[uuid].append(ContainerAmount(container.name, part))
    return [
        Share(card.uuid, Amount(CORES_PER_CARD, card.units), tuple(parts_on[card.uuid]))
        for card in cards
    ]


def _split(amount: Amount, pool: dict[CardUUID, Amount]) -> dict[CardUUID, Amount]:
    parts: dict[CardUUID, Amount] = {}
    cores = amount.cores
    for uuid, room in pool.items():
        part = Amount(cores=min(cores, room.cores))
        if part:
            parts[uuid] = part
            cores -= part.cores
    units = amount.units
    for uuid in [*parts, *(uuid for uuid in pool if uuid not in parts)]:
        part = Amount(units=min(units, pool[uuid].units))
        if part:
            parts[uuid] = parts.get(uuid, Amount()) + part
            units -= part.units
    for uuid, part in parts.items():
        pool[uuid] -= part
    return parts


def join_shares(shares: Iterable[Share]) -> tuple[Share, ...]:
    """Join the parts that several claims of one pod have of the same card.

    A part that would make 100 cores begins another share: they say a whole card.
    """
    groups: list[list[Share]] = []
    newest: dict[CardUUID, tuple[int, list[Share]]] = {}
    for share in shares:
        # Each is looked at once, because a pod's annotation has room for thousands.
        cores, group = newest.get(share.card, (CORES_PER_CARD, []))
        cores += share.amount.cores
        if cores >= CORES_PER_CARD:
            cores, group = share.amount.cores, []
            groups.append(group)
        group.append(share)
        newest[share.card] = cores, group
    return tuple(map(_one_share, groups))


def _one_share(parts: Sequence[Share]) -> Share:
    if len(parts) == 1:
        return parts[0]
    amount = sum((part.amount for part in parts), NOTHING)
    containers = chain.from_iterable(part.containers for part in parts)
    return Share(parts[0].card, amount, tuple(containers))


class Reason(StrEnum):
    """Why a node cannot take a pod; ``kube.codec.refusal_text`` has the texts."""

    MEMORY = "memory"
    CORE = "core"
    CORE_AND_MEMORY = "core-and-memory"
    UNTOUCHED_CARDS = "untouched-cards"
    NO_CARDS = "no-cards"
    CHANGING = "changing"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot take a pod, as a value.

    Equal refusals have equal texts, because kube-scheduler groups nodes by text
    (contracts 1.6). ``detail`` says what is wrong; it is set with ``INVALID`` only.
    ``limits`` names the pod's lists that exclude open cards of the node.
    """

    reason: Reason
    detail: str = ""
    limits: tuple[Limit, ...] = ()


def refuse_invalid(detail: str) -> Refusal:
    """Return the refusal of a request that no node can meet."""
    return Refusal(Reason.INVALID, detail)


# Constants, because filter returns one for each node where a pod fits nowhere.
NO_CARDS = Refusal(Reason.NO_CARDS)
UNTOUCHED_CARDS = Refusal(Reason.UNTOUCHED_CARDS)
_CORE = Refusal(Reason.CORE)
_MEMORY = Refusal(Reason.MEMORY)
CORE_AND_MEMORY = Refusal(Reason.CORE_AND_MEMORY)


def refuse_insufficient(amount: Amount, most: Amount) -> Refusal:
    """Return the refusal that names the parts of an amount above the maximum."""
    short_of_cores = amount.cores > most.cores
    short_of_units = amount.units > most.units
    if short_of_cores == short_of_units:
        return CORE_AND_MEMORY
    return _CORE if short_of_cores else _MEMORY


def clean_text(text: str) -> str:
    """Return a user's text in a form that is safe in an event.

    Removes ``%``, which kube-scheduler reads as a format (contracts 1.6), and control
    characters, and cuts the text at 100 characters.
    """
    clean = "".join(char for char in text if char.isprintable() and char != "%")
    if len(clean) <= _MAX_USER_TEXT:
        return clean
    return clean[: _MAX_USER_TEXT - 1] + "…"
