"""Questions with a deadline: one that hangs keeps nobody waiting but its own thread."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from gpushare.cards.deadline import DeadlineCalls, DeadlineExceeded
from tests.testbed.waiting import wait_until

FOREVER_S = 600.0


class Hanging:
    """A question that is not answered until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = 0

    def __call__(self) -> str:
        self.begun += 1
        self.let_go.wait()
        return "late answer"


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    found = Hanging()
    yield found
    found.let_go.set()


def test_each_gets_its_answer_or_what_it_raised() -> None:
    questions = {"good": partial(int, "1"), "bad": partial(int, "x")}
    calls = DeadlineCalls(FOREVER_S)
    answers = calls.make_all(questions)
    assert list(answers) == ["good", "bad"]
    assert answers["good"] == 1
    assert isinstance(answers["bad"], ValueError)
    with pytest.raises(ValueError, match="invalid literal"):
        calls.make_one("bad", questions["bad"])


def test_one_that_hangs_is_late_alone(hanging: Hanging) -> None:
    questions: dict[str, Any] = {"hangs": hanging, "answers": partial(str, "here")}
    calls = DeadlineCalls(0.05)
    answers = wait_until(
        lambda: calls.make_all(questions),
        "an answer in time, which a busy machine may be late for",
        accept=lambda seen: seen["answers"] == "here",
    )
    assert isinstance(answers["hangs"], DeadlineExceeded)
    assert str(answers["hangs"]) == "it did not answer within 0.05 s"


def test_one_that_hangs_is_not_asked_again(hanging: Hanging) -> None:
    """Not at any later call, until it has answered; the late answer is nobody's."""
    calls = DeadlineCalls(0.05)
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            calls.make_one("card", hanging)
    wait_until(lambda: hanging.begun, "the question's own thread")
    assert hanging.begun == 1
    hanging.let_go.set()
    assert patiently(calls) in ("fresh", "late answer")
    assert patiently(calls) == "fresh"
    assert hanging.begun == 1


def patiently(calls: DeadlineCalls) -> str:
    """Ask until there is an answer: a busy machine is late itself."""
    while True:
        try:
            return calls.make_one("card", lambda: "fresh")
        except DeadlineExceeded:
            continue


def test_threads_share_one_question(hanging: Hanging) -> None:
    calls = DeadlineCalls(FOREVER_S)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(calls.make_one, "card", hanging) for _ in range(3)]
        hanging.let_go.set()
    assert [call.result() for call in asked] == ["late answer"] * 3


def test_one_that_cannot_be_begun_is_late_just_now() -> None:
    calls = DeadlineCalls(FOREVER_S)
    # Every new thread wants more memory than addresses reach.
    usual = threading.stack_size(2**62)
    try:
        for _ in range(2):
            with pytest.raises(DeadlineExceeded, match="not asked: can't start new"):
                calls.make_one("card", lambda: "told")
    finally:
        threading.stack_size(usual)
    assert calls.make_one("card", lambda: "told") == "told"


def test_answers_that_come_at_once_cost_one_thread() -> None:
    questions = dict.fromkeys(range(8), threading.get_ident)
    answers = DeadlineCalls(FOREVER_S, held_up_s=FOREVER_S).make_all(questions)
    assert len(set(answers.values())) == 1


def test_one_that_hangs_holds_up_no_other(hanging: Hanging) -> None:
    """Those that wait behind it get threads of their own, and do not queue again."""
    other = Hanging()
    met = threading.Barrier(3)
    questions: dict[str, Any] = {"hangs": hanging, "hangs too": other}
    questions |= {f"meets {number}": met.wait for number in range(3)}
    answers = DeadlineCalls(1).make_all(questions)
    other.let_go.set()
    assert sum(isinstance(answer, DeadlineExceeded) for answer in answers.values()) == 2
    assert {answers[f"meets {number}"] for number in range(3)} == {0, 1, 2}


def test_who_waits_for_all_others_waits_for_those_that_begin_meanwhile(
    hanging: Hanging,
) -> None:
    calls, later, over = DeadlineCalls(0.01), Hanging(), threading.Event()

    def wait() -> None:
        calls.wait_for_others("wait")
        over.set()

    calls.make_all({"first": hanging})
    calls.make_all({"wait": wait})
    calls.make_all({"later": later})
    hanging.let_go.set()
    assert not over.wait(0.1)
    later.let_go.set()
    wait_until(over.is_set, "the end of all")
