"""What containers were allotted and what they use, on each card. Pure.

The nouns are here; ``reckoning`` works them out.

From processes, owners and placements to what each container uses. Pure.

What was allotted comes from placements, never from processes; what is used comes from
processes, never from placements.

Which containers use more card memory than their share, and how long. Pure.

A share is held against memory alone: cores that others leave idle may be used, and no
tier of isolation so far takes them away again. A card that its pod has to itself has
no share to exceed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from deviceplugin.exporter.owners import Holding, Tenancy, Tenant
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.telemetry.base import ProcessesAnswer, ProcessUse, SmSource
from deviceplugin.telemetry.fields import (
    DEC_UTIL,
    ENC_UTIL,
    FB_USED,
    GPU_UTIL,
    MEM_COPY_UTIL,
    MEMORY,
    PROCESSES,
    UTILIZATION,
)
from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, Amount, CardUUID

UseKey = tuple[CardUUID, str, str]
"""Card, pod's UID and container: what a ``ContainerUse`` is known by."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One container on one card: what it was allotted beside what it uses.

    ``allotted`` is None for a container that uses a card without having asked for it,
    or of which nobody knows the placement; then ``placed`` is False. ``memory_mib`` in
    MiB, the rest in percent of the whole card; None is unknown. ``exclusive``: its pod
    has the card to itself by its request (whole cards). ``last_busy`` is when it was
    last seen at work, at the earliest when it was first seen at all; seconds since
    1970. ``contexts_mib`` is what of its memory is put down to CUDA's contexts, which
    are no part of a share. All names are empty for what runs outside Kubernetes.
    """

    card: CardUUID
    namespace: str
    pod: str
    uid: str
    container: str
    allotted: Amount | None = None
    exclusive: bool = False
    memory_mib: float | None = None
    sm: float | None = None
    memory_copy: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    last_busy: float | None = None
    placed: bool = True
    contexts_mib: float = 0.0

    @property
    def key(self) -> UseKey:
        """What tells it from all others of the node."""
        return (self.card, self.uid, self.container)


@dataclass(frozen=True, slots=True)
class CardUse:
    """What all of it comes to on one card; None is unknown.

    ``unattributed_mib`` is what is in use less all that containers and processes
    outside Kubernetes are known to use. ``context_mib`` is the least that a process
    which allocates nothing was ever seen to hold.
    """

    allotted_units: int | None = None
    exclusive: bool = False
    unattributed_mib: float | None = None
    sm_source: SmSource = SmSource.NONE
    context_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """A process that does not work, the memory that it holds, and since when it does.

    In MiB, and in seconds since 1970.
    """

    memory_mib: float
    since: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Everything of one node; containers in a fixed order.

    ``at`` is when the processes were read that it goes by, None where they were not.
    ``resting`` are the pods' processes that do not work, by card and pid.
    """

    containers: tuple[ContainerUse, ...] = ()
    cards: Mapping[CardUUID, CardUse] = field(default_factory=dict)
    at: float | None = None
    resting: Mapping[tuple[CardUUID, int], Rest] = field(default_factory=dict)


_Times = Mapping[UseKey, float | None]
_Resting = Mapping[tuple[CardUUID, int], Rest]

CONTEXT_MIB = 512
"""An idle process of CUDA holds 300 to 500 MiB for its context."""
_RESTED_S = 60.0
"""A process that for so long neither works nor changes its memory allocates none."""
_MOST_CONTEXTS = 2
"""One that holds more than so many times the allowance has allocated something."""


def account_usage(
    snapshot: Snapshot,
    tenancy: Tenancy | None,
    before: Usage,
    context_mib: float = CONTEXT_MIB,
) -> Usage:
    """Say what each container has and uses of each card found.

    ``tenancy`` is None where nobody tells of pods: then nothing is known of any
    container. ``before`` is what the last round came to: it tells since when a
    container has been idle. ``context_mib`` is what a process may hold for its context,
    more where a card's contexts are seen to be larger.
    """
    if snapshot.found is None:
        return Usage()
    processes = snapshot.processes
    at = None if processes is None or processes.failure else processes.at
    times = {one.key: one.last_busy for one in before.containers}
    parties = _all_consumers(tenancy)
    containers: list[ContainerUse] = []
    cards: dict[CardUUID, CardUse] = {}
    resting: dict[tuple[CardUUID, int], Rest] = {}
    for card in snapshot.found.cards:
        seat = _CardAccount(
            card.uuid, _says(snapshot, card.uuid), parties.get(card.uuid, {})
        )
        _assign_processes(seat, snapshot, tenancy)
        its = _resting(seat, before.resting, at)
        resting |= its
        learnt = _smallest_context(
            its.values(), before.cards.get(card.uuid), context_mib, at
        )
        seat.context_mib = max(context_mib, learnt or 0.0)
        containers += _containers(seat, snapshot, times, at)
        cards[card.uuid] = _card(seat, snapshot, tenancy, learnt)
    return Usage(tuple(containers), cards, at, resting)


