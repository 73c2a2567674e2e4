"""A driver that hangs and comes back, under gcc's AddressSanitizer.

The calls that device plugin and exporter make of it, by the real pynvml over the stub.
The sanitizer ends the process at the first access to what was freed. In a process of
its own: ``python -m tests.soak.driver SECONDS SEED``.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Self

from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import NoCardsYet
from gpushare.domain.model import CardUUID
from tests.machine import sanitizer
from tests.nvml.build import STATE_VARIABLE, build_sanitized
from tests.nvml.driver import StubDriver, stub_card
from tests.testbed.waiting import wait_until

DEADLINE_S = 0.1
CARDS = (stub_card(0), stub_card(1), stub_card(2))
FUNCTIONS = (
    *("EventSetWait", "EventSetCreate", "DeviceRegisterEvents", "DeviceGetCount"),
    *("DeviceGetUUID", "DeviceGetMemoryInfo_v2", "DeviceGetHandleByUUID", "Init"),
)


class Users:
    """What asks the driver, each in a thread of its own: as the two processes do."""

    def __init__(self) -> None:
        # The clock stands: what the driver refuses for long would end the process.
        self.source = NvmlCards(deadline_s=DEADLINE_S, clock=lambda: 0.0)
        self.faults: list[str | None] = []
        self._stop = Event()
        tasks = (self.source.cards, self.source.readings, self._watch, self._limits)
        self._threads = [Thread(target=self._repeat, args=(task,)) for task in tasks]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.source.close()
        for thread in self._threads:
            thread.join()

    def _repeat(self, task: Callable[[], object]) -> None:
        while not self._stop.wait(0.01):
            with suppress(NoCardsYet):
                task()

    def _watch(self) -> None:
        if (event := self.source.wait_for_event(0.05)) is not None:
            self.faults.append(event.uuid)

    def _limits(self) -> None:
        self.source.driver_version()
        self.source.why_no_limits(CardUUID(card.uuid) for card in CARDS)

    def has_all(self) -> bool:
        """Return whether each card answers, and nothing is left of what befell it."""
        with suppress(NoCardsYet):
            readings = self.source.readings()
            return len(readings) == len(CARDS) and not any(
                reading.failure or not self.source.reports_faults_of(reading.uuid)
                for reading in readings
            )
        return False


HANGS = [("*", "*"), (CARDS[0].uuid, "*"), *(("*", function) for function in FUNCTIONS)]


def befall(driver: StubDriver, dice: Random, wait: Callable[[float], object]) -> None:
    """Lose a card or load the driver anew, perhaps again and again."""
    uuid = dice.choice(CARDS).uuid
    for _ in range(dice.randint(1, 3)):
        for step in dice.choice(
            [
                (lambda: driver.lose(uuid), lambda: driver.find(uuid)),
                (driver.unload, driver.load),
            ]
        ):
            wait(dice.uniform(0.0, 2 * DEADLINE_S))
            step()
    wait(dice.uniform(0.0, 3 * DEADLINE_S))


def walk(driver: StubDriver, seconds: float, seed: int) -> int:
    """Let calls hang for so long, each in turn; return how many.

    The driver and its cards come and go meanwhile, and afterwards all must be well.
    """
    dice, over, times = Random(seed), Event(), 0
    ends = Thread(target=lambda: over.wait(seconds) or over.set(), daemon=True)
    with Users() as users:
        wait_until(users.has_all, "all cards")
        ends.start()
        while not over.is_set() or times < len(HANGS):
            driver.hang(*HANGS[times % len(HANGS)])
            befall(driver, dice, Event().wait)
            driver.let_go()
            times += 1
            wait_until(users.has_all, f"all cards after {times} times")
            users.faults.clear()
            # Again, because one that comes while a set is made is missed.
            wait_until(lambda: users.faults or driver.xid(CARDS[0].uuid, 79), "XID")
    return times


def run_sanitized(seconds: float, seed: int) -> str:
    """Walk in a process of its own; return what it said, raise what went wrong."""
    with tempfile.TemporaryDirectory(prefix="driver-") as folder:
        environment = {
            **os.environ,
            "LD_PRELOAD": sanitizer("libasan.so"),
            "LD_LIBRARY_PATH": str(build_sanitized(Path(folder)).parent),
            "ASAN_OPTIONS": "detect_leaks=0",
            STATE_VARIABLE: str(StubDriver(Path(folder), CARDS).path),
        }
        words = [sys.executable, "-m", __name__, str(seconds), str(seed)]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr[-8000:]}"
    return done.stdout.strip()


if __name__ == "__main__":
    state = Path(os.environ[STATE_VARIABLE])
    count = walk(StubDriver(state.parent, CARDS), float(sys.argv[1]), int(sys.argv[2]))
    print(f"A driver hung {count} times, and came back.")
