"""What containers were allocated and what they use of each card, and overuse. Pure.

What was allocated comes from placements only; what is used comes from processes only.

Case is memory above the container's share. Cores are not limited, because idle cores
may be used by others. A pod that has a card to itself has no share to exceed. One CUDA
context is allowed beside a share: many processes, each with its own, fill a card.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Literal

from exporter.held import (
    EARLIER,
    TOLERANCE,
    HeldVerdict,
    judge_container,
    of_container,
)
from exporter.owners.owner_pods import Owner, OwnerPod, OwnerPods
from exporter.snapshot import TelemetrySnapshot
from exporter.telemetry.base import ProcessUse, SmSource
from exporter.telemetry.fields import (
    DEC_UTIL,
    ENC_UTIL,
    FB_USED,
    GPU_UTIL,
    MEM_COPY_UTIL,
    MEMORY,
    PROCESSES,
    UTILIZATION,
)
from gpushare.cards.source import FoundCard
from gpushare.domain.model import UNIT_MIB, Amount, CardUUID

UseKey = tuple[CardUUID, str, str]
"""Card, pod's UID and container: what a ``ContainerUse`` is known by."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One container on one card: what it was allocated and what it uses.

    ``allotted`` is None for a container that uses a card without having asked for it,
    or whose placement is not known; then ``placed`` is False, as on a card that is only
    measured. ``memory_mib`` in MiB, the rest in percent of the whole card; None is
    unknown. ``exclusive``: its pod has the card to itself by its request (whole cards).
    ``last_busy`` is when it was last seen at work, at the earliest when it was first
    seen at all; seconds since 1970. ``context_mib`` is the part of its memory that
    counts as the CUDA context that is allowed beside its share. ``beside_mib`` is what
    other containers use of the same part of the card, such a context of each left out:
    several may use one ResourceClaim. ``held`` is whether what should hold it to its
    share does; None without such a thing. All names are empty for processes outside
    Kubernetes.
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
    context_mib: float = 0.0
    beside_mib: float | None = 0.0
    held: HeldVerdict | None = None

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
class IdleProcess:
    """An idle process: the memory it holds (MiB), and since when (s since 1970)."""

    memory_mib: float
    since: float


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one node; containers in a fixed order.

    ``at`` is when the processes were read, None if they were not. ``idle`` are the
    pods' idle processes, by card and pid.
    """

    containers: tuple[ContainerUse, ...] = ()
    cards: Mapping[CardUUID, CardUse] = field(default_factory=dict)
    at: float | None = None
    idle: Mapping[tuple[CardUUID, int], IdleProcess] = field(default_factory=dict)


CONTEXT_MIB = 512
"""An idle CUDA process holds 300 to 500 MiB for its context."""
_RESTED_S = 60.0
"""A process that for so long neither works nor changes its memory allocates none."""
_MOST_CONTEXTS = 2
"""One that holds more than so many times the allowance has allocated something."""
_WORK = ("sm", "memory_copy", "encoder", "decoder")
_CARDS_WORK = (GPU_UTIL, MEM_COPY_UTIL, ENC_UTIL, DEC_UTIL)
_GROUP_OF = {FB_USED: MEMORY} | dict.fromkeys(_CARDS_WORK, UTILIZATION)
_BY_PROCESS = (SmSource.SAMPLES, SmSource.INFO)


def account_usage(
    snapshot: TelemetrySnapshot,
    owner_pods: OwnerPods | None,
    before: Usage,
    context_mib: float = CONTEXT_MIB,
) -> Usage:
    """Return what each container was allocated and uses of each card.

    ``owner_pods`` is None if pods are not known; then no container is. ``before`` is
    the last result; it has since when each container is idle. ``context_mib`` is what a
    process may hold for its context; more if a card's contexts are larger.
    """
    processes = snapshot.processes
    at = None if processes is None or processes.failure else processes.at
    times = {use.key: use.last_busy for use in before.containers}
    consumers = _all_consumers(owner_pods)
    containers: list[ContainerUse] = []
    cards: dict[CardUUID, CardUse] = {}
    idle: dict[tuple[CardUUID, int], IdleProcess] = {}
    for card in snapshot.cards:
        uuid = card.uuid
        account = _CardAccount(snapshot, owner_pods, card, consumers.get(uuid, {}))
        idle_here = account.idle(before.idle, at)
        idle |= idle_here
        known = before.cards.get(uuid, CardUse()).context_mib
        smallest = _smallest_context(idle_here.values(), known, context_mib, at)
        context = max(context_mib, smallest or 0.0)
        uses = account.container_uses(times, at, context)
        containers += sorted(uses, key=lambda u: (u.namespace, u.pod, *u.key[1:]))
        cards[uuid] = account.card_use(smallest)
    return Usage(tuple(containers), cards, at, idle) if snapshot.found else Usage()


@dataclass(slots=True)
class _Consumer:
    """One container on one card; without a pod, all processes outside Kubernetes."""

    owner_pod: OwnerPod | None
    container: str
    allotted: Amount | None = None
    exclusive: bool = False
    processes: list[ProcessUse] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)


_Name = tuple[str, str]


def _all_consumers(
    owner_pods: OwnerPods | None,
) -> Mapping[CardUUID, dict[_Name, _Consumer]]:
    """Return the containers that were allocated something, card by card."""
    consumers: dict[CardUUID, dict[_Name, _Consumer]] = {}
    for owner_pod in owner_pods.all if owner_pods else ():
        for holding in owner_pod.holdings():
            consumer = consumers.setdefault(holding.card, {}).setdefault(
                (owner_pod.uid, holding.container),
                _Consumer(owner_pod, holding.container),
            )
            consumer.allotted = (consumer.allotted or Amount()) + holding.amount
            consumer.exclusive = consumer.exclusive or holding.exclusive
            consumer.parts |= {holding.part} - {""}
    return consumers


def _smallest_context(
    idle: Iterable[IdleProcess],
    known: float | None,
    context_mib: float,
    at: float | None,
) -> float | None:
    seen = [
        process.memory_mib for process in idle if at and at - process.since >= _RESTED_S
    ]
    small = [mib for mib in seen if mib <= context_mib * _MOST_CONTEXTS]
    return min(small if known is None else [*small, known], default=None)


class _CardAccount:
    def __init__(
        self,
        snapshot: TelemetrySnapshot,
        owner_pods: OwnerPods | None,
        card: FoundCard,
        consumers: dict[_Name, _Consumer],
    ) -> None:
        self._snapshot = snapshot
        self._owner_pods = owner_pods
        self._card = card.uuid
        self._integrated = card.integrated
        self._measured_only = card.integrated or not card.offered
        self._consumers = consumers
        self._of_unknown_pods = False
        processes = snapshot.processes
        answer = processes.cards.get(card.uuid) if processes else None
        self._says = answer if answer and answer.known and not answer.failure else None
        # While there is trouble, there may be processes whose owner is not known.
        self._blind = self._says is None or PROCESSES in snapshot.troubles
        for process in self._says.processes if self._says else ():
            owner = processes.owners.get(process.pid) if processes else None
            if owner is not None:
                self._assign(process, owner)
        busy = sum(bool(consumer.processes) for consumer in consumers.values())
        self._alone = busy + self._of_unknown_pods == 1

    def _assign(self, process: ProcessUse, owner: Owner) -> None:
        """Assign a process to its consumer; one without an owner has just ended."""
        owner_pod = self._owner_pods.of_process(owner) if self._owner_pods else None
        if owner_pod is None and owner.pod:
            self._of_unknown_pods = True
            return
        container = owner_pod.container_of(owner) if owner_pod else ""
        name = (owner_pod.uid if owner_pod else "", container)
        consumer = self._consumers.setdefault(name, _Consumer(owner_pod, container))
        consumer.processes.append(process)

    def idle(
        self, before: Mapping[tuple[CardUUID, int], IdleProcess], at: float | None
    ) -> dict[tuple[CardUUID, int], IdleProcess]:
        """Return the pods' idle processes, and since when the memory is the same."""
        idle: dict[tuple[CardUUID, int], IdleProcess] = {}
        for consumer in self._consumers.values():
            for process in consumer.processes if consumer.owner_pod else ():
                key, mib = (self._card, process.pid), process.memory_mib
                if at is None or not mib or process.sm != 0:
                    continue
                known = before.get(key)
                idle[key] = (
                    known if known and known.memory_mib == mib else IdleProcess(mib, at)
                )
        return idle

    def container_uses(
        self, times: Mapping[UseKey, float | None], at: float | None, context_mib: float
    ) -> Iterator[ContainerUse]:
        """Yield what each consumer was allocated and uses."""
        for consumer in self._consumers.values():
            owner_pod = consumer.owner_pod
            namespace, pod = owner_pod.name if owner_pod else ("", "")
            uid = owner_pod.uid if owner_pod else ""
            sm, memory_copy, encoder, decoder = self._work(consumer)
            last = times.get((self._card, uid, consumer.container))
            if sm is not None and (sm > 0 or last is None):
                last = at
            yield ContainerUse(
                card=self._card,
                namespace=namespace,
                pod=pod,
                uid=uid,
                container=consumer.container,
                allotted=consumer.allotted,
                exclusive=consumer.exclusive,
                memory_mib=self._sum(consumer, "memory_mib"),
                sm=sm,
                memory_copy=memory_copy,
                encoder=encoder,
                decoder=decoder,
                last_busy=last,
                placed=not (
                    (self._measured_only and consumer.allotted is None)
                    or (owner_pod and owner_pod.unplaced)
                ),
                context_mib=_context(consumer, context_mib) if owner_pod else 0.0,
                beside_mib=self._beside(consumer, context_mib),
                held=self._held(consumer, context_mib),
            )

    def _held(self, consumer: _Consumer, context_mib: float) -> HeldVerdict | None:
        round_, pod = self._snapshot.processes, consumer.owner_pod
        known = self._sum(consumer, "memory_mib") is not None
        if round_ is None or pod is None or consumer.exclusive or not known:
            return None
        limits = round_.limits
        names = [of_container(pod.uid, consumer.container), *sorted(consumer.parts)]
        limit = next(filter(None, map(limits.containers.get, names)), None)
        if limit is not None:
            inside = limits.inside
            return judge_container(limit, consumer.processes, inside, context_mib)
        uses = bool(consumer.processes and consumer.allotted)
        return EARLIER if uses and self._is_earlier(pod) else None

    def _is_earlier(self, pod: OwnerPod) -> bool:
        """Return whether a pod without a tier came before one that has one."""
        pods = self._owner_pods.all if self._owner_pods else ()
        bound = [other.pod.bound for other in pods if other.pod.isolation]
        return not pod.pod.isolation and pod.pod.bound < max(bound, default="")

    def _beside(self, consumer: _Consumer, context_mib: float) -> float | None:
        """Add up what others use of parts that a container holds too."""
        others = [
            other
            for other in self._consumers.values()
            if other is not consumer and other.parts and other.parts <= consumer.parts
        ]
        used = _sum(
            process.memory_mib for other in others for process in other.processes
        )
        if used is None:
            return None
        return used - sum(_context(other, context_mib) for other in others)

    def card_use(self, context_mib: float | None) -> CardUse:
        """Return the card's sums."""
        owner_pods = self._owner_pods.all if self._owner_pods else ()
        shares = [
            share
            for owner_pod in owner_pods
            for share in owner_pod.shares()
            if share.card == self._card
        ]
        claimed = self._owner_pods.claimed if self._owner_pods else None
        shares += [share for share in claimed or () if share.card == self._card]
        return CardUse(
            allotted_units=None
            if claimed is None
            else sum(share.amount.units for share in shares),
            exclusive=any(share.is_whole for share in shares),
            unattributed_mib=self._unattributed() if self._owner_pods else None,
            sm_source=self._source(),
            context_mib=context_mib,
        )

    def _work(self, consumer: _Consumer) -> tuple[float | None, ...]:
        """Return the kinds of work; the card's own values if it has one consumer."""
        if consumer.processes and self._says and not self._by_process:
            if self._blind or not self._alone:
                return (None,) * len(_WORK)
            return tuple(self._value(name) for name in _CARDS_WORK)
        return tuple(self._sum(consumer, what) for what in _WORK)

    @property
    def _by_process(self) -> bool:
        return self._says is not None and self._says.sm_source in _BY_PROCESS

    def _sum(self, consumer: _Consumer, what: str) -> float | None:
        """Add up one value over a consumer's processes; 0 if it has none.

        None if it may have others, because the owner of some processes is not known, or
        the container of a process of its pod: a container has just been restarted, and
        the pod's status lacks the new id.
        """
        if self._blind:
            return None
        if consumer.owner_pod is not None and consumer.container:
            nameless = self._consumers.get((consumer.owner_pod.uid, ""))
            if nameless is not None and nameless.processes:
                return None
        return _sum(getattr(process, what) for process in consumer.processes)

    def _unattributed(self) -> float | None:
        used = self._value(FB_USED)
        everybody = self._consumers.values()
        known = _sum(
            use.memory_mib for consumer in everybody for use in consumer.processes
        )
        # The memory of an integrated card is also that of all programs of the node.
        if self._blind or self._integrated or used is None or known is None:
            return None
        return max(0.0, used - known)

    def _source(self) -> SmSource:
        if self._says is None or self._blind:
            return SmSource.NONE
        if self._by_process:
            return self._says.sm_source
        known = self._alone and self._value(GPU_UTIL) is not None
        return SmSource.CARD if known else SmSource.NONE

    def _value(self, name: str) -> float | None:
        """Return the card's own value; None if it is not read or not known."""
        round_ = self._snapshot.rounds.get(_GROUP_OF[name])
        says = round_.cards.get(self._card) if round_ else None
        return None if says is None else says.values.get(name)