@dataclass(slots=True)
class _Consumer:
    """One container on one card, or with no tenant all that is outside Kubernetes."""

    tenant: Tenant | None
    container: str
    allotted: Amount | None = None
    exclusive: bool = False
    processes: list[ProcessUse] = field(default_factory=list)


_Name = tuple[str, str]
_OUTSIDE: _Name = ("", "")


@dataclass(slots=True)
class _CardAccount:
    """One card and all who sit there; ``orphans`` belong to pods nobody knows."""

    card: CardUUID
    says: ProcessesAnswer | None
    parties: dict[_Name, _Consumer]
    orphans: list[ProcessUse] = field(default_factory=list)
    context_mib: float = 0.0

    @property
    def busy(self) -> int:
        """How many parties have processes here."""
        busy = sum(bool(one.processes) for one in self.parties.values())
        return busy + bool(self.orphans)


def _says(snapshot: Snapshot, uuid: CardUUID) -> ProcessesAnswer | None:
    """Give what was told of a card's processes; None where nothing is known."""
    processes = snapshot.processes
    says = None if processes is None else processes.cards.get(uuid)
    return says if says is not None and says.known and not says.failure else None


def _all_consumers(
    tenancy: Tenancy | None,
) -> Mapping[CardUUID, dict[_Name, _Consumer]]:
    """Give who was allotted something, card by card."""
    found: dict[CardUUID, dict[_Name, _Consumer]] = {}
    for tenant, holding in _holdings(tenancy):
        parties = found.setdefault(holding.card, {})
        name = (tenant.uid, holding.container)
        party = parties.setdefault(name, _Consumer(tenant, holding.container, Amount()))
        party.allotted = (party.allotted or Amount()) + holding.amount
        party.exclusive = party.exclusive or holding.exclusive
    return found


def _holdings(tenancy: Tenancy | None) -> Iterator[tuple[Tenant, Holding]]:
    for tenant in tenancy.tenants if tenancy else ():
        for holding in tenant.holdings():
            yield tenant, holding


def _assign_processes(
    seat: _CardAccount, snapshot: Snapshot, tenancy: Tenancy | None
) -> None:
    """Give each process to its party; one without an owner has just ended."""
    owners = snapshot.processes.owners if snapshot.processes else {}
    for process in seat.says.processes if seat.says else ():
        owner = owners.get(process.pid)
        if owner is None:
            continue
        tenant = tenancy.whose(owner) if tenancy else None
        if tenant is None and owner.pod:
            seat.orphans.append(process)
            continue
        container = tenant.container_of(owner) if tenant else ""
        name = (tenant.uid, container) if tenant else _OUTSIDE
        party = seat.parties.setdefault(name, _Consumer(tenant, container))
        party.processes.append(process)


def _resting(
    seat: _CardAccount, before: _Resting, at: float | None
) -> dict[tuple[CardUUID, int], Rest]:
    """Give the pods' processes that do not work; the memory of none of them changed."""
    found: dict[tuple[CardUUID, int], Rest] = {}
    for party in seat.parties.values():
        for process in party.processes if party.tenant else ():
            key, mib = (seat.card, process.pid), process.memory_mib
            if at is None or not mib or process.sm != 0:
                continue
            known = before.get(key)
            same = known is not None and known.memory_mib == mib
            found[key] = known if same and known else Rest(mib, at)
    return found


def _smallest_context(
    resting: Iterable[Rest],
    before: CardUse | None,
    context_mib: float,
    at: float | None,
) -> float | None:
    """Give the least that a process which allocates nothing was seen to hold."""
    seen = [
        one.memory_mib
        for one in resting
        if at is not None
        and at - one.since >= _RESTED_S
        and one.memory_mib <= context_mib * _MOST_CONTEXTS
    ]
    if before is not None and before.context_mib is not None:
        seen.append(before.context_mib)
    return min(seen, default=None)


