"""The soak's own parts: the dice and the verdicts."""

import threading

import pytest

from tests.controlplane.world import PLACEMENT
from tests.soak.hands import Hands
from tests.soak.observer import Listing
from tests.soak.play import (
    DENIAL,
    MADE,
    End,
    Form,
    Life,
    Play,
    Stage,
    draw_life,
    reason_of,
)
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

STAGE = Stage(Rest(1, tls=False), "default", "soak", 7)
INSUFFICIENT = "0/8 nodes are available: 8 Insufficient baidu.com/vcuda-memory."


def waiting(reason: str, message: str) -> Json:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason}
    return {"status": {"conditions": [condition | {"message": message}]}}


def test_the_same_seed_gives_the_same_lives() -> None:
    """And all kinds of them: what is asked, and how they end."""
    lives = [draw_life(7, number) for number in range(400)]
    assert lives == [draw_life(7, number) for number in range(400)]
    assert lives != [draw_life(8, number) for number in range(400)]
    assert {life.end for life in lives} == set(End)
    assert 4 <= sum(life.doomed for life in lives) <= 40
    assert {life.form for life in lives} == set(Form)
    asks = [ask for life in lives for ask in life.asks if not life.doomed]
    assert any(cores >= 100 for cores, _ in asks)
    assert any(cores == 0 for cores, _ in asks)
    assert any(units == 0 for _, units in asks)
    apart = [draw_life(7, number, claims=False) for number in range(400)]
    assert {life.form for life in apart} == {Form.SHARE, Form.APART}


@pytest.mark.parametrize(
    ("reason", "message", "counts"),
    [
        ("Unschedulable", INSUFFICIENT, True),
        ("Unschedulable", "Invalid vcuda request: 150 cores are neither", True),
        ("SchedulerError", f"{DENIAL} the request: card GPU-1 has 2 units left", True),
        ("SchedulerError", f"connection refused; {INSUFFICIENT}", False),
        ("Unschedulable", "0/8 nodes are available: 8 Too many pods.", False),
        ("Unschedulable", "", False),
    ],
)
def test_what_counts_as_a_reason(reason: str, message: str, counts: bool) -> None:
    """Words about cards, from a scheduler that has looked; no connection refused."""
    assert bool(reason_of(waiting(reason, message))) is counts


def seen(life: Life, **status: object) -> Json:
    names = {"name": life.name, "uid": life.name}
    metadata: Json = {**names, "annotations": {PLACEMENT: ""}}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Pending"} | status}


def play_of(*lives: Life) -> Play:
    play = Play(STAGE, Hands(), 10)
    play._lives = {life.name: life for life in lives}
    return play


def alive(**more: object) -> Life:
    usual: Json = {"form": Form.SHARE, "asks": ((1, 1),), "doomed": False}
    return Life(**{"name": "life-0", "end": End.DELETED, **usual, **more})


def test_who_goes_without_a_verdict_is_a_fault() -> None:
    """Unless its owner withdrew it; a placed and a refused one are counted."""
    life = alive()
    play = play_of(life)
    play.gone("pods", seen(life))
    assert play.faults
    kinds: dict[str, Json] = {
        "withdrawn": {"end": End.WITHDRAWN},
        "placed": {"bound": True},
        "refused": {"reason": INSUFFICIENT},
    }
    for kind, fact in kinds.items():
        life = alive(**fact)
        play = play_of(life)
        play.gone("pods", seen(life))
        assert (dict(play.ended), play.faults) == ({kind: 1}, [])


def test_who_went_while_nobody_looked() -> None:
    """A list without a pod that was there before ends it; not one that is younger."""
    old, young = alive(bound=True, posted_at=1.0), alive(name="b", posted_at=3.0)
    play = play_of(old, young)
    play.listed("pods", Listing([], revision=9, asked_at=2.0))
    assert play.living() == [young]
    assert play.done == 1


def test_who_fits_nowhere_and_is_bound_is_a_fault() -> None:
    life = alive(doomed=True)
    play = play_of(life)
    a_pod = seen(life)
    a_pod["spec"]["nodeName"] = "n"
    play.changed("pods", a_pod)
    assert "fits nowhere and was bound" in play.faults[0]


def test_hands_try_again_until_answered() -> None:
    """Nobody listens, then a 503, then it is done, once."""
    answers: list[tuple[int, Json] | OSError]
    answers = [(201, {}), (503, {}), OSError("refused")]
    done = threading.Event()

    def call() -> tuple[int, Json]:
        answer = answers.pop()
        if isinstance(answer, OSError):
            raise answer
        return answer

    with Hands(1) as hands:

        def act() -> None:
            if hands.until_settled("create", call, MADE):
                done.set()

        hands.after(0.0, act)
        wait_until(done.is_set, "write")
    assert (hands.writes, hands.faults) == (1, [])
