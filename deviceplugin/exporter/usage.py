"""What containers were allocated and what they use of each card, and overuse. Pure.

What was allocated comes from placements only; what is used comes from processes only.

Overuse is memory above the container's share. Cores are not limited, because idle cores
may be used by others. A pod that has a card to itself has no share to exceed.
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
    """One container on one card: what it was allocated and what it uses.

    ``allotted`` is None for a container that uses a card without having asked for it,
    or whose placement is not known; then ``placed`` is False. ``memory_mib`` in
    MiB, the rest in percent of the whole card; None is unknown. ``exclusive``: its pod
    has the card to itself by its request (whole cards). ``last_busy`` is when it was
    last seen at work, at the earliest when it was first seen at all; seconds since
    1970. ``contexts_mib`` is the part of its memory that counts as CUDA contexts, which
    are no part of a share. All names are empty for processes outside Kubernetes.
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
        """What identifies it on the node."""
        return (self.card, self.uid, self.container)


@dataclass(frozen=True, slots=True)
class CardUse:
    """The sums of one card; None is unknown.

    ``unattributed_mib`` is the memory in use less what all known processes use.
    ``context_mib`` is the least memory that a process was ever seen to hold that
    allocates nothing.
    """

    allotted_units: int | None = None
    exclusive: bool = False
    unattributed_mib: float | None = None
    sm_source: SmSource = SmSource.NONE
    context_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """An idle process: the memory it holds (MiB), and since when (s since 1970)."""

    memory_mib: float
    since: float


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one node; containers in a fixed order.

    ``at`` is when the processes were read, None if they were not. ``resting`` are the
    pods' idle processes, by card and pid.
    """

    containers: tuple[ContainerUse, ...] = ()
    cards: Mapping[CardUUID, CardUse] = field(default_factory=dict)
    at: float | None = None
    resting: Mapping[tuple[CardUUID, int], Rest] = field(default_factory=dict)


_Times = Mapping[UseKey, float | None]
_Resting = Mapping[tuple[CardUUID, int], Rest]

CONTEXT_MIB = 512
"""An idle CUDA process holds 300 to 500 MiB for its context."""
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
    """Return what each container was allocated and uses of each card.

    ``tenancy`` is None if pods are not known; then no container is. ``before`` is the
    last result; it has since when each container is idle. ``context_mib`` is what a
    process may hold for its context; more if a card's contexts are larger.
    """
    if snapshot.found is None:
        return Usage()
    processes = snapshot.processes
    at = None if processes is None or processes.failure else processes.at
    times = {one.key: one.last_busy for one in before.containers}
    consumers = _all_consumers(tenancy)
    containers: list[ContainerUse] = []
    cards: dict[CardUUID, CardUse] = {}
    resting: dict[tuple[CardUUID, int], Rest] = {}
    for card in snapshot.found.cards:
        account = _CardAccount(
            card.uuid, _says(snapshot, card.uuid), consumers.get(card.uuid, {})
        )
        _assign_processes(account, snapshot, tenancy)
        its = _resting(account, before.resting, at)
        resting |= its
        smallest = _smallest_context(
            its.values(), before.cards.get(card.uuid), context_mib, at
        )
        account.context_mib = max(context_mib, smallest or 0.0)
        containers += _containers(account, snapshot, times, at)
        cards[card.uuid] = _card(account, snapshot, tenancy, smallest)
    return Usage(tuple(containers), cards, at, resting)


@dataclass(slots=True)
class _Consumer:
    """One container on one card; without a tenant, all processes outside Kubernetes."""

    tenant: Tenant | None
    container: str
    allotted: Amount | None = None
    exclusive: bool = False
    processes: list[ProcessUse] = field(default_factory=list)


_Name = tuple[str, str]
_OUTSIDE: _Name = ("", "")


@dataclass(slots=True)
class _CardAccount:
    """One card and its consumers; ``unknown_pods`` are processes of unknown pods."""

    card: CardUUID
    says: ProcessesAnswer | None
    consumers: dict[_Name, _Consumer]
    unknown_pods: list[ProcessUse] = field(default_factory=list)
    context_mib: float = 0.0

    @property
    def busy(self) -> int:
        """How many consumers have processes here."""
        busy = sum(bool(one.processes) for one in self.consumers.values())
        return busy + bool(self.unknown_pods)


def _says(snapshot: Snapshot, uuid: CardUUID) -> ProcessesAnswer | None:
    """Return the answer about a card's processes; None if nothing is known."""
    processes = snapshot.processes
    says = None if processes is None else processes.cards.get(uuid)
    return says if says is not None and says.known and not says.failure else None


def _all_consumers(
    tenancy: Tenancy | None,
) -> Mapping[CardUUID, dict[_Name, _Consumer]]:
    """Return the containers that were allocated something, card by card."""
    found: dict[CardUUID, dict[_Name, _Consumer]] = {}
    for tenant, holding in _holdings(tenancy):
        consumers = found.setdefault(holding.card, {})
        name = (tenant.uid, holding.container)
        consumer = consumers.setdefault(
            name, _Consumer(tenant, holding.container, Amount())
        )
        consumer.allotted = (consumer.allotted or Amount()) + holding.amount
        consumer.exclusive = consumer.exclusive or holding.exclusive
    return found