def _context(consumer: _Consumer, context_mib: float) -> float:
    """Return what of a container's memory counts as its one context."""
    known = [process.memory_mib or 0.0 for process in consumer.processes]
    return min(max(known, default=0.0), context_mib)


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


class UsageBook:
    """The usage of containers, computed again only when its inputs changed.

    There is one in a process, because it remembers since when each container is idle.
    Without ``owner_pods`` no pods are known. Any thread may call.
    """

    def __init__(
        self,
        snapshot: Callable[[], TelemetrySnapshot],
        owner_pods: Callable[[], OwnerPods | None] | None = None,
        *,
        context_mib: float = CONTEXT_MIB,
    ) -> None:
        self._context_mib = context_mib
        self._snapshot = snapshot
        self._owner_pods = owner_pods
        self._lock = Lock()
        self._read: tuple[object, ...] = ()
        self._usage = Usage()

    def owner_pods(self) -> OwnerPods | None:
        """Return the pods of the node; None while they are not known."""
        return self._owner_pods() if self._owner_pods else None

    @property
    def has_pods(self) -> bool:
        """Whether pods are followed at all."""
        return self._owner_pods is not None

    def now(self) -> Usage:
        """Return what containers use by the newest round."""
        with self._lock:
            snapshot, owner_pods = self._snapshot(), self.owner_pods()
            read = (
                snapshot.processes,
                snapshot.found,
                snapshot.rounds.get(MEMORY),
                snapshot.rounds.get(UTILIZATION),
                snapshot.troubles,
                owner_pods,
            )
            # The same objects; comparing rounds would be slow.
            if tuple(map(id, read)) != tuple(map(id, self._read)):
                self._usage = account_usage(
                    snapshot, owner_pods, self._usage, self._context_mib
                )
                self._read = read
            return self._usage


