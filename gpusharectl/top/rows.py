"""What top shows: a row for each pod on each card, and for each card. Frozen values.

Numbers and names in columns. Pure.

Allotted and used side by side, with what is worth a look. Pure.

What the books allot to a pod, joined with what its node's exporter sees. Pure.

Why top knows less of a node than it should, and what to do. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Literal

from rich.cells import cell_len, set_cell_size

from gpushare.domain.model import UNIT_MIB, Amount, Card, NodeName
from gpushare.domain.node import Node
from gpushare.kube import words
from gpushare.kube.words import NOT_KNOWN
from gpusharectl.output import age
from gpusharectl.state.placements import Books
from gpusharectl.state.read import Trouble
from gpusharectl.state.view import CardView, NodeView, Stay, Survey, Tenant
from gpusharectl.top.scrape import (
    MEMORY,
    PROCESSES,
    CardSeen,
    ContainerSeen,
    Heard,
    PageSeen,
    Silence,
    Told,
)

TOLERANCE = 1.05
"""So many times its share a pod may use before anything is said of it. The exporter's
word decides: it knows what of the memory is CUDA's contexts."""


def excess_mib(allotted: Amount | None, used_mib: float | None) -> float:
    """Give the MiB above a share, 0 for who is not over it or has no share of memory.

    >>> excess_mib(Amount(units=4), 1075), excess_mib(Amount(units=4), 1280)
    (0.0, 256.0)
    """
    mib = allotted.units * UNIT_MIB if allotted else 0
    if used_mib is None or not mib or used_mib <= mib * TOLERANCE:
        return 0.0
    return float(used_mib - mib)


class Sign(StrEnum):
    """What is worth a look about a pod or a card."""

    OVER = "over"
    """It uses more memory than its share."""
    NO_SHARE = "no-share"
    """It uses a card of which it has no share."""
    UNPLACED = "unplaced"
    """Nobody knows on which card it is."""
    GONE = "gone"
    """Its card is no more."""
    IDLE = "idle"
    LEAVING = "leaving"
    NOT_STARTED = "not-started"
    SICK = "sick"
    CORDONED = "cordoned"
    OUTSIDE = "outside"
    """Processes outside Kubernetes use the card."""
    UNATTRIBUTED = "unattributed"
    """Memory is in use that no process is known to use."""

    @property
    def calm(self) -> bool:
        """Whether it is a word beside the numbers, and nothing to act on."""
        return self in _CALM


_CALM = frozenset({Sign.IDLE, Sign.LEAVING, Sign.NOT_STARTED, Sign.CORDONED})


@dataclass(frozen=True, slots=True)
class Flag:
    """A sign in words; ``do`` is the next step, empty where the words say it all."""

    sign: Sign
    words: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One container's part of a pod's row; None is unknown, or for allotted: none.

    ``seen``: its exporter tells of it, as it does not of one that has ended.
    """

    name: str
    allotted: Amount | None = None
    used_mib: float | None = None
    sm: float | None = None
    last_busy: float | None = None
    seen: bool = False
    over: bool = False


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod on one card: what it was allotted, beside what it uses; None is unknown.

    ``uuid`` and ``index`` are empty and None where nobody knows its card, and ``stay``
    and ``allotted`` None for a pod that has no share of it. ``sm`` is in percent of the
    whole card, as cores are hundredths of it; ``idle_s`` since when it has computed
    nothing.
    """

    namespace: str
    name: str
    uid: str
    node: str
    uuid: str
    index: int | None
    stay: Stay | None = None
    allotted: Amount | None = None
    whole: bool = False
    used_mib: float | None = None
    sm: float | None = None
    idle_s: float | None = None
    containers: tuple[ContainerRow, ...] = ()
    flags: tuple[Flag, ...] = ()

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card: what of it is allotted, beside what is used; None is unknown.

    ``allotted`` is by the books, everything else by the node's exporter.
    """

    node: str
    card: Card
    allotted: Amount
    used_mib: float | None = None
    busy: float | None = None
    celsius: float | None = None
    watts: float | None = None
    outside_mib: float | None = None
    unattributed_mib: float | None = None
    sm_source: str = ""
    flags: tuple[Flag, ...] = ()

    @property
    def where(self) -> str:
        """``node-1 0``, as the card commands take it."""
        return f"{self.node} {self.card.index}"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Whether a node's exporter told; ``because`` says why not."""

    name: str
    told: bool
    because: str = ""