def _holdings(tenancy: Tenancy | None) -> Iterator[tuple[Tenant, Holding]]:
    for tenant in tenancy.tenants if tenancy else ():
        for holding in tenant.holdings():
            yield tenant, holding


def _assign_processes(
    account: _CardAccount, snapshot: Snapshot, tenancy: Tenancy | None
) -> None:
    """Assign each process to its consumer; one without an owner has just ended."""
    owners = snapshot.processes.owners if snapshot.processes else {}
    for process in account.says.processes if account.says else ():
        owner = owners.get(process.pid)
        if owner is None:
            continue
        tenant = tenancy.owner_pod(owner) if tenancy else None
        if tenant is None and owner.pod:
            account.unknown_pods.append(process)
            continue
        container = tenant.container_of(owner) if tenant else ""
        name = (tenant.uid, container) if tenant else _OUTSIDE
        consumer = account.consumers.setdefault(name, _Consumer(tenant, container))
        consumer.processes.append(process)


def _resting(
    account: _CardAccount, before: _Resting, at: float | None
) -> dict[tuple[CardUUID, int], Rest]:
    """Return the pods' idle processes, each with since when its memory is the same."""
    found: dict[tuple[CardUUID, int], Rest] = {}
    for consumer in account.consumers.values():
        for process in consumer.processes if consumer.tenant else ():
            key, mib = (account.card, process.pid), process.memory_mib
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
    """Return the least memory that an idle process was seen to hold."""
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
    account: _CardAccount, snapshot: Snapshot, times: _Times, at: float | None
) -> Iterator[ContainerUse]:
    ordered = sorted(account.consumers.values(), key=_order)
    for consumer in ordered:
        namespace, pod = consumer.tenant.name if consumer.tenant else ("", "")
        uid = consumer.tenant.uid if consumer.tenant else ""
        sm, memory_copy, encoder, decoder = _work(consumer, account, snapshot)
        last = times.get((account.card, uid, consumer.container))
        if sm is not None and (sm > 0 or last is None):
            last = at
        yield ContainerUse(
            card=account.card,
            namespace=namespace,
            pod=pod,
            uid=uid,
            container=consumer.container,
            allotted=consumer.allotted,
            exclusive=consumer.exclusive,
            memory_mib=_of_all(consumer, account, snapshot, "memory_mib"),
            sm=sm,
            memory_copy=memory_copy,
            encoder=encoder,
            decoder=decoder,
            last_busy=last,
            placed=not (consumer.tenant and consumer.tenant.unplaced),
            contexts_mib=sum(
                min(process.memory_mib or 0.0, account.context_mib)
                for process in (consumer.processes if consumer.tenant else ())
            ),
        )


def _order(consumer: _Consumer) -> tuple[tuple[str, str], str, str]:
    if consumer.tenant is None:
        return (("", ""), "", "")
    return (consumer.tenant.name, consumer.tenant.uid, consumer.container)


_WORK = ("sm", "memory_copy", "encoder", "decoder")
_CARDS_WORK = (GPU_UTIL, MEM_COPY_UTIL, ENC_UTIL, DEC_UTIL)
_BY_PROCESS = (SmSource.SAMPLES, SmSource.INFO)


def _work(
    consumer: _Consumer, account: _CardAccount, snapshot: Snapshot
) -> tuple[float | None, ...]:
    """Return the four kinds of work; the card's own values if it has one consumer."""
    if (
        consumer.processes
        and account.says
        and account.says.sm_source not in _BY_PROCESS
    ):
        if account.busy > 1 or _owners_unknown(snapshot):
            return (None, None, None, None)
        return tuple(_value(snapshot, account.card, name) for name in _CARDS_WORK)
    return tuple(_of_all(consumer, account, snapshot, what) for what in _WORK)


def _of_all(
    consumer: _Consumer, account: _CardAccount, snapshot: Snapshot, what: str
) -> float | None:
    """Add up one value over a consumer's processes; 0 if it has none.

    None if it may have others, because the owner of some processes is not known.
    """
    if (
        account.says is None
        or _owners_unknown(snapshot)
        or _is_incomplete(consumer, account)
    ):
        return None
    return _sum(getattr(process, what) for process in consumer.processes)


def _is_incomplete(consumer: _Consumer, account: _CardAccount) -> bool:
    """Return whether a process of its pod runs whose container is not known.

    Its container has just been restarted, and the pod's status lacks the new id.
    """
    if consumer.tenant is None or not consumer.container:
        return False
    nameless = account.consumers.get((consumer.tenant.uid, ""))
    return nameless is not None and bool(nameless.processes)


def _owners_unknown(snapshot: Snapshot) -> bool:
    """Return whether there may be processes whose owner is not known."""
    return PROCESSES in snapshot.troubles


