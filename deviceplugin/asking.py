"""Ask all cards at once, and wait for none of them longer than a deadline.

A driver's call on a broken card may never return, and no thread can be stopped from
outside. So each question has a thread of its own, and a card is not asked again while
an older question of the same name still hangs.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
Answer = TypeVar("Answer")


class Late(Exception):
    """No answer came within the deadline, or there was no room to ask at all."""


class Asking:
    """Questions by name, each with so many seconds from its own beginning."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
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
        asked = {name: self._question(name, call) for name, call in questions.items()}
        return {name: self._answer(question) for name, question in asked.items()}

    def ask_one(self, name: Hashable, call: Callable[[], Answer]) -> Answer:
        """Ask one, and raise what it raised, or ``Late``."""
        answer = self.ask({name: call})[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _question(self, name: Hashable, call: Callable[[], object]) -> "_Question":
        with self._lock:
            found = self._open.get(name)
            if found is None:
                found = self._open[name] = _Question()
                self._begin(name, found, call)
        return found

    def _begin(
        self, name: Hashable, question: "_Question", call: Callable[[], object]
    ) -> None:
        # A daemon: one that hangs for ever must not keep the process alive.
        thread = threading.Thread(
            target=self._run, args=(name, question, call), daemon=True
        )
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            # Nobody runs it, so nobody would ever end it: it must not stay open.
            del self._open[name]
            question.answer = Late(f"it was not asked: {error}")
            question.done.set()

    def _run(
        self, name: Hashable, question: "_Question", call: Callable[[], object]
    ) -> None:
        try:
            question.answer = call()
        except Exception as error:  # noqa: BLE001  whoever asked judges it
            question.answer = error
        with self._lock:
            del self._open[name]
        question.done.set()

    def _answer(self, question: "_Question") -> Any:  # noqa: ANN401
        left_s = question.began + self._deadline_s - time.monotonic()
        if question.done.wait(max(0.0, left_s)):
            return question.answer
        return Late(f"it did not answer within {self._deadline_s:g} s")


class _Question:
    """One call under way; ``answer`` may be read once ``done`` is set."""

    __slots__ = ("answer", "began", "done")

    def __init__(self) -> None:
        self.answer: Any = None
        self.began = time.monotonic()
        self.done = threading.Event()
