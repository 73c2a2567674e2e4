"""NVIDIA's cards, by the driver; ``nvml`` has the calls.

The driver may be loaded later or again, cards may fall off the bus, and calls may hang.
A card that was known once stays listed under its index, because its devices and pods do
not vanish with it.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpushare.cards import nvml
from gpushare.cards.deadline import DeadlineCalls, DeadlineExceeded
from gpushare.cards.links import CardLinks
from gpushare.cards.nvml import Described
from gpushare.cards.nvml_session import RELEASE, NvmlSession
from gpushare.cards.source import (
    CardReading,
    DriverLost,
    FoundCard,
    FoundCards,
    LeftOut,
    NoCardsYet,
    XidEvent,
)
from gpushare.domain.model import CardUUID

Answer = TypeVar("Answer")
_Answers = Mapping[int, Described | Exception]
"""What is in each place of the driver's list, or why that is not known."""

DEADLINE_S = 5.0
RESTART_AFTER_S = 60.0
"""How long the driver may refuse this process before it has to end."""
_REOPEN_EVERY_S = 300.0
"""How often the driver is opened again for a card that stays lost while others work;
faults that come in between are missed."""
_SLICE_S = 0.5
_CAPABILITY = re.compile(r"^DeviceFileMinor:\s*(\d+)$", re.MULTILINE)
_INTEGRATED = "it is the GPU of a Jetson, which shares the memory of the node"
_UNLISTED = "the driver does not list it any more"