@dataclass(frozen=True, slots=True)
class Top:
    """All that there is to show; ``elsewhere`` counts what inspect would warn of."""

    books: Books
    at: datetime
    nodes: tuple[NodeRow, ...]
    cards: tuple[CardRow, ...]
    pods: tuple[PodRow, ...]
    troubles: tuple[Trouble, ...] = ()
    elsewhere: int = 0


_GIB = 1024
_LEAST = 0.01
_CUT = "…"


def gib(mib: float | None) -> str:
    """Say MiB in GiB, for a column.

    >>> gib(12800), gib(3), gib(0), gib(None)
    ('12.50', '<0.01', '0', 'n/a')
    """
    if mib is None:
        return NOT_KNOWN
    found = mib / _GIB
    return f"<{_LEAST}" if 0 < found < _LEAST else f"{found:.2f}" if found else "0"


def size(mib: float) -> str:
    """Say MiB in a sentence.

    >>> size(300.4), size(1280)
    ('300 MiB', '1.25 GiB')
    """
    return f"{max(1, round(mib))} MiB" if mib < _GIB else f"{plain(mib)} GiB"


def plain(mib: float) -> str:
    """Say MiB in GiB, for a sentence that names the unit.

    >>> plain(12800), plain(0)
    ('12.5', '0')
    """
    return f"{mib / _GIB:.2f}".rstrip("0").rstrip(".")


def whole(number: float | None) -> str:
    """Say a number without its fraction; what is not quite 0 is not 0.

    >>> whole(22.6), whole(0), whole(0.2), whole(None)
    ('23', '0', '<1', 'n/a')
    """
    if number is None:
        return NOT_KNOWN
    return "<1" if 0 < number < 1 else str(round(number))


def for_so_long(seconds: float) -> str:
    """Say how long, as kubectl does.

    >>> for_so_long(7800)
    '130m'
    """
    then = datetime(2000, 1, 1, tzinfo=UTC)
    return age(then.isoformat(), then + timedelta(seconds=seconds))


def column(text: str, width: int, tail: int | None = None) -> str:
    """Make text exactly so many cells wide.

    Of a text that is too long so many cells stay at its end, or else half of them.

    >>> column("bert-7b5f9c6d4b-x2x7k", 12), column("Tesla P100", 6, 0), column("a", 3)
    ('bert-7…x2x7k', 'Tesla…', 'a  ')
    """
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    kept = (width - 1) // 2 if tail is None else min(tail, width - 1)
    end = _first(text[::-1], kept)[::-1]
    begin = _first(text, width - 1 - cell_len(end))
    return set_cell_size(f"{begin}{_CUT}{end}", width)


def _first(text: str, width: int) -> str:
    """Give as much of a text as there is room for; some characters are two cells."""
    used = 0
    for number, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:number]
    return text


IDLE_S = 2 * 3600.0
"""As the alert VcudaIdleAllocation has it."""
_SEVERAL = 2
_NOTHING_TO_SAY = (None, 0)


@dataclass(frozen=True)
class Place:
    """One node by the books, and as its exporter sees it: of a silent one nothing."""

    view: NodeView
    page: Node | None
    seen: PageSeen = field(default_factory=PageSeen)

    @cached_property
    def _indexes(self) -> Mapping[str, int]:
        return {str(one.card.uuid): one.card.index for one in self.view.cards}

    def index(self, uuid: str) -> int | None:
        """Give a card's index, None for one that the node does not have."""
        return self._indexes.get(uuid)

    def indexes(self, uuids: Iterable[str]) -> str:
        """Name those of the cards that the node has, by their indexes."""
        found = {self._indexes[uuid] for uuid in uuids if uuid in self._indexes}
        return ", ".join(map(str, sorted(found)))

    def asked(self, tenant: Tenant, uuid: str) -> Mapping[str, Amount]:
        """Give what each of a pod's containers was allotted of a card."""
        placements = {} if self.page is None else self.page.placements
        placement = placements.get(tenant.pod.uid)
        shares = () if placement is None else placement.shares
        return {
            one.name: one.amount
            for share in shares
            if share.card == uuid
            for one in share.containers
        }


