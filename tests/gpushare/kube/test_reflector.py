"""A collection of the API server, followed."""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from threading import Event
from typing import Any

import pytest

from gpushare.kube.cluster import Json, Kind, ListPage, WatchEvent
from gpushare.kube.errors import ClusterError, Forbidden, Gone, Throttled, Unavailable
from gpushare.kube.reflector import Readiness, Reflector, ReflectorPace, Sink
from tests.builders import event, node_json, page, pod_json

Stream = list[WatchEvent | ClusterError | Callable[[], None]]
"""What a watch says, one after the other; a function is called on the way."""


class Stop(Event):
    """A clock that stands still until told otherwise; nobody waits for this event."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0)
        self.pass_by(timeout or 0)
        return self.is_set()

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Script:
    """Stands in for ``Cluster``: answers in the order written; stops at the end."""

    def __init__(self, *answers: ListPage | ClusterError | Stream) -> None:
        self.stop = Stop()
        self.asked: list[str] = []
        self.selectors: set[str] = set()
        self.closed = 0
        self._answers = list(answers)

    def list_page(
        self, kind: Kind, *, limit: int, continue_token: str, field_selector: str
    ) -> ListPage:
        answer = self._next(f"list {limit} {continue_token}", field_selector)
        assert isinstance(answer, ListPage)
        return answer

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        timeout_s: float,
        field_selector: str,
    ) -> Iterator[WatchEvent]:
        answer = self._next(f"watch {resource_version}", field_selector)
        assert isinstance(answer, list)
        return self._stream(answer)

    def _stream(self, says: Stream) -> Iterator[WatchEvent]:
        try:
            for one in says:
                if isinstance(one, ClusterError):
                    raise one
                if isinstance(one, WatchEvent):
                    yield one
                else:
                    one()
        finally:
            self.closed += 1

    def _next(self, asked: str, selector: str) -> ListPage | Stream:
        self.asked.append(asked.strip())
        self.selectors.add(selector)
        answer = self._answers.pop(0)
        if not self._answers:
            self.stop.set()
        if isinstance(answer, ClusterError):
            raise answer
        return answer


class Notes(Sink):
    """A sink that notes what it is told; what it has can be written beforehand."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.keys: set[str] = set()

    def begin_list(self) -> set[str]:
        self.heard.append("list")
        return set(self.keys)

    def put(self, body: Json) -> None:
        metadata = body["metadata"]
        self.keys.add(metadata.get("uid", metadata["name"]))
        self.heard.append(f"put {metadata['name']}")

    def drop(self, key: str) -> None:
        self.keys.remove(key)
        self.heard.append(f"drop {key}")

    def end_list(self) -> None:
        self.heard.append("end")


def test_what_comes_while_a_list_is_read_stays() -> None:
    """It is dropped only if it was there before, and a node goes by its name."""
    notes = Notes()
    notes.keys = {"uid-old", "m"}

    def pages() -> Iterator[ListPage]:
        notes.put(pod_json("fetched"))
        yield page(pod_json("a"), node_json("n"))
        yield page(node_json("m"))

    notes.replace(pages())
    assert notes.heard[-2:] == ["drop uid-old", "end"]
    assert notes.keys == {"uid-fetched", "uid-a", "n", "m"}


def follow(script: Script) -> tuple[Reflector, Notes]:
    """Run a reflector to the end of the script."""
    notes = Notes()
    reflector = Reflector(
        script,  # type: ignore[arg-type]
        Kind.PODS,
        notes,
        field_selector="x=y",
        pace=ReflectorPace(page_limit=7),
        clock=lambda: script.stop.now,
    )
    reflector.run(script.stop)
    return reflector, notes


def added(name: str, version: str) -> WatchEvent:
    return event("ADDED", pod_json(name, version=version))


def bookmark(version: str) -> WatchEvent:
    return WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": version}})


FIRST, A, B = page(version="1"), added("a", "2"), page(pod_json("b"), version="50")
DELETED = event("DELETED", pod_json("a", version="3"))
RELISTED = "list 7, watch 1, list 7, watch 50"
LISTED_AGAIN = "list, end, list, put b, end"
BROKEN_OFF = "list, put a, list, put b, drop uid-a, end"
"""A list that breaks off drops nothing; the next whole one does."""


