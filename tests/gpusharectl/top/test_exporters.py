"""Whom top asks, and that nobody waits long for one that hangs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from threading import Barrier, Event

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden, NotFound, Unavailable
from gpusharectl.state.read import Picture
from gpusharectl.top.scrape import AT_ONCE, Fetching, Heard, Silence, ask
from tests.gpusharectl.pages import Shown, page
from tests.gpusharectl.pictures import part, picture
from tests.gpusharectl.terminal import ROOT
from tests.gpusharectl.topscenes import exporter
from tests.testbed.waiting import wait_until

BODY = page(Shown("GPU-0"))


class Hands:
    """Answers with a page; those that hang are let go at the end."""

    def __init__(self, *hanging: str, together: int = 0) -> None:
        self.hanging = hanging
        self.released = Event()
        self.asked: list[str] = []
        self.meeting = Barrier(together) if together else None

    def fetch(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        assert (namespace, port, path) == ("kube-system", 9400, "/metrics")
        self.asked.append(pod)
        if pod in self.hanging:
            self.released.wait()
        if self.meeting:
            self.meeting.wait(60)
        return BODY


@pytest.fixture
def hands() -> Iterator[Hands]:
    found = Hands("gpushare-exporter-hangs")
    yield found
    found.released.set()


def with_parts(*parts: Json) -> Picture:
    return picture(parts=parts)


def test_one_that_hangs_keeps_nobody_waiting(hands: Hands) -> None:
    """The others are there, and of that one it is said."""
    seen = with_parts(exporter("hangs"), exporter("well"))
    told = wait_until(
        lambda: ask(hands, seen, ["hangs", "well"], deadline_s=0.3),
        "an answer in time, which a busy machine may be late for",
        accept=lambda seen: isinstance(seen["well"], Heard),
    )
    assert list(told) == ["hangs", "well"]
    silent = told["hangs"]
    assert isinstance(silent, Silence)
    assert silent.because == "its exporter gave no answer within 0.3 s"
    assert silent.do == "kubectl -n kube-system logs gpushare-exporter-hangs"


PROGRAM = """
from threading import Event
from gpusharectl.top.exporters import ask
from tests.gpusharectl.pictures import picture
from tests.gpusharectl.topscenes import exporter

class Hangs:
    def fetch(self, *_):
        Event().wait()

print(ask(Hangs(), picture(parts=[exporter("a")]), ["a"], deadline_s=0.1)["a"].because)
"""


@pytest.mark.processes
def test_one_that_hangs_keeps_no_process_from_its_end() -> None:
    """The command is over when it has told what it knows."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "its exporter gave no answer within 0.1 s\n"


def test_many_are_asked_at_a_time() -> None:
    """None of these is answered before all of them are asked."""
    names = [f"n{number}" for number in range(AT_ONCE)]
    hands = Hands(together=AT_ONCE)
    told = ask(hands, with_parts(*map(exporter, names)), names, deadline_s=60)
    assert all(isinstance(one, Heard) for one in told.values())


def test_more_than_that_are_asked_one_after_the_other() -> None:
    """And each of them."""
    names = [f"n{number:03}" for number in range(3 * AT_ONCE)]
    hands = Hands()
    told = ask(hands, with_parts(*map(exporter, names)), names, deadline_s=60)
    assert list(told) == names
    assert sorted(hands.asked) == [f"gpushare-exporter-{name}" for name in names]


def test_only_nodes_that_are_shown_are_asked() -> None:
    """And of two pods on a node, as in a rollout, the ready one."""
    old = part("gpushare-exporter-old", "gpushare-exporter", node="a", ready=False)
    hands = Hands()
    ask(hands, with_parts(old, exporter("a"), exporter("b")), ["a"])
    assert hands.asked == ["gpushare-exporter-a"]


def test_anybodys_pod_is_not_believed() -> None:
    """Labels are anybody's to write, in a namespace of his own."""
    forged = exporter("a")
    forged["metadata"]["namespace"] = "mallory"
    hands = Hands()
    told = ask(hands, with_parts(forged), ["a"])
    assert told["a"] == Silence(
        "no exporter runs there", "gpusharectl install --with-monitoring"
    )
    assert hands.asked == []


def test_one_that_is_not_ready_is_not_asked() -> None:
    """kubelet's words say why, where it has told."""
    pod = exporter("a", ready=False)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    pod["status"]["containerStatuses"] = [{"state": {"waiting": waiting}}]
    hands = Hands()
    told = ask(hands, with_parts(pod), ["a"])["a"]
    assert isinstance(told, Silence)
    assert told.because == (
        "its exporter is not ready: ImagePullBackOff: Back-off pulling image"
    )
    assert hands.asked == []


@pytest.mark.parametrize(
    ("error", "because", "do"),
    [
        (Forbidden("no right"), "its exporter may not be asked: no right", "granted"),
        (Unavailable("reset"), "its exporter does not answer: reset", "logs"),
        (NotFound("no pod"), "its exporter does not answer: no pod", "logs"),
    ],
)
def test_what_goes_wrong_is_said(error: Exception, because: str, do: str) -> None:
    """With the step that would help."""

    class Refusing:
        def fetch(self, *_: object) -> bytes:
            raise error

    hands: Fetching = Refusing()
    told = ask(hands, with_parts(exporter("a")), ["a"])["a"]
    assert isinstance(told, Silence)
    assert told.because == because
    assert do in told.do