def pod_rows(place: Place) -> Iterator[PodRow]:
    """Give a node's pods card by card, and those that use a card without a share."""
    known: set[tuple[str, str]] = set()
    vague: dict[str, Tenant] = {}
    for uuid, tenant in _tenants(place.view):
        if tenant.stay is Stay.UNPLACED:
            vague[str(tenant.pod)] = tenant
        elif tenant.stay is Stay.PLACED:
            known.add((uuid, str(tenant.pod)))
            yield _placed(place, uuid, tenant)
    for tenant in vague.values():
        known |= {(uuid, str(tenant.pod)) for uuid in place.seen.cards}
        yield _vague(place, tenant)
    yield from _strangers(place, known)


def _tenants(view: NodeView) -> Iterator[tuple[str, Tenant]]:
    for card in view.cards:
        yield from ((str(card.card.uuid), tenant) for tenant in card.tenants)
    yield from ((str(uuid), tenant) for uuid, tenant in view.gone)


def _placed(place: Place, uuid: str, tenant: Tenant) -> PodRow:
    asked = place.asked(tenant, uuid)
    seen = place.seen.of_pod(tenant.pod.namespace, tenant.pod.name, uuid)
    index = place.index(uuid)
    flags = []
    if index is None:
        flags.append(Flag(Sign.GONE, f"its card is gone ({uuid})"))
    return _row(place, (uuid, index), tenant, _containers(asked, seen), flags)


def _vague(place: Place, tenant: Tenant) -> PodRow:
    """Give a pod of which nobody knows the card, unless its processes tell."""
    seen = place.seen.of_pod(tenant.pod.namespace, tenant.pod.name)
    busy = {one.card for one in seen if one.used_mib or one.sm}
    words = "nobody knows its card; it is charged on each"
    if on := place.indexes(busy):
        words += f". It uses card {on}"
    flag = Flag(Sign.UNPLACED, words)
    return _row(place, ("", None), tenant, _containers({}, seen), [flag])


def _row(
    place: Place,
    card: tuple[str, int | None],
    tenant: Tenant,
    containers: tuple[ContainerRow, ...],
    flags: Sequence[Flag],
) -> PodRow:
    used = _sum([one.used_mib for one in containers if one.seen])
    idle = _idle(place.seen, containers)
    found = [*flags, *_over(tenant, used, containers)]
    if idle is not None and idle >= IDLE_S:
        found.append(Flag(Sign.IDLE, f"idle for {for_so_long(idle)}"))
    if tenant.leaving:
        found.append(Flag(Sign.LEAVING, "leaving"))
    if tenant.waits:
        found.append(Flag(Sign.NOT_STARTED, "not started"))
    return PodRow(
        namespace=tenant.pod.namespace,
        name=tenant.pod.name,
        uid=str(tenant.pod.uid),
        node=place.view.name,
        uuid=card[0],
        index=card[1],
        stay=tenant.stay,
        allotted=tenant.amount,
        whole=tenant.whole,
        used_mib=used,
        sm=_sum([one.sm for one in containers if one.seen]),
        idle_s=idle,
        containers=containers,
        flags=tuple(found),
    )


def _strangers(place: Place, known: set[tuple[str, str]]) -> Iterator[PodRow]:
    """Give the pods that use a card of which they have no share."""
    found: dict[tuple[str, str, str], list[ContainerSeen]] = {}
    for one in place.seen.containers:
        used = one.used_mib not in _NOTHING_TO_SAY or one.sm not in _NOTHING_TO_SAY
        if one.pod and used and (one.card, f"{one.namespace}/{one.pod}") not in known:
            found.setdefault((one.card, one.namespace, one.pod), []).append(one)
    for (uuid, namespace, name), seen in found.items():
        pod = f"{namespace}/{name}"
        words = "has no share of this card"
        if has := place.indexes(card for card, other in known if other == pod):
            words += f"; its share is on card {has}"
        containers = _containers({}, seen)
        yield PodRow(
            namespace=namespace,
            name=name,
            uid="",
            node=place.view.name,
            uuid=uuid,
            index=place.index(uuid),
            used_mib=_sum([one.used_mib for one in containers]),
            sm=_sum([one.sm for one in containers]),
            idle_s=_idle(place.seen, containers),
            containers=containers,
            flags=(Flag(Sign.NO_SHARE, words),),
        )


