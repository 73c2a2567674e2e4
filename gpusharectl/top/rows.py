"""What top shows: what is allotted, and beside it what is used. Pure.

A row for each pod on each card, and a row for each card. None is not known.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Literal

from gpushare.domain.model import UNIT_MIB, Amount
from gpushare.domain.node import Node
from gpushare.kube import words
from gpusharectl.output import age, duration, size
from gpusharectl.state.read import Placements, Trouble
from gpusharectl.state.view import CardView, NodeView, Overview, PodShare, Stay
from gpusharectl.top.scrape import (
    MEMORY,
    PROCESSES,
    Answer,
    CardSeen,
    ContainerSeen,
    NoAnswer,
    PageSeen,
    Result,
)

Sort = Literal["mem", "sm"]
TOLERANCE = 1.05
"""A pod may use so many times its share before its excess is shown. Whether it is over
is the exporter's decision: it knows how much of the memory is CUDA's contexts."""
IDLE_S = 2 * 3600.0
"""As in the alert VcudaIdleAllocation."""
UNATTRIBUTED_MIB = 512.0
"""As in the alert VcudaUnattributedMemory; the driver itself uses less."""
OLD_S = 60.0
"""The groups of metrics are read every few seconds."""
_SEVERAL = 2
_NOTHING_USED = (None, 0)
_MOST_NODES = 3
_NO_SOURCE = "none"
_NOT_ASKED = NoAnswer("its exporter was not asked", "")
_EXPORTER_TROUBLES = {
    "cards": "finds no card, or the driver does not answer",
    "config": "cannot use its file of fields and keeps the fields that it had before",
    "kubelet": "does not learn from kubelet which devices the pods have",
    "pods": "cannot read the pods of its node",
    "processes": "cannot assign processes to pods",
}
"""By the label ``about`` of vcuda_exporter_trouble."""


class Sign(StrEnum):
    """What is unusual about a pod or a card."""

    OVER = "over"
    """It uses more memory than its share."""
    NO_SHARE = "no-share"
    """It uses a card of which it has no share."""
    UNPLACED = "unplaced"
    """Its card is not known."""
    GONE = "gone"
    """Its card no longer exists."""
    IDLE = "idle"
    LEAVING = "leaving"
    NOT_STARTED = "not-started"
    SICK = "sick"
    CORDONED = "cordoned"
    OUTSIDE = "outside"
    """Processes outside Kubernetes use the card."""
    UNATTRIBUTED = "unattributed"
    """Memory is in use that no known process uses."""

    @property
    def calm(self) -> bool:
        """Whether it only informs, and needs no action."""
        return self in _CALM


_CALM = frozenset({Sign.IDLE, Sign.LEAVING, Sign.NOT_STARTED, Sign.CORDONED})


@dataclass(frozen=True, slots=True)
class Flag:
    """A sign in words; ``do`` is the next step, if there is one."""

    sign: Sign
    words: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One container of a pod; ``seen`` is None if its exporter does not report it."""

    name: str
    allotted: Amount | None = None
    seen: ContainerSeen | None = None


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod on one card.

    ``uuid`` is empty and ``index`` None if its card is not known. ``share`` is None for
    a pod without a share of the card. ``sm`` is in percent of the whole card,
    ``idle_s`` the time since it last computed.
    """

    node: str
    namespace: str
    name: str
    uuid: str
    index: int | None
    share: PodShare | None = None
    used_mib: float | None = None
    sm: float | None = None
    idle_s: float | None = None
    containers: tuple[ContainerRow, ...] = ()
    flags: tuple[Flag, ...] = ()

    @property
    def allotted(self) -> Amount | None:
        """What it has of the card; None without a share."""
        return None if self.share is None else self.share.amount

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card: what is allotted by the placements, and what its exporter reports."""

    node: str
    view: CardView
    seen: CardSeen
    outside_mib: float | None = None
    flags: tuple[Flag, ...] = ()

    @property
    def where(self) -> str:
        """``node-1 0``, as the card commands take it."""
        return f"{self.node} {self.view.card.index}"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Whether a node's exporter has answered; ``because`` says why not."""

    name: str
    answered: bool
    because: str = ""


