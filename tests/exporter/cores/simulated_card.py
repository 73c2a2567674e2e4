"""A time-sliced card, programs that launch kernels on it, and the node that paces them.

Time is simulated, in microseconds. The card gives each process that has work slices in
turn. The library waits before each launch; the driver measures each process's share of
the card; the node reads that twice a second, and decides as the exporter does.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.cores.pace import LONGEST_US, Pace, measured_paces
from exporter.cores.pace_files import MEASURE_EVERY_S
from exporter.usage import Usage, UseKey, account_usage
from tests.exporter.exporter_data import A, held, owner, owner_pods, processes, use
from tests.exporter.exporter_data import snapshot as made_snapshot

S = 1_000_000.0
MS = 1_000.0
SLICE_US = 2 * MS
TICK_US = 100 * MS
ROUND_US = MEASURE_EVERY_S * S
LIBRARY_READS_US = 20 * MS
OVERSLEPT_US = (50.0, 120.0)
"""How much longer than asked a thread of Linux sleeps."""


@dataclass(frozen=True)
class Program:
    """What one process does: ``threads`` that launch ``kernels`` kernels at once.

    ``length_us`` draws a kernel's length. ``queued`` launches may be unfinished in each
    thread; 1 waits for each (synchronous). Its threads wait ``in_turn``, or each by
    itself. It works ``from_s`` ``to_s``.
    """

    length_us: Callable[[random.Random], float]
    threads: int = 1
    kernels: int = 1
    queued: int = 1
    in_turn: bool = True
    from_s: float = 0.0
    to_s: float = float("inf")


@dataclass
class Process:
    """A process on the card: its unfinished launches, and what it used of a window."""

    program: Program
    container: str
    queue: deque[list[float]] = field(default_factory=deque)
    waiting: dict[int, int] = field(default_factory=dict)
    released_us: float = 0.0
    busy_us: float = 0.0
    used_us: float = 0.0
    sample: int = 0
    delay_us: float = 0.0
    read_us: float = -LIBRARY_READS_US


class SimulatedCard:
    """The card; ``cores`` of each container, ``paced`` whether the node writes delays.

    ``sample_s`` is how often the driver measures.
    """

    def __init__(
        self,
        cores: Mapping[str, int],
        programs: Sequence[tuple[str, Program]],
        *,
        paced: bool = True,
        sample_s: float = 1.0,
        seed: int = 1,
    ) -> None:
        self._random = random.Random(seed)
        self._paced = paced
        self._pods = owner_pods(*(held(name, 8, n) for name, n in cores.items()))
        self._all = [Process(program, name) for name, program in programs]
        self._owners = {pid: owner(p.container) for pid, p in enumerate(self._all, 1)}
        self._now = 0.0
        self._releases: list[tuple[float, int, int, Process]] = []
        self._turn: deque[Process] = deque()
        self._sample_us = sample_s * S
        self._next = {"sample": self._sample_us, "tick": TICK_US, "round": ROUND_US}
        self._usage = Usage()
        self._paces: Mapping[UseKey, Pace] = {}
        self.written: dict[str, float] = {}
        self._number = 0
        for process in self._all:
            for thread in range(process.program.threads):
                self._release(process, thread, process.program.from_s * S)

    def run(self, seconds: float) -> dict[str, float]:
        """Go on; return what share of that time each container had (%)."""
        for process in self._all:
            process.used_us = 0.0
        end = self._now + seconds * S
        while self._now < end:
            self._step(end)
        shares: dict[str, float] = {}
        for process in self._all:
            share = process.used_us / (seconds * S) * 100
            shares[process.container] = shares.get(process.container, 0.0) + share
        return shares

    def _step(self, end: float) -> None:
        while self._releases and self._releases[0][0] <= self._now:
            _, _, thread, process = heapq.heappop(self._releases)
            self._launch(process, thread)
        until = min(end, *self._next.values())
        if self._turn:
            self._run_slice(self._turn[0], until)
        else:
            self._now = min([until, *(r[0] for r in self._releases[:1])])
        self._pass(until)

    def _pass(self, until: float) -> None:
        if self._now < until:
            return
        if self._now >= self._next["sample"]:
            self._next["sample"] += self._sample_us
            for process in self._all:
                process.sample = round(process.busy_us / self._sample_us * 100)
                process.busy_us = 0.0
        if self._now >= self._next["round"]:
            self._next["round"] += ROUND_US
            self._measure()
        if self._now >= self._next["tick"]:
            self._next["tick"] += TICK_US
            named = {key[1].removeprefix("uid-"): p for key, p in self._paces.items()}
            self.written = {name: round(p.delay_us) for name, p in named.items()}

    def _run_slice(self, process: Process, until: float) -> None:
        """Run one process to its slice's end, or until it has no work."""
        ends = min(self._now + SLICE_US, until)
        while process.queue and self._now < ends:
            launch = process.queue[0]
            ran = min(launch[0], ends - self._now)
            launch[0] -= ran
            self._now += ran
            process.busy_us += ran
            process.used_us += ran
            if launch[0] <= 0:
                process.queue.popleft()
                self._finished(process, int(launch[1]))
            while self._releases and self._releases[0][0] <= self._now:
                _, _, thread, other = heapq.heappop(self._releases)
                self._launch(other, thread)
        self._turn.popleft()
        if process.queue:
            self._turn.append(process)

    def _launch(self, process: Process, thread: int) -> None:
        program = process.program
        if self._now >= program.to_s * S:
            return
        draw = program.length_us
        length = sum(draw(self._random) for _ in range(program.kernels))
        process.queue.append([length, thread])
        if process not in self._turn:
            self._turn.append(process)
        unfinished = process.waiting.get(thread, 0) + 1
        process.waiting[thread] = unfinished
        if unfinished < program.queued:
            self._release(process, thread, self._now)

    def _finished(self, process: Process, thread: int) -> None:
        unfinished = process.waiting[thread]
        process.waiting[thread] = unfinished - 1
        if unfinished == process.program.queued:
            self._release(process, thread, self._now)

    def _release(self, process: Process, thread: int, now: float) -> None:
        """Let a thread launch after its delay, but never later than the bound."""
        if now - process.read_us >= LIBRARY_READS_US:
            process.read_us = now
            process.delay_us = self.written.get(process.container, 0.0)
        since = max(now, process.released_us) if process.program.in_turn else now
        after = since + process.delay_us
        if process.delay_us:
            after += self._random.uniform(*OVERSLEPT_US)
        at = min(after, now + LONGEST_US)
        process.released_us = at
        # A launch itself takes some microseconds of the processor.
        self._number += 1
        heapq.heappush(self._releases, (at + 5.0, self._number, thread, process))

    def _measure(self) -> None:
        uses = [use(pid, 100, float(p.sample)) for pid, p in enumerate(self._all, 1)]
        round_ = processes({A: uses}, self._owners, at=1e9 + self._now / S)
        snapshot = made_snapshot(round_=round_)
        self._usage = account_usage(snapshot, self._pods, self._usage)
        if self._paced:
            self._paces = measured_paces(self._paces, self._usage)