def _containers(
    asked: Mapping[str, Amount], seen: Sequence[ContainerSeen]
) -> tuple[ContainerRow, ...]:
    rows = [
        ContainerRow(
            one.name,
            asked.get(one.name),
            one.used_mib,
            one.sm,
            one.last_busy,
            seen=True,
            over=one.over,
        )
        for one in seen
    ]
    told = {one.name for one in seen}
    rows += [ContainerRow(name, asked[name]) for name in asked if name not in told]
    order = {name: number for number, name in enumerate(asked)}
    return tuple(sorted(rows, key=lambda row: order.get(row.name, len(order))))


def _over(
    tenant: Tenant, used: float | None, containers: Sequence[ContainerRow]
) -> Iterator[Flag]:
    """Say by how much the pod, or which of its containers, is over its share.

    Who has the whole card has no share to exceed; who asked for cores alone, neither.
    """
    if tenant.whole or not any(one.over for one in containers):
        # The exporter judges: it knows what of the memory is CUDA's contexts.
        return
    words = [] if len(containers) < _SEVERAL else [*_containers_over(containers)]
    if not words and (over := excess_mib(tenant.amount, used)):
        words = [f"uses {size(over)} more than its share"]
    if not words:
        words = ["its exporter finds it over its share"]
    yield from (Flag(Sign.OVER, one) for one in words)


def _containers_over(containers: Sequence[ContainerRow]) -> Iterator[str]:
    for one in containers:
        if one.allotted is None and one.over and one.used_mib:
            yield f"container {one.name} uses {size(one.used_mib)}, and asked for none"
        elif one.over and (over := excess_mib(one.allotted, one.used_mib)):
            yield f"container {one.name} uses {size(over)} more than its share"


def _idle(seen: PageSeen, containers: Sequence[ContainerRow]) -> float | None:
    """Say how long it has computed nothing, both times by that node's clock."""
    now = seen.times.get(PROCESSES)
    busy = [one.last_busy for one in containers if one.last_busy]
    return None if now is None or not busy else max(0.0, now - max(busy))


def _sum(values: Sequence[float | None]) -> float | None:
    """Add up; of an unknown part the sum is unknown too."""
    known = [one for one in values if one is not None]
    return sum(known) if known and len(known) == len(values) else None


OLD_S = 60.0
"""Rounds of these groups are seconds apart."""
_MOST_NODES = 3
_MISSES = {
    "cards": "finds no card, or no driver that answers",
    "config": "finds its file of fields bad, and goes on with the one before",
    "kubelet": "is not told by kubelet which devices pods have",
    "pods": "cannot read the pods of its node",
    "processes": "cannot tell whose processes are whose",
}
"""By what an exporter says it has trouble with."""
_NO_SOURCE = "none"
_SWITCHED = "is it switched off there (--disable-processes)?"


def concerns(told: Mapping[str, Told], now: datetime) -> Iterator[Trouble]:
    """Name the nodes of which nothing is known, then those of which less is."""
    silent: dict[tuple[str, str], list[str]] = {}
    for name, heard in told.items():
        if isinstance(heard, Silence):
            silent.setdefault((heard.because, heard.do), []).append(name)
    for (because, do), names in silent.items():
        yield Trouble(words.listed(names, _MOST_NODES), because, do)
    for name, heard in told.items():
        if isinstance(heard, Heard):
            for what in _of_page(heard.page, now):
                yield Trouble(name, what, heard.log)
            if cards := _without_sm(heard.page):
                what = (
                    f"the driver does not tell what each pod computes on card {cards}"
                )
                yield Trouble(name, what, "gpusharectl top --by card: how busy it is")


def _of_page(page: PageSeen, now: datetime) -> Iterator[str]:
    for about in page.troubles:
        yield f"its exporter {_MISSES.get(about, f'has trouble with {about}')}"
    if page.failed:
        yield f"its exporter did not get this of every card: {', '.join(page.failed)}"
    newest = max(page.times.values(), default=None)
    if newest is None:
        yield "its exporter has read nothing yet"
        return
    if PROCESSES not in page.times:
        yield f"its exporter reads no processes: {_SWITCHED}"
    for group in (MEMORY, PROCESSES):
        behind = newest - page.times.get(group, newest)
        if behind > OLD_S:
            yield f"its numbers of {group} are {for_so_long(behind)} old"
    if now.timestamp() - newest > OLD_S:
        when = datetime.fromtimestamp(newest, now.tzinfo).isoformat()
        yield (
            f"its newest numbers are {age(when, now)} old, by this computer's clock: "
            "the exporter hangs, or the clocks differ"
        )