class NvmlCards:
    """A ``CardSource`` over NVML.

    ``deadline_s`` is how long one card, or the driver, may take for one answer.
    ``root`` is where the host's ``/proc`` and ``/sys`` are found. ``clock`` returns
    monotonic seconds. The GPU of a Jetson is left out, or has ``host_memory_mib`` if
    that is given: programs everywhere on the node use that memory, so it can be
    measured and not shared. ``with_links``: it tells how the cards are joined, too.
    """

    def __init__(
        self,
        *,
        deadline_s: float = DEADLINE_S,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        host_memory_mib: int = 0,
        with_links: bool = False,
    ) -> None:
        self._calls = DeadlineCalls(deadline_s)
        self._links = CardLinks(self._calls) if with_links else None
        self._root = root
        self._host_memory_mib = host_memory_mib
        self._clock = clock
        self._failed: Mapping[str, Exception] = {}
        self._places: dict[int, CardUUID] = {}
        """The physical card that answered last in each place."""
        self._reopened_at = clock()
        self._broken_since: float | None = None
        self._looking = threading.Lock()
        self._closed = threading.Event()
        self._session: NvmlSession | None = None
        self._ended: deque[NvmlSession] = deque()
        """Those that still have the driver open, because a call of it hangs."""
        self._is_open = False
        self._known: dict[str, FoundCard] = {}
        self._listed: tuple[FoundCard, ...] = ()

    def cards(self) -> FoundCards:
        """Look for cards: those known from before stay.

        Those whose MIG mode changed do not, nor do instances that were destroyed. The
        driver is opened again if it refuses this process or has lost a card.
        ``DriverLost`` if it has nevertheless lost all for ``RESTART_AFTER_S``.
        """
        with self._looking:
            try:
                left_out = self._look()
            except (nvml.NoDriver, DeadlineExceeded) as error:
                self._drop()
                self._note_broken(
                    str(error) if isinstance(error, nvml.DriverBroken) else ""
                )
                raise NoCardsYet(str(error)) from error
            return FoundCards(self._listed, left_out)

    def readings(self) -> Sequence[CardReading]:
        """Read the memory in use of each card; opens the driver if necessary."""
        answers = self.ask("memory in use", lambda _, handle: nvml.used_mib(handle))
        return [_reading(card, answer) for card, answer in answers]

    def ask(
        self, about: str, question: Callable[[CardUUID, nvml.Handle], Answer]
    ) -> list[tuple[FoundCard, Answer | Exception]]:
        """Ask each card last found; opens the driver if necessary. ``NoCardsYet``.

        ``about`` names the question: a card that hangs at one is asked the others.
        """
        if self._session is None:
            self.cards()
        session, listed = self._session, self._listed
        if session is None:
            raise NoCardsYet("the driver was released")
        handles = session.handles()
        answers = self._calls.make_all(
            {
                (about, card.uuid): partial(question, card.uuid, handles[card.uuid])
                for card in listed
                if card.uuid in handles
            }
        )
        for answer in answers.values():
            if isinstance(answer, nvml.NoDriver):
                with self._looking:
                    self._drop(session)
                raise NoCardsYet(str(answer)) from answer
        failed = self._failed
        return [
            (card, answers[about, card.uuid])
            if card.uuid in handles
            else (card, failed.get(card.uuid) or nvml.CardLost(_UNLISTED))
            for card in listed
        ]

    def driver_version(self) -> str:
        """Return the driver's version; empty while it is not open, or does not tell."""
        if self._session is None:
            return ""
        try:
            return self._calls.make_one("version", nvml.version)
        except (nvml.NoDriver, DeadlineExceeded):
            return ""

    def why_no_limits(self, uuids: Iterable[CardUUID]) -> Mapping[CardUUID, str]:
        """Return why the driver cannot limit memory on each card; empty where it can.

        A card that does not answer cannot have limits either.
        """
        answers = self._calls.make_all(
            {("limits", uuid): partial(nvml.why_no_limits, uuid) for uuid in uuids}
        )
        return {uuid: str(answer) for (_, uuid), answer in answers.items()}

    def integrated(self) -> FoundCard | None:
        """Return the GPU of a Jetson as the last look found it; None elsewhere."""
        return next((card for card in self._listed if card.integrated), None)

    def reports_faults_of(self, uuid: CardUUID) -> bool:
        """Return whether ``wait_for_event`` may report a card's faults."""
        session = self._session
        return session is not None and session.reports_of(uuid)

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for an XID, in slices, so that ``close`` need not wait long."""
        ends = time.monotonic() + timeout_s
        while not self._closed.is_set():
            left_s = min(_SLICE_S, ends - time.monotonic())
            session = self._session
            event = session.wait(max(0.0, left_s)) if session else None
            if event is not None or left_s <= 0:
                return event
            if session is None or not session.reports:
                self._closed.wait(left_s)
        return None

    def driver_load(self) -> str:
        """Name the loading by the boot and the inode of the module's folder in sysfs.

        The folder gets a new inode each time that the module is loaded.
        """
        try:
            boot = (self._root / "proc/sys/kernel/random/boot_id").read_text().strip()
            module = (self._root / "sys/module/nvidia").stat().st_ino
        except OSError:
            return ""
        return f"{boot}/{module}"

    def close(self) -> None:
        """Release the driver."""
        self._closed.set()
        with self._looking:
            self._drop()

    def _open(self) -> NvmlSession:
        if self._closed.is_set():
            raise nvml.NoDriver("this source was closed")
        if not self._is_open:
            self._calls.make_one("start", self._start)
        self._session = NvmlSession(self._calls)
        return self._session

    def _start(self) -> None:
        nvml.start()
        # Also of a start that came too late: one for which nothing is closed would
        # keep the driver open, and a lost card is found by opening it anew.
        self._is_open = True

    def _drop(self, expected: NvmlSession | None = None) -> None:
        session = self._session
        if session is not None and expected in (None, session):
            self._session, self._is_open = None, False
            session.end()
            self._ended.append(session)
            # It may hang as any other call; nothing here depends on its end.
            self._calls.make_all({RELEASE: self._release_ended})

    def _release_ended(self) -> None:
        while self._ended:
            self._ended.popleft().release()

    def _look(self) -> tuple[LeftOut, ...]:
        session = self._session or self._open()
        answers = self._ask_each(session)
        failures = self._failures(answers)
        if self._is_to_be_reopened(answers, failures):
            self._reopened_at = self._clock()
            self._drop()
            answers = self._ask_each(self._open())
            failures = self._failures(answers)
        self._failed = failures
        # For a process that never knew the cards, a new process would not help.
        all_lost = bool(_lost(failures) & self._known.keys()) and not _answered(answers)
        self._note_broken("the driver has lost all cards" if all_lost else "")
        return self._take(answers)

    def _ask_each(self, session: NvmlSession) -> _Answers:
        return session.describe_cards(self._calls.make_one("count", nvml.count))

    def _failures(self, answers: _Answers) -> dict[str, Exception]:
        """Return which cards failed, and how; one that is no longer listed is lost.

        An instance fails with its card.
        """
        answered = _answered(answers)
        failed = {
            self._named(place, answered) or _unnamed(place): answer
            for place, answer in answers.items()
            if isinstance(answer, Exception)
        }
        unlisted = nvml.CardLost(_UNLISTED)
        of_known = {
            uuid: failed.get(card.physical, unlisted)
            for uuid, card in self._known.items()
            if card.physical not in answered
        }
        return failed | of_known

    def _named(self, place: int, answered: Collection[str]) -> CardUUID | None:
        uuid = self._places.get(place)
        return None if uuid in answered else uuid

    def _is_to_be_reopened(
        self, answers: _Answers, failures: Mapping[str, Exception]
    ) -> bool:
        lost = _lost(failures)
        if not lost:
            return False
        waited_s = self._clock() - self._reopened_at
        news = lost - _lost(self._failed)
        return bool(news) or not _answered(answers) or waited_s >= _REOPEN_EVERY_S

    def _note_broken(self, why: str) -> None:
        """Measure how long the driver has not served this process."""
        if not why:
            self._broken_since = None
            return
        if self._broken_since is None:
            self._broken_since = self._clock()
        lasted_s = self._clock() - self._broken_since
        if lasted_s >= RESTART_AFTER_S:
            raise DriverLost(f"{why}, for {lasted_s:.0f} s")

    def _take(self, answers: _Answers) -> tuple[LeftOut, ...]:
        left_out: dict[str, LeftOut] = {}
        answered, here = _answered(answers), set[CardUUID]()
        for place, answer in answers.items():
            if isinstance(answer, Described):
                left_out |= {card.name: card for card in answer.left_out}
                for card in answer.cards:
                    self._places[place] = answer.uuid
                    if card.integrated and not self._host_memory_mib:
                        left_out[card.uuid] = LeftOut(card.uuid, _INTEGRATED)
                        continue
                    here.add(card.uuid)
                    self._remember(card)
            elif self._named(place, answered) is None:
                name = _unnamed(place)
                left_out[name] = LeftOut(name, str(answer))
        cards = [
            card
            for uuid, card in self._known.items()
            if uuid in here or card.physical not in answered
        ]
        listed = tuple(sorted(cards, key=lambda card: card.index))
        if self._links is not None and self._session is not None:
            listed = self._links.joined(listed, self._session.handles())
        self._listed = listed
        return tuple(left_out.values())

    def _remember(self, card: FoundCard) -> None:
        """Keep a card under its first index, whatever the driver's order is now."""
        known = self._known.get(card.uuid)
        taken = {other.index for other in self._known.values()}
        if known is not None:
            card = replace(card, index=known.index)
        elif card.index in taken:
            card = replace(card, index=max(taken) + 1)
        if card.integrated:
            card = replace(card, memory_mib=self._host_memory_mib)
        if card.instance is not None:
            card = replace(card, device_nodes=_capabilities(self._root, card))
        self._known[card.uuid] = card


