"""The whole of it: lives, kills, one who looks on, and what is left at the end."""

import http.client
import threading
import time
from http import HTTPStatus
from json import JSONDecodeError
from typing import TYPE_CHECKING, Protocol, Self

from tests.testbed.rest import ApiError, Json, Rest

if TYPE_CHECKING:
    from tests.testbed.rest import Watch
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from tests.controlplane.books import Books
from tests.soak.hands import Hands
from tests.soak.kills import Kill, Killer
from tests.soak.observer import Listing, Observer
from tests.soak.play import Play, Stage
from tests.soak.site import Site
from tests.soak.slices import SliceWriter
from tests.testbed.waiting import wait_until

AGAIN_S = 0.2
_LONGEST_S = 60.0


class Onlooker(Protocol):
    """Who is told of pods and claims; of each kind in the API server's order."""

    def listed(self, kind: str, listing: Listing) -> None: ...

    def changed(self, kind: str, an_object: Json) -> None: ...

    def gone(self, kind: str, an_object: Json) -> None: ...


class Follower:
    """Lists and watches all objects of a kind while its ``with`` lasts."""

    def __init__(self, rest: Rest, kind: str, path: str, *onlookers: Onlooker) -> None:
        self._rest = rest
        self._kind = kind
        self._path = path
        self._onlookers = onlookers
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._follow, name=f"{kind} follower")
        self.error: BaseException | None = None
        """What ended it before its time: a mistake of the test's own."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._watch is not None:
            self._watch.close()
        self._thread.join(_LONGEST_S)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self._list_and_watch()
            except (OSError, http.client.HTTPException, ApiError, JSONDecodeError):
                # The API server was killed, perhaps in the middle of a line of JSON.
                self._stopping.wait(AGAIN_S)
            except BaseException as error:
                self.error = error
                raise

    def _list_and_watch(self) -> None:
        listing = _list(self._rest, self._path)
        for onlooker in self._onlookers:
            onlooker.listed(self._kind, listing)
        self._watch = self._rest.watch(self._path, resourceVersion=listing.revision)
        if self._stopping.is_set():
            self._watch.close()
        for event in self._watch:
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    for onlooker in self._onlookers:
                        onlooker.changed(self._kind, event["object"])
                case "DELETED":
                    for onlooker in self._onlookers:
                        onlooker.gone(self._kind, event["object"])
                case "ERROR":
                    return


def _list(rest: Rest, path: str, **query: str | int) -> Listing:
    asked_at = time.monotonic()
    status, listed = rest.get(path, **query)
    if status != HTTPStatus.OK:
        raise ApiError(f"GET {path}", status, listed)
    revision = int(listed["metadata"]["resourceVersion"])
    return Listing(listed["items"], revision, asked_at)


_LOOK_S = 0.25
_TELL_EVERY_S = 15.0
_AGREE_EVERY_S = 240.0
_LONGEST = 3.0


@dataclass(frozen=True)
class Plan:
    """How long, how hard, and by which dice."""

    seconds: float
    seed: int
    kill_every_s: float
    at_once: int = 220
    """Pods that live at a time: about as many as the cards have room for."""


@dataclass(frozen=True)
class Report:
    seed: int
    seconds: float
    lives: int
    per_minute: float
    ended: dict[str, int]
    placed: dict[str, int]
    kills: dict[str, int]
    kill_log: list[Json]
    moments: int
    lists: int
    mean_held: float
    fullest: float
    writes: int
    nodes: int
    cards: int
    extender_mib: float

    def as_json(self) -> Json:
        return asdict(self)


@dataclass
class Soak:
    """One soak of one site."""

    site: Site
    plan: Plan
    observer: Observer
    hands: Hands
    play: Play
    killer: Killer
    threads: Sequence[Follower | SliceWriter | Killer]
    tell: Callable[[str], None]

    def faults(self) -> list[str]:
        faults = [*self.observer.faults, *self.play.faults, *self.hands.faults]
        ended = [who for who in self.threads if who.error]
        return faults + [f"{type(who).__name__} ended: {who.error!r}" for who in ended]

    def insist(self) -> None:
        faults = self.faults()
        assert not faults, "\n".join([f"{len(faults)} faults", *faults[:10]])

    def play_on(self) -> None:
        """Let them live and die for the planned time, or until something is wrong.

        And until each part was killed, which takes longer where the machine is busy.
        """
        began = time.monotonic()
        reported_s = agreed_s = 0.0
        while (passed := time.monotonic() - began) < _LONGEST * self.plan.seconds:
            if passed > self.plan.seconds and self.killer.all_killed:
                return
            self.insist()
            if passed > reported_s + _TELL_EVERY_S:
                reported_s = passed
                self.tell(
                    f"{passed:5.0f} s: {self.play.done:,} lives, "
                    f"{len(self.killer.log)} kills, {self.observer.moments:,} moments"
                )
            if passed > agreed_s + _AGREE_EVERY_S:
                agreed_s = passed
                self.agree()
            time.sleep(_LOOK_S)

    def agree(self) -> None:
        """Hold everybody: the extender's books must be as the API server's objects."""
        self.hands.pause(True)
        wait_until(
            self._unlike,
            "agreement of the extender's books with the pods",
            120.0,
            accept=lambda cards: not cards,
            every_s=0.2,
        )
        self.hands.pause(False)

    def _unlike(self) -> list[str]:
        """Compare the extender's books with all objects of one revision."""
        try:
            books, _ = self._books()
        except (OSError, http.client.HTTPException, ApiError) as error:
            return [str(error)]
        theirs = self.site.free()
        return [
            f"{card}: free are {free}, the extender says {theirs.get(card)}; "
            f"held by {books.holders(card)}"
            for card, free in books.free().items()
            if free != theirs.get(card)
        ]

    def _books(self) -> tuple[Books, int]:
        """Add up all objects of one revision; the pods' list says which."""
        books = Books(self.site.units)
        query: dict[str, str | int] = {}
        revision = 0
        for kind, path in self.site.kinds.items():
            listing = _list(self.site.plane.rest, path, **query)
            revision = listing.revision
            query = {"resourceVersion": revision, "resourceVersionMatch": "Exact"}
            for each in listing.objects:
                faults = books.put(kind, each)
                assert not faults, faults
        return books, revision

    def drain(self) -> None:
        """Wait until every life is over; none may be left without a verdict."""
        self.play.stop_making()
        wait_until(
            lambda: [] if self.faults() else self.play.living(),
            "end of all lives",
            240.0,
            accept=lambda living: not living,
            every_s=0.2,
        )
        self._judge_all()
        self.insist()

    def _judge_all(self) -> None:
        """Move all watches on: what one of them told last waits for the others."""
        _, revision = self._books()
        self.play.pass_by()
        wait_until(
            lambda: self.observer.seen, "judgement", accept=lambda x: x >= revision
        )

    def leaks(self, empty: Json) -> None:
        """Insist that the extender's books are as they were before the first pod."""
        wait_until(
            self.site.snapshot,
            "books of an empty cluster",
            60.0,
            accept=lambda found: found == empty,
        )
        surprises = self.site.surprises()
        assert not surprises, "\n".join(surprises[:10])

    def report(self, seconds: float) -> Report:
        kills = Counter(part for kill in self.killer.log for part in kill.parts)
        return Report(
            seed=self.plan.seed,
            seconds=round(seconds, 1),
            lives=self.play.done,
            per_minute=round(self.play.done / seconds * 60, 1),
            ended=dict(self.play.ended),
            placed=dict(self.play.placed),
            kills=dict(kills),
            kill_log=[kill.as_json() for kill in self.killer.log],
            moments=self.observer.moments,
            lists=self.observer.lists,
            mean_held=round(self.observer.mean_charged, 3),
            fullest=round(self.observer.fullest, 3),
            writes=self.hands.writes,
            nodes=len({node for node, _ in self.site.units}),
            cards=len(self.site.units),
            extender_mib=self.site.memory_mib(),
        )