@pytest.mark.parametrize(
    ("answers", "asked", "heard"),
    [
        pytest.param(
            [page(pod_json("a"), version="50", token="more"), B, []],
            *("list 7, list 7 more, watch 50", "list, put a, put b, end"),
            id="page by page",
        ),
        pytest.param(
            [FIRST, [A, DELETED], [bookmark("9")], []],
            *("list 7, watch 1, watch 3, watch 9", "list, end, put a, drop uid-a"),
            id="changes, and bookmarks",
        ),
        pytest.param([FIRST, Gone("old"), B, []], RELISTED, LISTED_AGAIN, id="gone"),
        pytest.param(
            [FIRST, [Gone("old")], B, []], RELISTED, LISTED_AGAIN, id="gone by event"
        ),
        pytest.param(
            [FIRST, [A, Gone("compacted")], B, []],
            *(RELISTED, "list, end, put a, list, put b, drop uid-a, end"),
            id="gone after a change",
        ),
        pytest.param(
            [page(pod_json("a"), token="t"), Gone("token expired"), B, []],
            *("list 7, list 7 t, list 7, watch 50", BROKEN_OFF),
            id="continue token too old",
        ),
        pytest.param(
            [FIRST, [A, Unavailable("reset")], []],
            *("list 7, watch 1, watch 2", "list, end, put a"),
            id="connection lost",
        ),
    ],
)
def test_a_collection_is_followed(
    answers: list[ListPage | ClusterError | Stream], asked: str, heard: str
) -> None:
    script = Script(*answers)
    reflector, notes = follow(script)
    assert (", ".join(script.asked), ", ".join(notes.heard)) == (asked, heard)
    assert script.selectors == {"x=y"}
    assert reflector.synced.is_set()


@pytest.mark.parametrize("error", [Unavailable("down"), Forbidden("no rights")])
def test_waits_grow_with_jitter_up_to_a_bound(error: ClusterError) -> None:
    """All extenders lose the API server at the same moment; they are not in step."""
    scripts = [Script(*[error] * 12) for _ in range(2)]
    bounds = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, *[10.0] * 6]
    for script in scripts:
        follow(script)
        for wait, bound in zip(script.stop.waits, bounds, strict=True):
            assert bound / 2 <= wait <= bound
    assert scripts[0].stop.waits != scripts[1].stop.waits


def test_retry_after_is_honoured() -> None:
    """The server's word is the least we wait; without one we wait as ever."""
    script = Script(Throttled("slow", 42.0), Throttled("slow"), Throttled("slow", 0.01))
    follow(script)
    first, second, third = script.stop.waits
    assert first == 42.0
    assert second <= 0.4
    assert 0.4 <= third <= 0.8


def test_waits_begin_anew_after_a_word_from_the_server() -> None:
    script = Script(
        page(version="1"),
        *[Unavailable("down")] * 5,
        [bookmark("2"), Unavailable("down")],
        [],
    )
    follow(script)
    assert script.stop.waits[4] > 1.0
    assert script.stop.waits[5] <= 0.2


def test_a_version_that_is_gone_does_not_count_the_outage_before() -> None:
    """An API server that comes back knows no old versions, and is there again."""
    down = [Unavailable("down")] * 6
    script = Script(page(version="1"), *down, Gone("old"), page(version="9"), [])
    follow(script)
    assert script.stop.waits[5] > 3.0
    assert script.stop.waits[6] <= 0.2
    assert script.asked[-1].startswith("watch 9")


@pytest.mark.parametrize(
    "answers",
    [
        [page(version="1"), *([] for _ in range(6))],
        [page(version="1"), Gone("old")] * 6,
    ],
    ids=["a watch that ends at once", "a list that always leads to gone"],
)
def test_no_hot_loop(answers: list[ListPage | ClusterError | Stream]) -> None:
    """Ending without a word within a second counts as a failure."""
    script = Script(*answers)
    follow(script)
    assert len(script.stop.waits) == 6
    assert all(later > earlier / 2 for earlier, later in pairwise(script.stop.waits))
    assert sum(script.stop.waits) > 3


def test_a_watch_that_ends_well_is_begun_anew_without_a_wait() -> None:
    """With a change, or after a quiet time as long as was asked; nothing is listed."""
    script = Script(page(version="1"), [added("a", "2")], [], [])
    script._answers[2] = [lambda: script.stop.pass_by(30)]
    script._answers[3] = [lambda: script.stop.pass_by(30)]
    reflector, notes = follow(script)
    assert script.stop.waits == []
    assert notes.heard == ["list", "end", "put a"]
    assert reflector.age_s() == 0


def test_the_age_is_the_time_since_the_last_word() -> None:
    script = Script(Unavailable("down"))
    reflector, _ = follow(script)
    assert reflector.age_s() is None
    script = Script(
        page(version="1"), [bookmark("2"), Unavailable("down")], Unavailable("down")
    )
    reflector, _ = follow(script)
    assert reflector.age_s() == pytest.approx(sum(script.stop.waits))
    script.stop.pass_by(60)
    assert reflector.age_s() == pytest.approx(60 + sum(script.stop.waits))