def _answered(answers: _Answers) -> frozenset[str]:
    """Return the physical cards that answered, shared or left out."""
    return frozenset(
        answer.uuid for answer in answers.values() if isinstance(answer, Described)
    )


def _lost(failures: Mapping[str, Exception]) -> frozenset[str]:
    return frozenset(
        name for name, failure in failures.items() if isinstance(failure, nvml.CardLost)
    )


def _capabilities(root: Path, card: FoundCard) -> tuple[str, ...]:
    """Return the device nodes that allow the use of an instance; empty if unknown.

    One is of its GPU instance and one of its compute instance. The driver says which in
    ``/proc/driver/nvidia/capabilities``, by the card's minor number.
    """
    instance = card.instance
    if instance is None or card.minor is None:
        return ()
    folder = root / f"proc/driver/nvidia/capabilities/gpu{card.minor}/mig"
    outer = folder / f"gi{instance.gpu_instance}"
    try:
        texts = [
            (folder / "access").read_text()
            for folder in (outer, outer / f"ci{instance.compute_instance}")
        ]
    except (OSError, ValueError):
        return ()
    minors = [match[1] for text in texts if (match := _CAPABILITY.search(text))]
    nodes = tuple(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors)
    return nodes if len(nodes) == len(texts) else ()


def _unnamed(place: int) -> str:
    return f"card {place}"


def _reading(card: FoundCard, answer: int | Exception | None) -> CardReading:
    if isinstance(answer, Exception):
        return CardReading(card.uuid, None, str(answer))
    # It may include what the driver reserves, so it is limited to the total.
    return CardReading(
        card.uuid, None if answer is None else min(answer, card.memory_mib)
    )
