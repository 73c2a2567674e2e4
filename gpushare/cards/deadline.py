"""Call all cards at once, and wait for none of them longer than a deadline.

A driver's call on a broken card may never return, and no thread can be stopped from
outside. So one thread makes the calls in turn, because a thread costs more than most
calls; if a call takes long, each call that waits gets a thread of its own. A call is
not made again while an earlier one of the same name still hangs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
Answer = TypeVar("Answer")


class DeadlineExceeded(Exception):
    """No answer came within the deadline, or no thread could be started."""


class DeadlineCalls:
    """Makes calls by name, each with a deadline from when it was made.

    ``held_up_s`` is how long one call may take before those behind it get threads of
    their own.
    """

    def __init__(self, deadline_s: float, *, held_up_s: float = 0.02) -> None:
        self._deadline_s = deadline_s
        self._held_up_s = held_up_s
        self._lock = threading.Lock()
        self._open: dict[Hashable, _DeadlineCall] = {}

    def make_all(
        self, calls: Mapping[Name, Callable[[], Answer]]
    ) -> dict[Name, Answer | Exception]:
        """Make all calls; return each one's answer, exception or ``DeadlineExceeded``.

        A call that hangs from before is ``DeadlineExceeded`` at once, and so is one for
        which no thread can be started. A call that another thread makes just now is
        shared with it.
        """
        wanted: dict[Name, _DeadlineCall] = {}
        new: list[_DeadlineCall] = []
        with self._lock:
            for name, function in calls.items():
                if name not in self._open:
                    self._open[name] = _DeadlineCall(name, function)
                    new.append(self._open[name])
                wanted[name] = self._open[name]
        self._start_all(new)
        return {name: self._answer(call) for name, call in wanted.items()}

    def make_one(self, name: Hashable, function: Callable[[], Answer]) -> Answer:
        """Make one call; raise its exception, or ``DeadlineExceeded``."""
        answer = self.make_all({name: function})[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait_for_others(self, name: Hashable) -> None:
        """Return when no other call is being made, however long that takes.

        It is for use within the call of this name.
        """
        while others := self._others(name):
            for call in others:
                call.done.wait()

    def _others(self, name: Hashable) -> list["_DeadlineCall"]:
        with self._lock:
            return [call for other, call in self._open.items() if other != name]

    def _start_all(self, new: Sequence["_DeadlineCall"]) -> None:
        """Make sure that each call is being made, or done."""
        waiting = deque(new)
        if waiting:
            self._start_thread(waiting)
        for call in new:
            if not call.done.wait(self._held_up_s):
                for _ in range(len(waiting)):
                    self._start_thread(waiting)
                return

    def _start_thread(self, waiting: deque["_DeadlineCall"]) -> None:
        """Start a thread that makes the waiting calls one after the other."""
        # A daemon: one that hangs for ever must not keep the process alive.
        thread = threading.Thread(target=self._make, args=(waiting,), daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            # The other threads may hang, and then nothing would end these calls.
            for call in _emptied(waiting):
                self._end(call, DeadlineExceeded(f"it was not asked: {error}"))

    def _make(self, waiting: deque["_DeadlineCall"]) -> None:
        for call in _emptied(waiting):
            try:
                answer = call.function()
            except Exception as error:  # noqa: BLE001  the caller judges it
                answer = error
            self._end(call, answer)

    def _end(self, call: "_DeadlineCall", answer: object) -> None:
        call.answer = answer
        with self._lock:
            del self._open[call.name]
        call.done.set()

    def _answer(self, call: "_DeadlineCall") -> Any:  # noqa: ANN401
        left_s = call.began + self._deadline_s - time.monotonic()
        if call.done.wait(max(0.0, left_s)):
            return call.answer
        return DeadlineExceeded(f"it did not answer within {self._deadline_s:g} s")


@dataclass(eq=False, slots=True)
class _DeadlineCall:
    """One call being made; ``answer`` may be read once ``done`` is set."""

    name: Hashable
    function: Callable[[], object]
    answer: Any = None
    began: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)


def _emptied(waiting: deque[_DeadlineCall]) -> Iterator[_DeadlineCall]:
    """Return one call after the other, while other threads may do the same."""
    while True:
        try:
            call = waiting.popleft()
        except IndexError:
            return
        yield call