def test_it_stops_in_the_middle_of_a_watch_and_closes_it() -> None:
    script = Script(page(version="1"), [], [added("never", "9")])
    script._answers[1] = [added("a", "2"), script.stop.set, added("b", "3")]
    _, notes = follow(script)
    assert notes.heard == ["list", "end", "put a", "put b"]
    assert script.closed == 1
    assert script.asked == ["list 7", "watch 1"]


def test_a_version_that_never_works_is_doubted() -> None:
    """An API server restored from a backup does not know it, and never says 410."""
    lost = [Unavailable("Too large resource version")] * 8
    script = Script(page(version="9"), *lost, page(version="3"), [])
    follow(script)
    assert sum("list" in asked for asked in script.asked) == 2


class Slow(Script):
    """Answers the first page, and the second one not at all."""

    def list_page(self, kind: Kind, **wanted: Any) -> ListPage:
        if self.asked:
            Event().wait(60)
        return super().list_page(kind, **wanted)


class Choosy(Notes):
    """A sink that cannot take what the first page has."""

    def put(self, body: Json) -> None:
        raise RuntimeError


def test_a_page_on_its_way_keeps_nobody_from_ending() -> None:
    """Neither whom a page does not suit, nor the process: kubelet would kill it."""
    script = Slow(page(pod_json("a"), token="more"), page())
    reflector = Reflector(
        script,  # type: ignore[arg-type]
        Kind.PODS,
        Choosy(),
    )
    with pytest.raises(RuntimeError):
        reflector.run(script.stop)
    (waiting,) = (each for each in threading.enumerate() if each.name == "list-pods")
    assert waiting.daemon


class Long:
    """Stands in for a cluster with a list of ten pages; counts what is read of it."""

    def __init__(self) -> None:
        self.read = 0
        self.three = Event()

    def list_page(self, *_: object, continue_token: str, **__: object) -> ListPage:
        self.read += 1
        if self.read == 3:
            self.three.set()
        number = int(continue_token or "0") + 1
        token = str(number) if number < 10 else ""
        return page(pod_json("a"), token=token)


def test_two_pages_are_read_ahead_and_no_more() -> None:
    """One is written by the API server while one is parsed and one is applied.

    More would be memory that the process keeps.
    """
    cluster, taken = Long(), list[int]()

    class Watched(Notes):
        def put(self, body: Json) -> None:
            assert cluster.three.wait(30)
            Event().wait(0.02)  # for who reads more than it should
            taken.append(cluster.read - len(taken) - 1)

    reflector = Reflector(cluster, Kind.PODS, Watched())  # type: ignore[arg-type]
    reflector._read_list()
    assert cluster.read == len(taken) == 10
    assert max(taken) == 2


@pytest.mark.parametrize("applied", [1, 2, 3])
def test_nobody_reads_on_if_a_page_does_not_suit(applied: int) -> None:
    """Else each attempt to list would leave a thread behind."""
    cluster = Long()

    class Picky(Notes):
        def put(self, body: Json) -> None:
            super().put(body)
            if self.heard.count("put a") == applied:
                assert cluster.three.wait(30)
                raise RuntimeError

    before = set(threading.enumerate())
    reflector = Reflector(cluster, Kind.PODS, Picky())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        reflector._read_list()
    for reader in set(threading.enumerate()) - before:
        reader.join(30)
        assert not reader.is_alive()
    assert cluster.read <= applied + 3


def make_reflector(clock: Callable[[], float], *, listed: bool) -> Reflector:
    script = Script(page(), Unavailable("gone"))
    cluster: Any = script
    made = Reflector(cluster, Kind.PODS, Notes(), clock=clock)
    if listed:
        made.run(script.stop)
    return made


def test_not_ready_before_everything_has_been_listed() -> None:
    listed, missing = (make_reflector(lambda: 0, listed=each) for each in (True, False))
    readiness = Readiness((("nodes", listed), ("pods", missing)), 60)
    assert readiness.why_not() == ["pods have not been listed yet"]
    assert readiness.ages_s() == {"nodes": 0}
    both = Readiness((("nodes", missing), ("pods", missing)), 60)
    assert len(both.why_not()) == 2


def test_not_ready_after_a_long_silence() -> None:
    clock = Stop()
    readiness = Readiness(
        (("nodes", make_reflector(lambda: clock.now, listed=True)),), 60
    )
    clock.pass_by(60)
    assert readiness.why_not() == []
    clock.pass_by(1)
    assert readiness.why_not() == [
        "no news of nodes for 61 s; is the API server reachable?"
    ]
    assert readiness.ages_s() == {"nodes": 61}
