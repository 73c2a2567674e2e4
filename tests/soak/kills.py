"""kill -9, at moments that the seed draws."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Self

from tests.testbed.rest import Json

_LONGEST_S = 200.0


@dataclass(frozen=True)
class Part:
    """A process that can be killed and started again."""

    name: str
    kill: Callable[[], None]
    start: Callable[[], None]
    """Returns when it is ready."""


@dataclass(frozen=True)
class Kill:
    """One line of the log: seconds since the start, and when it was ready again."""

    at_s: float
    parts: tuple[str, ...]
    ready_at_s: float

    def as_json(self) -> Json:
        return asdict(self)


class Killer:
    """Kills one part after another while its ``with`` lasts, sometimes two at once.

    The parts are dealt as cards are, so that each comes up before one comes twice, and
    after each deal two die at once. They are started in the order given: first what
    others need.
    """

    def __init__(self, seed: int, parts: Sequence[Part], every_s: float) -> None:
        self.log: list[Kill] = []
        self.error: BaseException | None = None
        self._draw = Random(f"{seed}/kills")
        self._parts = parts
        self._every_s = every_s
        self._began = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="killer")

    @property
    def all_killed(self) -> bool:
        """Whether each part was killed and is back; so it is where none is to be."""
        killed = {name for kill in self.log for name in kill.parts}
        return killed >= {part.name for part in self._parts}

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_LONGEST_S)

    def _go_on(self) -> None:
        try:
            while True:
                for chosen in self._deal():
                    pause_s = self._draw.uniform(0.3, 1.7) * self._every_s
                    if self._stopping.wait(pause_s):
                        return
                    self._kill(chosen)
        except BaseException as error:
            self.error = error
            raise

    def _deal(self) -> list[list[Part]]:
        hand = [[part] for part in self._draw.sample(self._parts, len(self._parts))]
        return [*hand, self._draw.sample(self._parts, 2)]

    def _kill(self, chosen: list[Part]) -> None:
        at_s = time.monotonic() - self._began
        for part in chosen:
            part.kill()
        time.sleep(self._draw.uniform(0.0, 1.5))
        for part in self._parts:
            if part in chosen:
                part.start()
        ready_at_s = time.monotonic() - self._began
        names = tuple(part.name for part in chosen)
        self.log.append(Kill(round(at_s, 2), names, round(ready_at_s, 2)))
