"""The whole of it: lives, kills, one who looks on, and what is left at the end."""

import http.client
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

from tests.testbed.rest import ApiError, Json, Rest

if TYPE_CHECKING:
    from tests.testbed.rest import Watch
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from tests.soak.books import Books, Card, Held, Observer
from tests.soak.hands import Hands
from tests.soak.kills import Kill, Killer
from tests.soak.play import Play, Stage
from tests.soak.site import Site
from tests.testbed.waiting import wait_until

PODS = "/api/v1/pods"
AGAIN_S = 0.2
_LONGEST_S = 60.0


class Onlooker(Protocol):
    """Who is told; always from the one thread, in the API server's order."""

    def all_pods(self, pods: list[Json], asked_at: float) -> None: ...

    def changed(self, a_pod: Json) -> None: ...

    def gone(self, a_pod: Json) -> None: ...


class Follower:
    """Lists and watches all pods while its ``with`` lasts."""

    def __init__(self, rest: Rest, *onlookers: Onlooker) -> None:
        self._rest = rest
        self._onlookers = onlookers
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._follow, name="follower")
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
            except (OSError, http.client.HTTPException, ApiError, ValueError):
                # The API server was killed, perhaps in the middle of a line of JSON.
                self._stopping.wait(AGAIN_S)
            except BaseException as error:
                self.error = error
                raise

    def _list_and_watch(self) -> None:
        asked_at = time.monotonic()
        listed = self._rest.must("GET", PODS)
        for onlooker in self._onlookers:
            onlooker.all_pods(listed["items"], asked_at)
        version = listed["metadata"]["resourceVersion"]
        self._watch = self._rest.watch(PODS, resourceVersion=version)
        if self._stopping.is_set():
            self._watch.close()
        for event in self._watch:
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    for onlooker in self._onlookers:
                        onlooker.changed(event["object"])
                case "DELETED":
                    for onlooker in self._onlookers:
                        onlooker.gone(event["object"])
                case "ERROR":
                    return


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
    follower: Follower
    killer: Killer
    tell: Callable[[str], None]

    def faults(self) -> list[str]:
        found = [*self.observer.faults, *self.play.faults, *self.hands.faults]
        ended = [who for who in (self.follower, self.killer) if who.error]
        return found + [f"{type(who).__name__} ended: {who.error!r}" for who in ended]

    def insist(self) -> None:
        found = self.faults()
        assert not found, "\n".join([f"{len(found)} faults", *found[:10]])

    def play_on(self) -> None:
        """Let them live and die for the planned time, or until something is wrong.

        And until each part was killed, which takes longer where the machine is busy.
        """
        began = time.monotonic()
        told_s = agreed_s = 0.0
        while (passed := time.monotonic() - began) < _LONGEST * self.plan.seconds:
            if passed > self.plan.seconds and self.killer.all_killed:
                return
            self.insist()
            if passed > told_s + _TELL_EVERY_S:
                told_s = passed
                self.tell(
                    f"{passed:5.0f} s: {self.play.done:,} lives, "
                    f"{len(self.killer.log)} kills, {self.observer.moments:,} moments"
                )
            if passed > agreed_s + _AGREE_EVERY_S:
                agreed_s = passed
                self.agree()
            time.sleep(_LOOK_S)

    def agree(self) -> None:
        """Hold everybody: the extender's books must be as the one who looks on has."""
        self.hands.pause(True)
        wait_until(
            lambda: _unlike(self.observer.free(), self.site.free()),
            "agreement of the extender's books with the pods",
            120.0,
            accept=lambda cards: not cards,
            every_s=0.2,
        )
        self.hands.pause(False)

    def drain(self) -> None:
        """Wait until every life is over; none may be left without a verdict."""
        self.play.stop_making()
        wait_until(
            lambda: [] if self.faults() else self.play.left(),
            "end of all lives",
            240.0,
            accept=lambda left: not left,
            every_s=0.2,
        )
        self.insist()

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
            kills=dict(kills),
            kill_log=[kill.as_json() for kill in self.killer.log],
            moments=self.observer.moments,
            lists=self.observer.lists,
            mean_held=round(self.observer.mean_held, 3),
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
    stage = Stage(site.plane.rest, namespace, site.name, plan.seed)
    play = Play(stage, hands, plan.at_once)
    observer = Observer(Books(site.units))
    follower = Follower(site.plane.rest, observer, play)
    killer = Killer(plan.seed, site.parts(), plan.kill_every_s)
    it = Soak(site, plan, observer, hands, play, follower, killer, tell)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            stack.enter_context(hands)
            stack.enter_context(follower)
            stack.callback(play.stop_making)
            play.start()
            with killer:
                it.play_on()
            it.insist()
            it.agree()
            it.drain()
            seconds = time.monotonic() - began
        it.leaks(empty)
    except Exception as error:
        raise AssertionError(told(plan, killer.log, error)) from error
    return it.report(seconds)


def _unlike(ours: dict[Card, Held], theirs: dict[Card, Held]) -> list[Card]:
    return [card for card in ours if ours[card] != theirs.get(card)]


def told(plan: Plan, log: list[Kill], error: Exception) -> str:
    """Say what was wrong, by which dice, and what had been killed when."""
    lines = [f"{error}", f"seed {plan.seed}, {plan}", f"kills: {len(log)}"]
    lines += [
        f"  {kill.at_s:8.2f} s {' and '.join(kill.parts)}, "
        f"ready again at {kill.ready_at_s:.2f} s"
        for kill in log
    ]
    return "\n".join(lines)