def _containers(
    seat: _CardAccount, snapshot: Snapshot, times: _Times, at: float | None
) -> Iterator[ContainerUse]:
    ordered = sorted(seat.parties.values(), key=_order)
    for party in ordered:
        namespace, pod = party.tenant.name if party.tenant else ("", "")
        uid = party.tenant.uid if party.tenant else ""
        sm, memory_copy, encoder, decoder = _work(party, seat, snapshot)
        last = times.get((seat.card, uid, party.container))
        if sm is not None and (sm > 0 or last is None):
            last = at
        yield ContainerUse(
            card=seat.card,
            namespace=namespace,
            pod=pod,
            uid=uid,
            container=party.container,
            allotted=party.allotted,
            exclusive=party.exclusive,
            memory_mib=_of_all(party, seat, snapshot, "memory_mib"),
            sm=sm,
            memory_copy=memory_copy,
            encoder=encoder,
            decoder=decoder,
            last_busy=last,
            placed=not (party.tenant and party.tenant.unplaced),
            contexts_mib=sum(
                min(process.memory_mib or 0.0, seat.context_mib)
                for process in (party.processes if party.tenant else ())
            ),
        )


def _order(party: _Consumer) -> tuple[tuple[str, str], str, str]:
    if party.tenant is None:
        return (("", ""), "", "")
    return (party.tenant.name, party.tenant.uid, party.container)


_WORK = ("sm", "memory_copy", "encoder", "decoder")
_CARDS_WORK = (GPU_UTIL, MEM_COPY_UTIL, ENC_UTIL, DEC_UTIL)
_BY_PROCESS = (SmSource.SAMPLES, SmSource.INFO)


def _work(
    party: _Consumer, seat: _CardAccount, snapshot: Snapshot
) -> tuple[float | None, ...]:
    """Give the four kinds of work; from the card itself where it serves one alone."""
    if party.processes and seat.says and seat.says.sm_source not in _BY_PROCESS:
        if seat.busy > 1 or _owners_unknown(snapshot):
            return (None, None, None, None)
        return tuple(_value(snapshot, seat.card, name) for name in _CARDS_WORK)
    return tuple(_of_all(party, seat, snapshot, what) for what in _WORK)


def _of_all(
    party: _Consumer, seat: _CardAccount, snapshot: Snapshot, what: str
) -> float | None:
    """Add up one value over a party's processes; who has none is idle, 0.

    None where others may be its own, too: of some nobody knows whose they are.
    """
    if seat.says is None or _owners_unknown(snapshot) or _is_incomplete(party, seat):
        return None
    return _sum(getattr(process, what) for process in party.processes)


def _is_incomplete(party: _Consumer, seat: _CardAccount) -> bool:
    """Tell whether a process of its pod runs of which nobody knows the container.

    One that has just been started anew, and kubelet has not told its id yet.
    """
    if party.tenant is None or not party.container:
        return False
    nameless = seat.parties.get((party.tenant.uid, ""))
    return nameless is not None and bool(nameless.processes)


def _owners_unknown(snapshot: Snapshot) -> bool:
    """Tell whether there may be processes of which nobody knows the owner."""
    return PROCESSES in snapshot.troubles


def _sum(values: Iterable[float | None]) -> float | None:
    """Add up; what is unknown in part is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _card(
    seat: _CardAccount,
    snapshot: Snapshot,
    tenancy: Tenancy | None,
    learnt: float | None,
) -> CardUse:
    shares = [
        share
        for tenant in (tenancy.tenants if tenancy else ())
        for share in tenant.shares()
        if share.card == seat.card
    ]
    blind = seat.says is None or _owners_unknown(snapshot)
    return CardUse(
        allotted_units=sum(s.amount.units for s in shares) if tenancy else None,
        exclusive=any(s.amount.cores >= CORES_PER_CARD for s in shares),
        unattributed_mib=None
        if blind or tenancy is None
        else _unattributed(seat, snapshot),
        sm_source=_source(seat, snapshot),
        context_mib=learnt,
    )


def _memory(party: _Consumer) -> float | None:
    return _sum(process.memory_mib for process in party.processes)


def _unattributed(seat: _CardAccount, snapshot: Snapshot) -> float | None:
    used = _value(snapshot, seat.card, FB_USED)
    known = _sum(_memory(party) for party in seat.parties.values())
    if used is None or known is None:
        return None
    return max(0.0, used - known)


def _source(seat: _CardAccount, snapshot: Snapshot) -> SmSource:
    if seat.says is None or _owners_unknown(snapshot):
        return SmSource.NONE
    if seat.says.sm_source in _BY_PROCESS:
        return seat.says.sm_source
    known = _value(snapshot, seat.card, GPU_UTIL) is not None
    return SmSource.CARD if seat.busy == 1 and known else SmSource.NONE


_GROUP_OF = {FB_USED: MEMORY} | dict.fromkeys(_CARDS_WORK, UTILIZATION)


def _value(snapshot: Snapshot, uuid: CardUUID, name: str) -> float | None:
    """Give a card's own value; None where it is not read or not known."""
    found = snapshot.rounds.get(_GROUP_OF[name])
    says = found.cards.get(uuid) if found else None
    return None if says is None else says.values.get(name)


