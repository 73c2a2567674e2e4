"""Ask all cards at once, and wait for none of them longer than a deadline.

A driver's call on a broken card may never return, and no thread can be stopped from
outside. So one thread takes the questions in turn, for a thread costs more than most
answers; where one of them holds it up, each that waits gets a thread of its own. A card
is not asked again while an older question of the same name still hangs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
Answer = TypeVar("Answer")


class Late(Exception):
    """No answer came within the deadline, or there was no room to ask at all."""


class Asking:
    """Questions by name, each with so many seconds from when it was asked.

    ``held_up_s`` is how long one may take before those behind it no longer wait.
    """

    def __init__(self, deadline_s: float, *, held_up_s: float = 0.02) -> None:
        self._deadline_s = deadline_s
        self._held_up_s = held_up_s
        self._lock = threading.Lock()
        self._open: dict[Hashable, _Question] = {}

    def ask(
        self, questions: Mapping[Name, Callable[[], Answer]]
    ) -> dict[Name, Answer | Exception]:
        """Ask all, and give each one's answer, or what it raised, or ``Late``.

        One that hangs from an earlier call is ``Late`` at once, and so is one for which
        no thread can be had now; one that another thread has just asked is shared with
        it.
        """
        asked: dict[Name, _Question] = {}
        new: list[_Question] = []
        with self._lock:
            for name, call in questions.items():
                if name not in self._open:
                    self._open[name] = _Question(name, call)
                    new.append(self._open[name])
                asked[name] = self._open[name]
        self._work_through(new)
        return {name: self._answer(question) for name, question in asked.items()}

    def ask_one(self, name: Hashable, call: Callable[[], Answer]) -> Answer:
        """Ask one, and raise what it raised, or ``Late``."""
        answer = self.ask({name: call})[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _work_through(self, new: Sequence["_Question"]) -> None:
        """See to it that each is under way, or done."""
        waiting = deque(new)
        if waiting:
            self._employ(waiting)
        for question in new:
            if not question.done.wait(self._held_up_s):
                for _ in range(len(waiting)):
                    self._employ(waiting)
                return

    def _employ(self, waiting: deque["_Question"]) -> None:
        """Have a thread of its own take what waits, one after the other."""
        # A daemon: one that hangs for ever must not keep the process alive.
        thread = threading.Thread(target=self._take, args=(waiting,), daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            # Who else takes them may hang, and then nobody would ever end them.
            for question in _emptied(waiting):
                self._end(question, Late(f"it was not asked: {error}"))

    def _take(self, waiting: deque["_Question"]) -> None:
        for question in _emptied(waiting):
            try:
                answer = question.call()
            except Exception as error:  # noqa: BLE001  whoever asked judges it
                answer = error
            self._end(question, answer)

    def _end(self, question: "_Question", answer: object) -> None:
        question.answer = answer
        with self._lock:
            del self._open[question.name]
        question.done.set()

    def _answer(self, question: "_Question") -> Any:  # noqa: ANN401
        left_s = question.began + self._deadline_s - time.monotonic()
        if question.done.wait(max(0.0, left_s)):
            return question.answer
        return Late(f"it did not answer within {self._deadline_s:g} s")


class _Question:
    """One call under way; ``answer`` may be read once ``done`` is set."""

    __slots__ = ("answer", "began", "call", "done", "name")

    def __init__(self, name: Hashable, call: Callable[[], object]) -> None:
        self.name = name
        self.call = call
        self.answer: Any = None
        self.began = time.monotonic()
        self.done = threading.Event()


def _emptied(waiting: deque[_Question]) -> Iterator[_Question]:
    """Take one after the other, while another thread may do the same."""
    while True:
        try:
            question = waiting.popleft()
        except IndexError:
            return
        yield question