Mode = Literal["off", "report", "evict"]
"""What is done about overuse that lasts."""

LONGEST_GAP_S = 15.0
"""Between two rounds that are further apart the use was unknown."""


@dataclass(frozen=True, slots=True)
class Case:
    """A container over its share, or not held; ``lasted_s`` is for how long, as known.

    ``seen`` is when the last round saw it, by the clock of ``follow_cases``; None if
    that round did not tell. ``reported`` and ``evicted`` are what was done about it.
    """

    use: ContainerUse
    seen: float | None
    lasted_s: float = 0.0
    reported: bool = False
    evicted: bool = False


Cases = Mapping[UseKey, Case]


@dataclass(frozen=True, slots=True)
class OveruseTally:
    """What was done about overuse since the exporter started."""

    reports: int = 0
    evictions: int = 0


def allotted_mib(use: ContainerUse) -> float | None:
    """Return a container's share of the card's memory (MiB); None if it has none.

    It is 0 for a container that asked for no memory of the card, and None if the
    process's container is not known.
    """
    if not use.container or not use.placed or use.exclusive:
        return None
    return 0.0 if use.allotted is None else use.allotted.units * float(UNIT_MIB)


def is_over(use: ContainerUse) -> bool | None:
    """Return whether a container uses more memory than its share; None for unknown.

    The CUDA context of one of its processes does not count.
    """
    share = allotted_mib(use)
    if share is None or use.memory_mib is None:
        return None
    if use.allotted is None:
        return use.memory_mib > 0
    own_mib = use.memory_mib - use.context_mib
    if own_mib > share * TOLERANCE:
        return True
    if use.beside_mib is None:
        return None
    return own_mib > 0 and own_mib + use.beside_mib > share * TOLERANCE