def _without_sm(page: PageSeen) -> str:
    """Name the cards of which pods use memory, and nobody knows how they compute."""
    found = {
        page.cards[one.card].index
        for one in page.containers
        if one.used_mib and one.sm is None and one.card in page.cards
        if page.cards[one.card].sm_source == _NO_SOURCE and one.pod
    }
    return ", ".join(sorted(found, key=lambda index: (len(index), index)))


Sort = Literal["mem", "sm"]
UNATTRIBUTED_MIB = 512.0
"""As the alert VcudaUnattributedMemory has it: less is the driver's own."""
_NOT_ASKED = Silence("its exporter was not asked", "")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted: the pods of one namespace or of all, and which comes first.

    ``sort`` None: pods by memory, cards by node and index.
    """

    namespace: str = ""
    sort: Sort | None = None


def joined(seen: Survey, told: Mapping[str, Told], wish: Wish) -> Top:
    """Join the books with what the exporters told of each node of the survey."""
    nodes: list[NodeRow] = []
    cards: list[CardRow] = []
    pods: list[PodRow] = []
    for view in seen.nodes:
        heard = told.get(view.name, _NOT_ASKED)
        page = heard.page if isinstance(heard, Heard) else PageSeen()
        because = heard.because if isinstance(heard, Silence) else ""
        nodes.append(NodeRow(view.name, not because, because))
        cards += [_card(view, one, page) for one in view.cards]
        pods += pod_rows(Place(view, seen.books.page(NodeName(view.name)), page))
    wanted = [one for one in pods if wish.namespace in ("", one.namespace)]
    if wish.sort:
        cards.sort(key=lambda one: _most_first(wish.sort, one.used_mib, one.busy))
    wanted.sort(key=lambda one: _pod_order(wish.sort, one))
    return Top(
        books=seen.books,
        at=seen.at,
        nodes=tuple(nodes),
        cards=tuple(cards),
        pods=tuple(wanted),
        troubles=tuple(concerns(told, seen.at)),
        elsewhere=len(seen.troubles),
    )


def _pod_order(
    sort: Sort | None, row: PodRow
) -> tuple[tuple[bool, float], str, str, str]:
    first = _most_first(sort, row.used_mib, row.sm)
    return (first, row.full_name, row.node, row.uuid)


def _most_first(
    sort: Sort | None, mib: float | None, busy: float | None
) -> tuple[bool, float]:
    """Order by the one asked for; what is unknown comes last, and never as 0."""
    value = busy if sort == "sm" else mib
    return (value is None, -(value or 0.0))


def _card(node: NodeView, view: CardView, page: PageSeen) -> CardRow:
    uuid = str(view.card.uuid)
    seen = page.cards.get(uuid, CardSeen(uuid))
    outside = page.outside_mib(uuid)
    return CardRow(
        node=node.name,
        card=view.card,
        allotted=view.charged,
        used_mib=seen.used_mib,
        busy=seen.busy,
        celsius=seen.celsius,
        watts=seen.watts,
        outside_mib=outside,
        unattributed_mib=seen.unattributed_mib,
        sm_source=seen.sm_source,
        flags=tuple(_flags(node.name, view, seen, outside)),
    )


def _flags(
    node: str, view: CardView, seen: CardSeen, outside: float | None
) -> Iterator[Flag]:
    card = view.card
    if not card.healthy:
        words = "sick: nothing new comes here, what runs stays charged"
        do = f"gpusharectl clear-card {node} {card.index}, once you have seen to it"
        yield Flag(Sign.SICK, words, do)
    if card.cordoned:
        do = f"gpusharectl uncordon-card {node} {card.index}"
        yield Flag(Sign.CORDONED, "cordoned: nothing new comes here", do)
    look = f"nvidia-smi on {node}"
    if outside:
        words = f"processes outside Kubernetes use {size(outside)}"
        yield Flag(Sign.OUTSIDE, words, look)
    hidden = seen.unattributed_mib
    if hidden is not None and hidden > UNATTRIBUTED_MIB:
        words = f"{size(hidden)} in use belong to no process that is known"
        yield Flag(Sign.UNATTRIBUTED, words, look)
