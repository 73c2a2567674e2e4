"""From processes, owners and placements to what each container uses. Pure.

What was allotted comes from placements, never from processes; what is used comes from
processes, never from placements.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from deviceplugin.fields import (
    DEC_UTIL,
    ENC_UTIL,
    FB_USED,
    GPU_UTIL,
    MEM_COPY_UTIL,
    MEMORY,
    PROCESSES,
    UTILIZATION,
)
from deviceplugin.snapshot import Snapshot
from deviceplugin.telemetry import ProcessesSay, ProcessUse, SmSource
from deviceplugin.tenancy import Holding, Tenancy, Tenant
from deviceplugin.usage import CardUse, ContainerUse, Rest, Usage, UseKey
from gpushare.domain.model import CORES_PER_CARD, Amount, CardUUID

_Times = Mapping[UseKey, float | None]
_Resting = Mapping[tuple[CardUUID, int], Rest]

CONTEXT_MIB = 512
"""An idle process of CUDA holds 300 to 500 MiB for its context."""
_RESTED_S = 60.0
"""A process that for so long neither works nor changes its memory allocates none."""
_MOST_CONTEXTS = 2
"""One that holds more than so many times the allowance has allocated something."""


def reckon(
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
    parties = _all_parties(tenancy)
    containers: list[ContainerUse] = []
    cards: dict[CardUUID, CardUse] = {}
    resting: dict[tuple[CardUUID, int], Rest] = {}
    for card in snapshot.found.cards:
        seat = _Seat(card.uuid, _says(snapshot, card.uuid), parties.get(card.uuid, {}))
        _seat_processes(seat, snapshot, tenancy)
        its = _resting(seat, before.resting, at)
        resting |= its
        learnt = _learnt(its.values(), before.cards.get(card.uuid), context_mib, at)
        seat.context_mib = max(context_mib, learnt or 0.0)
        containers += _containers(seat, snapshot, times, at)
        cards[card.uuid] = _card(seat, snapshot, tenancy, learnt)
    return Usage(tuple(containers), cards, at, resting)


@dataclass(slots=True)
class _Party:
    """One container on one card, or with no tenant all that is outside Kubernetes."""

    tenant: Tenant | None
    container: str
    allotted: Amount | None = None
    exclusive: bool = False
    processes: list[ProcessUse] = field(default_factory=list)


_Name = tuple[str, str]
_OUTSIDE: _Name = ("", "")


@dataclass(slots=True)
class _Seat:
    """One card and all who sit there; ``orphans`` belong to pods nobody knows."""

    card: CardUUID
    says: ProcessesSay | None
    parties: dict[_Name, _Party]
    orphans: list[ProcessUse] = field(default_factory=list)
    context_mib: float = 0.0

    @property
    def busy(self) -> int:
        """How many parties have processes here."""
        busy = sum(bool(one.processes) for one in self.parties.values())
        return busy + bool(self.orphans)


def _says(snapshot: Snapshot, uuid: CardUUID) -> ProcessesSay | None:
    """Give what was told of a card's processes; None where nothing is known."""
    processes = snapshot.processes
    says = None if processes is None else processes.cards.get(uuid)
    return says if says is not None and says.known and not says.failure else None


def _all_parties(
    tenancy: Tenancy | None,
) -> Mapping[CardUUID, dict[_Name, _Party]]:
    """Give who was allotted something, card by card."""
    found: dict[CardUUID, dict[_Name, _Party]] = {}
    for tenant, holding in _holdings(tenancy):
        parties = found.setdefault(holding.card, {})
        name = (tenant.uid, holding.container)
        party = parties.setdefault(name, _Party(tenant, holding.container, Amount()))
        party.allotted = (party.allotted or Amount()) + holding.amount
        party.exclusive = party.exclusive or holding.exclusive
    return found


def _holdings(tenancy: Tenancy | None) -> Iterator[tuple[Tenant, Holding]]:
    for tenant in tenancy.tenants if tenancy else ():
        for holding in tenant.holdings():
            yield tenant, holding


def _seat_processes(seat: _Seat, snapshot: Snapshot, tenancy: Tenancy | None) -> None:
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
        party = seat.parties.setdefault(name, _Party(tenant, container))
        party.processes.append(process)


def _resting(
    seat: _Seat, before: _Resting, at: float | None
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


def _learnt(
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
    seat: _Seat, snapshot: Snapshot, times: _Times, at: float | None
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


def _order(party: _Party) -> tuple[tuple[str, str], str, str]:
    if party.tenant is None:
        return (("", ""), "", "")
    return (party.tenant.name, party.tenant.uid, party.container)


_WORK = ("sm", "memory_copy", "encoder", "decoder")
_CARDS_WORK = (GPU_UTIL, MEM_COPY_UTIL, ENC_UTIL, DEC_UTIL)
_BY_PROCESS = (SmSource.SAMPLES, SmSource.INFO)


def _work(party: _Party, seat: _Seat, snapshot: Snapshot) -> tuple[float | None, ...]:
    """Give the four kinds of work; from the card itself where it serves one alone."""
    if party.processes and seat.says and seat.says.sm_source not in _BY_PROCESS:
        if seat.busy > 1 or _blind(snapshot):
            return (None, None, None, None)
        return tuple(_value(snapshot, seat.card, name) for name in _CARDS_WORK)
    return tuple(_of_all(party, seat, snapshot, what) for what in _WORK)


def _of_all(party: _Party, seat: _Seat, snapshot: Snapshot, what: str) -> float | None:
    """Add up one value over a party's processes; who has none is idle, 0.

    None where others may be its own, too: of some nobody knows whose they are.
    """
    if seat.says is None or _blind(snapshot) or _is_short(party, seat):
        return None
    return _sum(getattr(process, what) for process in party.processes)


def _is_short(party: _Party, seat: _Seat) -> bool:
    """Tell whether a process of its pod runs of which nobody knows the container.

    One that has just been started anew, and kubelet has not told its id yet.
    """
    if party.tenant is None or not party.container:
        return False
    nameless = seat.parties.get((party.tenant.uid, ""))
    return nameless is not None and bool(nameless.processes)


def _blind(snapshot: Snapshot) -> bool:
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
    seat: _Seat, snapshot: Snapshot, tenancy: Tenancy | None, learnt: float | None
) -> CardUse:
    shares = [
        share
        for tenant in (tenancy.tenants if tenancy else ())
        for share in tenant.shares()
        if share.card == seat.card
    ]
    blind = seat.says is None or _blind(snapshot)
    return CardUse(
        allotted_units=sum(s.amount.units for s in shares) if tenancy else None,
        exclusive=any(s.amount.cores >= CORES_PER_CARD for s in shares),
        unattributed_mib=None
        if blind or tenancy is None
        else _unattributed(seat, snapshot),
        sm_source=_source(seat, snapshot),
        context_mib=learnt,
    )


def _memory(party: _Party) -> float | None:
    return _sum(process.memory_mib for process in party.processes)


def _unattributed(seat: _Seat, snapshot: Snapshot) -> float | None:
    used = _value(snapshot, seat.card, FB_USED)
    known = _sum(_memory(party) for party in seat.parties.values())
    if used is None or known is None:
        return None
    return max(0.0, used - known)


def _source(seat: _Seat, snapshot: Snapshot) -> SmSource:
    if seat.says is None or _blind(snapshot):
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