def soak(
    site: Site, namespace: str, plan: Plan, tell: Callable[[str], None] = print
) -> Report:
    empty = site.snapshot()
    hands = Hands()
    stage = Stage(site.plane.rest, namespace, site.name, plan.seed, site.claims)
    play = Play(stage, hands, plan.at_once)
    observer = Observer(Books(site.units), site.kinds)
    writer = SliceWriter(site.plane.rest, site.cards)
    followers = [
        Follower(site.plane.rest, kind, path, observer, play, writer)
        for kind, path in site.kinds.items()
    ]
    killer = Killer(plan.seed, site.parts(), plan.kill_every_s)
    threads = [*followers, *([writer] if site.claims else []), killer]
    a_soak = Soak(site, plan, observer, hands, play, killer, threads, tell)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            stack.enter_context(hands)
            if site.claims:
                writer.write()
            for thread in threads[:-1]:
                stack.enter_context(thread)
            stack.callback(play.stop_making)
            play.start()
            with killer:
                a_soak.play_on()
            a_soak.insist()
            a_soak.agree()
            a_soak.drain()
            seconds = time.monotonic() - began
        a_soak.leaks(empty)
    except Exception as error:
        raise AssertionError(describe_failure(plan, killer.log, error)) from error
    return a_soak.report(seconds)


def describe_failure(plan: Plan, log: list[Kill], error: Exception) -> str:
    """Say what was wrong, by which dice, and what had been killed when."""
    lines = [f"{error}", f"seed {plan.seed}, {plan}", f"kills: {len(log)}"]
    lines += [
        f"  {kill.at_s:8.2f} s {' and '.join(kill.parts)}, "
        f"ready again at {kill.ready_at_s:.2f} s"
        for kill in log
    ]
    return "\n".join(lines)