Mode = Literal["off", "report", "evict"]
"""What is done about an excess that lasts."""

TOLERANCE = 1.05
"""So many times its share a container may hold: a driver hands out memory in pages."""

LONGEST_GAP_S = 15.0
"""Between two rounds that lie further apart the use was unknown."""


@dataclass(frozen=True, slots=True)
class Overuse:
    """One container over its share; ``lasted_s`` is how long it is known to be so.

    ``seen`` is when it was seen so in the last round, by the clock of ``look``, and
    None where that round did not tell. ``told`` and ``evicted`` are what was done about
    it, each once.
    """

    use: ContainerUse
    seen: float | None
    lasted_s: float = 0.0
    told: bool = False
    evicted: bool = False


Overuses = Mapping[UseKey, Overuse]


@dataclass(frozen=True, slots=True)
class OveruseTally:
    """What the watchdog has done since the exporter began."""

    reports: int = 0
    evictions: int = 0


def allotted_mib(use: ContainerUse) -> float | None:
    """Give a container's share of the card's memory; None where none can be told.

    That is 0 for one that asked for no part of the card. Of a process in a pod nobody
    may know the container, and then none its share.
    """
    if not use.container or not use.placed or use.exclusive:
        return None
    if use.allotted is None:
        return 0.0
    # It asked for cores alone: then nobody said how much memory it may use.
    return use.allotted.units * float(UNIT_MIB) or None


def is_over(use: ContainerUse) -> bool | None:
    """Tell whether a container uses more memory than its share; None for unknown.

    The contexts of its processes are CUDA's, and no part of what it asked for.
    """
    share = allotted_mib(use)
    if share is None or use.memory_mib is None:
        return None
    if use.allotted is None:
        return use.memory_mib > 0
    return use.memory_mib - use.contexts_mib > share * TOLERANCE


def detect_overuse(before: Overuses, usage: Usage, now: float) -> Overuses:
    """Give who is over its share by a round that came at ``now``, and for how long.

    Whose use is unknown just now stays as it was; that time does not count. ``now`` is
    in seconds of a clock that nobody sets: a step of the day's time is no excess.
    """
    found: dict[UseKey, Overuse] = {}
    if usage.at is None:
        return {key: replace(known, seen=None) for key, known in before.items()}
    for use in usage.containers:
        known = before.get(use.key, Overuse(use, None))
        over = is_over(use)
        if over:
            found[use.key] = _longer(known, use, now)
        elif over is None and use.key in before:
            found[use.key] = replace(known, seen=None)
    return found


def _longer(known: Overuse, use: ContainerUse, now: float) -> Overuse:
    gap_s = 0.0 if known.seen is None else now - known.seen
    counted_s = gap_s if gap_s <= LONGEST_GAP_S else 0.0
    lasted_s = known.lasted_s + counted_s
    return replace(known, use=use, seen=now, lasted_s=lasted_s)


def due(excesses: Overuses, after_s: float) -> Iterator[Overuse]:
    """Give those that have been over their share for so long, and are so now."""
    for excess in excesses.values():
        if excess.seen is not None and excess.lasted_s >= after_s:
            yield excess


def may_evict(excess: Overuse) -> bool:
    """Tell whether a pod may be evicted for this.

    Not one that never asked: what uses cards without a request is mostly the node's
    own, such as a driver's daemon.
    """
    return excess.use.allotted is not None


def overuse_text(excess: Overuse, card: str) -> str:
    """Say it in one sentence, for the pod's events and the log."""
    use = excess.use
    share = allotted_mib(use) or 0.0
    held = f"container {use.container} uses {use.memory_mib or 0:.0f}"
    if use.allotted is None:
        return f"{held} MiB of {card} without having asked for any part of it"
    lasted = f"for {excess.lasted_s:.0f} s"
    beside = f", beside {use.contexts_mib:.0f} MiB allowed for CUDA's contexts"
    return f"{held} MiB of {card} {lasted}; its share is {share:.0f} MiB{beside}"
