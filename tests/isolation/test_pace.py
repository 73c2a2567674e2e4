"""Launches wait as the node says, and nothing else does.

``launcher`` launches kernels over the stand-in, which counts them by function. Only
sleeping moves its clock (``clock.c``), so that waits are exact on any machine.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.isolation.build import LIBRARY, PRELOAD
from tests.isolation.container import FILL, FULL, Container

WRITTEN_NS = 1_700_000_000 * 10**9
"""When that clock begins."""
WAYS = ("link", "dlsym", "getproc", "getproc2")
DOORS = re.findall(
    r"HOOK\(CUresult, (cu\w*Launch\w*),", (PRELOAD / "driver.h").read_text()
)
OF_A_STREAM = [door for door in DOORS if door not in ("cuLaunch", "cuLaunchGrid")]
KERNEL = "cuLaunchKernel"
LONGEST_US = 100_000
KNOWN = ("capture", "1", "launch", "1", "capture", "0")
"""A launch that reads the file and does not wait: the next ones know their delay."""


@dataclass(frozen=True)
class Launched:
    """What one command did: by this function, in this process."""

    started: int
    captured: int
    waited_us: int
    longest_us: int


def launched(
    container: Container,
    *commands: str,
    door: str = KERNEL,
    way: str = "dlsym",
    **variables: str,
) -> Sequence[Launched]:
    """Run the launcher with a clock of its own; what each command did."""
    folder = container.folder
    variables["LD_PRELOAD"] = f"{folder / 'clock.so'} {folder / LIBRARY}"
    said, complaints = container.ran(
        [str(folder / "launcher"), way, "door", door, *commands], **variables
    )
    assert complaints == ""
    assert "errno" not in said
    lines = [line.split() for line in said.splitlines()]
    assert {line[0] for line in lines} <= {door}
    return [Launched(*map(int, line[1:])) for line in lines]


def written(container: Container, content: str, age_ms: int = 0) -> None:
    path = container.folder / "pace"
    path.write_text(content)
    at = WRITTEN_NS - age_ms * 10**6
    os.utime(path, ns=(at, at))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("door", DOORS)
def test_each_launch_waits(container: Container, door: str, way: str) -> None:
    written(container, "1 2500 5\n")
    (what,) = launched(container, "launch", "3", door=door, way=way)
    assert what == Launched(3, 0, 7500, 2500)


def test_there_are_twelve_doors() -> None:
    assert len(DOORS) == 12


@pytest.mark.parametrize("age_ms", [0, 900])
def test_the_longest_wait_is_a_tenth_of_a_second(
    container: Container, age_ms: int
) -> None:
    written(container, f"1 {LONGEST_US} 5\n", age_ms)
    (what,) = launched(container, "launch", "2")
    assert what == Launched(2, 0, 2 * LONGEST_US, LONGEST_US)


UNCLEAR = {
    "nothing": "",
    "no end": "1 2500 5",
    "two lines": "1 2500 5\n\n",
    "another form": "2 2500 5\n",
    "a later form": "11 2500 5\n",
    "no time": "1 2500\n",
    "a word more": "1 2500 5 6\n",
    "two blanks": "1  2500 5\n",
    "below zero": "1 -2500 5\n",
    "a fraction": "1 2500.5 5\n",
    "words": "1 soon 5\n",
    "a time in words": "1 2500 now\n",
    "too long": f"1 {LONGEST_US + 1} 5\n",
    "huge": f"1 {2**64 + 2500} 5\n",
    "cut": "1 2500 5" + "5" * 80 + "\n",
}


@pytest.mark.parametrize("content", UNCLEAR.values(), ids=UNCLEAR)
def test_what_is_unclear_delays_nothing(container: Container, content: str) -> None:
    """And does not touch the limit of memory."""
    written(container, content)
    assert launched(container, "launch", "3") == [Launched(3, 0, 0, 0)]
    assert container.said("dlsym", *FILL) == [FULL]


@pytest.mark.parametrize(
    "how", ["absent", "old", "of the future", "a folder", "a pipe"]
)
def test_nor_what_cannot_be_taken_for_true(container: Container, how: str) -> None:
    """A FIFO in its place does not hang the program either."""
    path = container.folder / "pace"
    if how in ("old", "of the future"):
        written(container, "1 2500 5\n", 1001 if how == "old" else -1)
    elif how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    assert launched(container, "launch", "3") == [Launched(3, 0, 0, 0)]


def test_the_share_of_a_whole_card_waits_for_nothing(container: Container) -> None:
    """Nobody sleeps, nor asks the driver whether its stream is captured."""
    written(container, "1 0 5\n")
    wrong = ("fail", "cuStreamIsCapturing")
    # What was to fail comes with the first that waits.
    after = ("say", "1 2500 5", "pass", "20000", "launch", "1", "launch", "1")
    told = launched(container, *wrong, "launch", "3", *after)
    assert [one.waited_us for one in told] == [0, 0, 2500]


@pytest.mark.parametrize("door", OF_A_STREAM)
def test_what_is_captured_does_not_wait(container: Container, door: str) -> None:
    """Only the stream of the launch counts."""
    written(container, "1 2500 5\n")
    words = ("capture", "7", "stream", "7", "launch", "2", "stream", "8", "launch", "1")
    assert launched(container, *words, door=door) == [
        Launched(0, 2, 0, 0),
        Launched(1, 2, 2500, 2500),
    ]


@pytest.mark.parametrize("kind", ["", "_ptsz"])
def test_nor_does_what_the_driver_cannot_tell(container: Container, kind: str) -> None:
    """As while another stream is captured that the default stream waits for."""
    written(container, "1 2500 5\n")
    words = ("fail", f"cuStreamIsCapturing{kind}", "launch", "1", "launch", "1")
    assert launched(container, *words, door=KERNEL + kind) == [
        Launched(1, 0, 0, 0),
        Launched(2, 0, 2500, 2500),
    ]


def test_a_change_counts_after_a_fiftieth_of_a_second(container: Container) -> None:
    """Not read again before, and old after a second in which nobody writes it."""
    written(container, "1 1000 5\n")
    told = launched(
        container,
        *("launch", "1", "say", "1 3000 5", "launch", "1", "pass", "20000"),
        *("launch", "1", "pass", "960000", "launch", "1", "pass", "40000"),
        *("launch", "1", "say", "1 4000 5", "pass", "20000", "launch", "1"),
    )
    waits = [one.waited_us for one in told]
    assert waits == [1000, 1000, 3000, 3000, 0, 4000]


@pytest.mark.parametrize("many", [2, 64])
def test_kernels_that_wait_for_each_other_start(
    container: Container, many: int
) -> None:
    """All of as many threads, which wait at the same time, and none above 0.1 s.

    Here no wait ends before all have begun, and no kernel before all have started.
    """
    written(container, f"1 {LONGEST_US} 5\n")
    words = (*KNOWN, "together", str(many))
    _, what = launched(container, *words, CLOCK_TOGETHER=str(many))
    assert what == Launched(many, 1, LONGEST_US, LONGEST_US)


def test_threads_wait_one_after_another(container: Container) -> None:
    """Who comes eighth at the same moment waits eight times as long."""
    written(container, "1 1000 5\n")
    words = (*KNOWN, "together", "8")
    _, what = launched(container, *words, CLOCK_TOGETHER="8")
    assert what == Launched(8, 1, 8000, 8000)


def test_nothing_is_owed_after_a_long_delay(container: Container) -> None:
    """What waited for long is not held against the launches after it."""
    written(container, f"1 {LONGEST_US} 5\n")
    words = ("say", "1 1000 5", "pass", "20000", "launch", "1")
    told = launched(container, "threads", "16", *words)
    assert told[1].waited_us == 1000


def test_sleeping_too_long_is_taken_off(container: Container) -> None:
    """A kernel lets everybody sleep 50 µs too long, here 90: the mean is kept."""
    written(container, "1 10 5\n")
    (what,) = launched(container, "launch", "1000", CLOCK_LATE_US="90")
    assert what == Launched(1000, 0, 10_000, 10)


def test_a_process_that_was_stopped_has_no_credit(container: Container) -> None:
    """At most a tenth of a second of an hour counts."""
    written(container, "1 1000 5\n")
    late, hour_us = 3_600 * 10**6, 3_600 * 10**6 + 1000
    words = ("launch", "1", "say", "1 1000 5", "launch", "102")
    told = launched(container, *words, CLOCK_LATE_US=str(late))
    assert told[0].waited_us == hour_us
    # A hundred for nothing, one that sleeps for an hour again.
    assert told[1].waited_us >= hour_us


def test_signals_make_a_wait_no_shorter_and_no_longer(container: Container) -> None:
    written(container, "1 2500 5\n")
    (what,) = launched(container, "launch", "3", CLOCK_SIGNALS="1")
    assert (what.started, what.waited_us) == (3, 7500)


def test_a_real_clock_and_real_signals(container: Container) -> None:
    """At least the first waits its 20 ms, while a signal comes each millisecond."""
    program = (
        "import ctypes, signal, time; cuda = ctypes.CDLL('libcuda.so.1');"
        "open('pace', 'w').write('1 20000 5\\n');"
        "signal.signal(signal.SIGALRM, lambda *_: None);"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001); start = time.monotonic();"
        "codes = {cuda.cuLaunchGrid(None, 1, 1) for _ in range(10)};"
        "signal.setitimer(signal.ITIMER_REAL, 0);"
        "print(codes, time.monotonic() - start >= 0.02)"
    )
    said, complaints = container.ran([sys.executable, "-c", program])
    assert (said, complaints) == ("{0} True\n", "")


def test_a_thread_is_not_cancelled_inside(container: Container) -> None:
    """Reading and sleeping are points where it would be; the driver's call is none."""
    written(container, "1 2500 5\n")
    (what,) = launched(container, "cancelled", "3")
    assert what == Launched(3, 0, 7500, 2500)


def test_children_wait_by_themselves(container: Container) -> None:
    written(container, "1 2500 5\n")
    told = launched(container, "launch", "1", "children", "3")
    assert [one.started for one in told] == [1, 3, 3, 3]
    assert {one.waited_us for one in told[1:]} == {5000}