@dataclass(frozen=True, slots=True)
class Top:
    """All that there is to show; ``elsewhere`` counts the warnings of inspect."""

    placements: Placements
    at: datetime
    nodes: tuple[NodeRow, ...]
    cards: tuple[CardRow, ...]
    pods: tuple[PodRow, ...]
    troubles: tuple[Trouble, ...] = ()
    elsewhere: int = 0

    @property
    def used_mib(self) -> list[float]:
        """The used memory of each card of which it is known."""
        found = (row.seen.used_mib for row in self.cards)
        return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class Query:
    """The pods of one namespace or of all, and what comes first.

    ``sort`` None: pods by memory, cards by node and index.
    """

    namespace: str = ""
    sort: Sort | None = None


def joined(seen: Overview, results: Mapping[str, Result], query: Query) -> Top:
    """Join the overview with what the exporters of its nodes have answered."""
    nodes: list[NodeRow] = []
    cards: list[CardRow] = []
    pods: list[PodRow] = []
    for view in seen.nodes:
        result = results.get(view.name, _NOT_ASKED)
        page = result.page if isinstance(result, Answer) else PageSeen()
        because = result.because if isinstance(result, NoAnswer) else ""
        nodes.append(NodeRow(view.name, not because, because))
        cards += [_card(view, one, page) for one in view.cards]
        pods += _pod_rows(_Node(view, seen.placements.node(view.name), page))
    wanted = [one for one in pods if query.namespace in ("", one.namespace)]
    if query.sort:
        cards.sort(key=lambda one: _first(query.sort, one.seen.used_mib, one.seen.busy))
    wanted.sort(key=lambda one: _pod_order(query.sort, one))
    return Top(
        placements=seen.placements,
        at=seen.at,
        nodes=tuple(nodes),
        cards=tuple(cards),
        pods=tuple(wanted),
        troubles=tuple(_troubles(results, seen.at)),
        elsewhere=len(seen.troubles),
    )


def excess_mib(allotted: Amount | None, used_mib: float | None) -> float:
    """Return the MiB above a share; 0 if it is not exceeded or has no memory.

    >>> excess_mib(Amount(units=4), 1075), excess_mib(Amount(units=4), 1280)
    (0.0, 256.0)
    """
    mib = allotted.units * UNIT_MIB if allotted else 0
    if used_mib is None or not mib or used_mib <= mib * TOLERANCE:
        return 0.0
    return float(used_mib - mib)


def _pod_order(
    sort: Sort | None, row: PodRow
) -> tuple[tuple[bool, float], str, str, str]:
    first = _first(sort, row.used_mib, row.sm)
    return (first, row.full_name, row.node, row.uuid)


def _first(
    sort: Sort | None, mib: float | None, busy: float | None
) -> tuple[bool, float]:
    """Order by memory or use, the most first; what is not known comes last."""
    value = busy if sort == "sm" else mib
    return (value is None, -(value or 0.0))


def _card(node: NodeView, view: CardView, page: PageSeen) -> CardRow:
    uuid = str(view.card.uuid)
    seen = page.cards.get(uuid, CardSeen(uuid))
    outside = page.outside_mib(uuid)
    flags = _card_flags(node.name, view, seen, outside)
    return CardRow(node.name, view, seen, outside, tuple(flags))


def _card_flags(
    node: str, view: CardView, seen: CardSeen, outside: float | None
) -> Iterator[Flag]:
    card = view.card
    if not card.healthy:
        text = "sick: no new pod comes here, running pods stay charged"
        do = f"gpusharectl clear-card {node} {card.index}, after you have repaired it"
        yield Flag(Sign.SICK, text, do)
    if card.cordoned:
        do = f"gpusharectl uncordon-card {node} {card.index}"
        yield Flag(Sign.CORDONED, "cordoned: no new pod comes here", do)
    look = f"nvidia-smi on {node}"
    if outside:
        text = f"processes outside Kubernetes use {size(outside)}"
        yield Flag(Sign.OUTSIDE, text, look)
    hidden = seen.unattributed_mib
    if hidden is not None and hidden > UNATTRIBUTED_MIB:
        text = f"{size(hidden)} of its memory belong to no known process"
        yield Flag(Sign.UNATTRIBUTED, text, look)