def _sum(values: Iterable[float | None]) -> float | None:
    """Add up; None if any value is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _card(
    account: _CardAccount,
    snapshot: Snapshot,
    tenancy: Tenancy | None,
    smallest: float | None,
) -> CardUse:
    shares = [
        share
        for tenant in (tenancy.tenants if tenancy else ())
        for share in tenant.shares()
        if share.card == account.card
    ]
    blind = account.says is None or _owners_unknown(snapshot)
    return CardUse(
        allotted_units=sum(s.amount.units for s in shares) if tenancy else None,
        exclusive=any(s.amount.cores >= CORES_PER_CARD for s in shares),
        unattributed_mib=None
        if blind or tenancy is None
        else _unattributed(account, snapshot),
        sm_source=_source(account, snapshot),
        context_mib=smallest,
    )


def _memory(consumer: _Consumer) -> float | None:
    return _sum(process.memory_mib for process in consumer.processes)


def _unattributed(account: _CardAccount, snapshot: Snapshot) -> float | None:
    used = _value(snapshot, account.card, FB_USED)
    known = _sum(_memory(consumer) for consumer in account.consumers.values())
    if used is None or known is None:
        return None
    return max(0.0, used - known)


def _source(account: _CardAccount, snapshot: Snapshot) -> SmSource:
    if account.says is None or _owners_unknown(snapshot):
        return SmSource.NONE
    if account.says.sm_source in _BY_PROCESS:
        return account.says.sm_source
    known = _value(snapshot, account.card, GPU_UTIL) is not None
    return SmSource.CARD if account.busy == 1 and known else SmSource.NONE


_GROUP_OF = {FB_USED: MEMORY} | dict.fromkeys(_CARDS_WORK, UTILIZATION)


def _value(snapshot: Snapshot, uuid: CardUUID, name: str) -> float | None:
    """Return a card's own value; None if it is not read or not known."""
    found = snapshot.rounds.get(_GROUP_OF[name])
    says = found.cards.get(uuid) if found else None
    return None if says is None else says.values.get(name)


Mode = Literal["off", "report", "evict"]
"""What is done about overuse that lasts."""

TOLERANCE = 1.05
"""A container may hold so many times its share, because memory comes in pages."""

LONGEST_GAP_S = 15.0
"""Between two rounds that are further apart the use was unknown."""


@dataclass(frozen=True, slots=True)
class Overuse:
    """One container over its share; ``lasted_s`` is for how long it is known to be.

    ``seen`` is when the last round saw it, by the clock of ``detect_overuse``; None if
    that round did not tell. ``reported`` and ``evicted`` are what was done about it.
    """

    use: ContainerUse
    seen: float | None
    lasted_s: float = 0.0
    reported: bool = False
    evicted: bool = False


Overuses = Mapping[UseKey, Overuse]


@dataclass(frozen=True, slots=True)
class OveruseTally:
    """What was done about overuse since the exporter started."""

    reports: int = 0
    evictions: int = 0


def allotted_mib(use: ContainerUse) -> float | None:
    """Return a container's share of the card's memory (MiB); None if it has none.

    It is 0 for a container that asked for no part of the card, and None if the
    process's container is not known.
    """
    if not use.container or not use.placed or use.exclusive:
        return None
    if use.allotted is None:
        return 0.0
    # It asked for cores only, so it has no memory limit.
    return use.allotted.units * float(UNIT_MIB) or None


def is_over(use: ContainerUse) -> bool | None:
    """Return whether a container uses more memory than its share; None for unknown.

    The CUDA contexts of its processes do not count.
    """
    share = allotted_mib(use)
    if share is None or use.memory_mib is None:
        return None
    if use.allotted is None:
        return use.memory_mib > 0
    return use.memory_mib - use.contexts_mib > share * TOLERANCE


def detect_overuse(before: Overuses, usage: Usage, now: float) -> Overuses:
    """Return the containers over their share by a round at ``now``, and for how long.

    A container whose use is unknown stays as it was; that time does not count. ``now``
    is in monotonic seconds.
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


def due(overuses: Overuses, after_s: float) -> Iterator[Overuse]:
    """Return those that have been over their share for so long, and are now."""
    for overuse in overuses.values():
        if overuse.seen is not None and overuse.lasted_s >= after_s:
            yield overuse


def may_evict(overuse: Overuse) -> bool:
    """Return whether a pod may be evicted for this.

    Not a pod without a request: such pods are mostly daemons of the node.
    """
    return overuse.use.allotted is not None


def overuse_text(overuse: Overuse, card: str) -> str:
    """Describe it in one sentence, for the pod's events and the log."""
    use = overuse.use
    share = allotted_mib(use) or 0.0
    held = f"container {use.container} uses {use.memory_mib or 0:.0f}"
    if use.allotted is None:
        return f"{held} MiB of {card} without a request for it"
    lasted = f"for {overuse.lasted_s:.0f} s"
    beside = f", plus {use.contexts_mib:.0f} MiB allowed for CUDA contexts"
    return f"{held} MiB of {card} {lasted}; its share is {share:.0f} MiB{beside}"