def is_not_held(use: ContainerUse) -> bool | None:
    """Return whether what should hold a container does not; None for unknown."""
    return None if use.held is None else not use.held.is_held


def follow_cases(
    before: Cases,
    usage: Usage,
    now: float,
    is_case: Callable[[ContainerUse], bool | None] = is_over,
) -> Cases:
    """Return the containers that are a case by a round at ``now``, and for how long.

    One of which ``is_case`` does not know stays as it was; that time does not count.
    ``now`` is in monotonic seconds.
    """
    cases: dict[UseKey, Case] = {}
    if usage.at is None:
        return {key: replace(known, seen=None) for key, known in before.items()}
    for use in usage.containers:
        known = before.get(use.key, Case(use, None))
        so = is_case(use)
        if so:
            gap_s = 0.0 if known.seen is None else now - known.seen
            lasted_s = known.lasted_s + (gap_s if gap_s <= LONGEST_GAP_S else 0.0)
            cases[use.key] = replace(known, use=use, seen=now, lasted_s=lasted_s)
        elif so is None and use.key in before:
            cases[use.key] = replace(known, seen=None)
    return cases


def due_cases(cases: Cases, after_s: float) -> Iterator[Case]:
    """Return those that have lasted for so long, and are cases now."""
    for case in cases.values():
        if case.seen is not None and case.lasted_s >= after_s:
            yield case


def not_held_text(case: Case, card: str) -> str:
    """Describe why a container is not held, as ``overuse_text`` does."""
    because = case.use.held.because if case.use.held else ""
    return f"container {case.use.container} is not held on {card}: {because}"


def overuse_text(overuse: Case, card: str) -> str:
    """Describe it in one sentence, for the pod's events and the log."""
    use = overuse.use
    share = allotted_mib(use) or 0.0
    text = f"container {use.container} uses {use.memory_mib or 0:.0f}"
    if use.allotted is None:
        return f"{text} MiB of {card} without a request for it"
    lasted = f"for {overuse.lasted_s:.0f} s"
    if use.beside_mib:
        text += f" MiB, and others of its claim {use.beside_mib:.0f}"
    beside = f", plus {use.context_mib:.0f} MiB allowed for one CUDA context"
    share_text = (
        f"its share is {share:.0f} MiB" if share else "it asked for cores alone"
    )
    return f"{text} MiB of {card} {lasted}; {share_text}{beside}"