@dataclass(frozen=True)
class _Node:
    """A node by the placements, and as its exporter sees it."""

    view: NodeView
    held: Node | None
    seen: PageSeen = field(default_factory=PageSeen)

    @cached_property
    def indexes(self) -> Mapping[str, int]:
        return {str(one.card.uuid): one.card.index for one in self.view.cards}

    def named(self, uuids: Iterable[str]) -> str:
        """Return the indexes of those cards that the node has."""
        found = {self.indexes[uuid] for uuid in uuids if uuid in self.indexes}
        return ", ".join(map(str, sorted(found)))

    def asked(self, share: PodShare, uuid: str) -> Mapping[str, Amount]:
        """Return what each of a pod's containers has of a card."""
        placements = {} if self.held is None else self.held.placements
        placement = placements.get(share.pod.uid)
        return {
            one.name: one.amount
            for each in (() if placement is None else placement.shares)
            if each.card == uuid
            for one in each.containers
        }


def _pod_rows(node: _Node) -> Iterator[PodRow]:
    """Return a node's pods card by card, and those that use a card without a share."""
    known: set[tuple[str, str]] = set()
    unplaced: dict[str, PodShare] = {}
    for uuid, share in _shares(node.view):
        if share.stay is Stay.UNPLACED:
            unplaced[str(share.pod)] = share
        elif share.stay is Stay.PLACED:
            known.add((uuid, str(share.pod)))
            yield _placed(node, uuid, share)
    for share in unplaced.values():
        known |= {(uuid, str(share.pod)) for uuid in node.seen.cards}
        yield _unplaced(node, share)
    yield from _without_share(node, known)


def _shares(view: NodeView) -> Iterator[tuple[str, PodShare]]:
    for card in view.cards:
        yield from ((str(card.card.uuid), share) for share in card.pods)
    yield from ((str(uuid), share) for uuid, share in view.gone)


def _placed(node: _Node, uuid: str, share: PodShare) -> PodRow:
    seen = node.seen.of_pod(share.pod.namespace, share.pod.name, uuid)
    index = node.indexes.get(uuid)
    flags = []
    if index is None:
        flags.append(Flag(Sign.GONE, f"its card no longer exists ({uuid})"))
    containers = _containers(node.asked(share, uuid), seen)
    return _row(node, (uuid, index), share, containers, flags)


def _unplaced(node: _Node, share: PodShare) -> PodRow:
    seen = node.seen.of_pod(share.pod.namespace, share.pod.name)
    text = "its card is not known; each card of the node is charged for it"
    if on := node.named({one.card for one in seen if one.used_mib or one.sm}):
        text += f". It uses card {on}"
    flag = Flag(Sign.UNPLACED, text)
    return _row(node, ("", None), share, _containers({}, seen), [flag])


def _row(
    node: _Node,
    card: tuple[str, int | None],
    share: PodShare,
    containers: tuple[ContainerRow, ...],
    flags: Sequence[Flag],
) -> PodRow:
    seen = [one.seen for one in containers if one.seen]
    used = _sum([one.used_mib for one in seen])
    idle = _idle(node.seen, seen)
    found = [*flags, *_over(share, used, containers)]
    if idle is not None and idle >= IDLE_S:
        found.append(Flag(Sign.IDLE, f"idle for {duration(idle)}"))
    if share.leaving:
        found.append(Flag(Sign.LEAVING, "terminating"))
    if share.waits:
        found.append(Flag(Sign.NOT_STARTED, "not started"))
    return PodRow(
        node.view.name,
        share.pod.namespace,
        share.pod.name,
        *card,
        share,
        used,
        _sum([one.sm for one in seen]),
        idle,
        containers,
        tuple(found),
    )


def _without_share(node: _Node, known: set[tuple[str, str]]) -> Iterator[PodRow]:
    found: dict[tuple[str, str, str], list[ContainerSeen]] = {}
    for one in node.seen.containers:
        used = one.used_mib not in _NOTHING_USED or one.sm not in _NOTHING_USED
        if one.pod and used and (one.card, f"{one.namespace}/{one.pod}") not in known:
            found.setdefault((one.card, one.namespace, one.pod), []).append(one)
    for (uuid, namespace, name), seen in found.items():
        pod = f"{namespace}/{name}"
        text = "has no share of this card"
        if has := node.named(card for card, other in known if other == pod):
            text += f"; its share is on card {has}"
        yield PodRow(
            node.view.name,
            namespace,
            name,
            uuid,
            node.indexes.get(uuid),
            None,
            _sum([one.used_mib for one in seen]),
            _sum([one.sm for one in seen]),
            _idle(node.seen, seen),
            _containers({}, seen),
            (Flag(Sign.NO_SHARE, text),),
        )


