"""Whether the ledger can be trusted."""

from collections.abc import Iterator

from extender.server.public import Readiness
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.cluster import Kind, Page, WatchEvent
from gpushare.kube.errors import Unavailable
from gpushare.kube.reflector import Reflector
from tests.extender.stand_ins import Clock


class Once:
    """A cluster that answers a list, and then is heard of no more."""

    def __init__(self, stop: "Stop") -> None:
        self._stop = stop

    def watch(self, *_: object, **__: object) -> Iterator[WatchEvent]:
        self._stop.now = True
        raise Unavailable("gone")

    def list_page(self, *_: object, **__: object) -> Page:
        return Page((), "1")


class Stop:
    """An event that the cluster sets once it has been listed."""

    def __init__(self) -> None:
        self.now = False

    def is_set(self) -> bool:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        return self.now


class Nobody:
    """A sink that takes all pages and forgets them."""

    def replace(self, pages: Iterator[Page]) -> None:
        list(pages)

    def apply(self, event: WatchEvent) -> None:
        raise AssertionError(event)


def reflector(clock: Clock, *, listed: bool) -> Reflector:
    if not listed:
        return Reflector(Embedded(), Kind.PODS, Nobody(), clock=clock)
    stop = Stop()
    made = Reflector(
        Once(stop),  # type: ignore[arg-type]
        Kind.PODS,
        Nobody(),
        clock=clock,
    )
    made.run(stop)  # type: ignore[arg-type]
    return made


def test_not_before_everything_has_been_listed() -> None:
    """Each collection that is missing is named."""
    clock = Clock()
    both = (
        ("nodes", reflector(clock, listed=True)),
        ("pods", reflector(clock, listed=False)),
    )
    readiness = Readiness(both, 60)
    assert readiness.why_not() == ["pods have not been listed yet"]
    assert readiness.ages_s() == {"nodes": 0}


def test_not_after_a_long_silence() -> None:
    """Up to the bound and not beyond; the words say how long and what to look at."""
    clock = Clock()
    readiness = Readiness((("nodes", reflector(clock, listed=True)),), 60)
    clock.now = 60.0
    assert readiness.why_not() == []
    clock.now = 61.0
    assert readiness.why_not() == [
        "no news of nodes for 61 s; is the API server reachable?"
    ]
    assert readiness.ages_s() == {"nodes": 61}


def test_every_reason_is_given() -> None:
    """Not the first alone."""
    clock = Clock()
    readiness = Readiness(
        (
            ("nodes", reflector(clock, listed=False)),
            ("pods", reflector(clock, listed=False)),
        ),
        60,
    )
    assert len(readiness.why_not()) == 2