def _containers(
    asked: Mapping[str, Amount], seen: Sequence[ContainerSeen]
) -> tuple[ContainerRow, ...]:
    rows = [ContainerRow(one.name, asked.get(one.name), one) for one in seen]
    reported = {one.name for one in seen}
    rows += [ContainerRow(name, asked[name]) for name in asked if name not in reported]
    order = {name: number for number, name in enumerate(asked)}
    return tuple(sorted(rows, key=lambda row: order.get(row.name, len(order))))


def _over(
    share: PodShare, used: float | None, containers: Sequence[ContainerRow]
) -> Iterator[Flag]:
    """Say by how much the pod, or which of its containers, exceeds its share.

    A whole card, or cores alone, cannot be exceeded.
    """
    if share.whole or not any(one.seen and one.seen.over for one in containers):
        return
    found = [] if len(containers) < _SEVERAL else [*_containers_over(containers)]
    if not found and (over := excess_mib(share.amount, used)):
        found = [f"uses {size(over)} more than its share"]
    if not found:
        found = ["its exporter reports that it exceeds its share"]
    yield from (Flag(Sign.OVER, one) for one in found)


def _containers_over(containers: Sequence[ContainerRow]) -> Iterator[str]:
    for one in containers:
        if one.seen is None or not one.seen.over:
            continue
        used = one.seen.used_mib
        if one.allotted is None and used:
            yield f"container {one.name} uses {size(used)}, but requested none"
        elif over := excess_mib(one.allotted, used):
            yield f"container {one.name} uses {size(over)} more than its share"


def _idle(page: PageSeen, containers: Sequence[ContainerSeen]) -> float | None:
    """Return the time since the last use, both by that node's clock."""
    now = page.times.get(PROCESSES)
    busy = [one.last_busy for one in containers if one.last_busy]
    return None if now is None or not busy else max(0.0, now - max(busy))


def _sum(values: Sequence[float | None]) -> float | None:
    """Add up; if a part is not known, neither is the sum."""
    known = [one for one in values if one is not None]
    return sum(known) if known and len(known) == len(values) else None


def _troubles(results: Mapping[str, Result], now: datetime) -> Iterator[Trouble]:
    """Report nodes of which nothing is known, then those of which less is known."""
    silent: dict[tuple[str, str], list[str]] = {}
    for name, result in results.items():
        if isinstance(result, NoAnswer):
            silent.setdefault((result.because, result.do), []).append(name)
    for (because, do), names in silent.items():
        yield Trouble(words.listed(names, _MOST_NODES), because, do)
    for name, result in results.items():
        if isinstance(result, Answer):
            for what in _of_page(result.page, now):
                yield Trouble(name, what, result.log)
            if cards := _without_sm(result.page):
                what = f"the driver does not report SM use by process on card {cards}"
                yield Trouble(name, what, "gpusharectl top --by card shows its total")


def _of_page(page: PageSeen, now: datetime) -> Iterator[str]:
    for about in page.troubles:
        yield f"its exporter {_EXPORTER_TROUBLES.get(about, f'reports: {about}')}"
    if page.failed:
        groups = ", ".join(page.failed)
        yield f"its exporter could not read these groups of every card: {groups}"
    newest = max(page.times.values(), default=None)
    if newest is None:
        yield "its exporter has read nothing yet"
        return
    if PROCESSES not in page.times:
        yield "its exporter reads no processes; it may run with --disable-processes"
    for group in (MEMORY, PROCESSES):
        behind = newest - page.times.get(group, newest)
        if behind > OLD_S:
            yield f"its values of {group} are {duration(behind)} old"
    if now.timestamp() - newest > OLD_S:
        when = datetime.fromtimestamp(newest, now.tzinfo).isoformat()
        yield (
            f"its newest values are {age(when, now)} old by this computer's clock: the "
            "exporter hangs, or the clocks differ"
        )


def _without_sm(page: PageSeen) -> str:
    """Return the cards whose pods use memory while their SM use is not known."""
    found = {
        page.cards[one.card].index
        for one in page.containers
        if one.used_mib and one.sm is None and one.card in page.cards
        if page.cards[one.card].sm_source == _NO_SOURCE and one.pod
    }
    return ", ".join(sorted(found, key=lambda index: (len(index), index)))
