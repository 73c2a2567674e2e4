"""When the policy frag learns, and what kube-scheduler hears of it."""

from threading import Event, Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from extender import main
from extender.scheduling.learning import FragLearning
from extender.scheduling.service import SchedulingVerbs, WaitAllowance
from extender.scheduling.state import ExtenderState
from extender.scheduling.wire import ExtenderArgs
from extender.server.metrics import LearningCollector
from extender.settings import ExtenderSettings
from gpushare.domain.frag import learner as learner_room
from gpushare.domain.frag.policy import ENOUGH
from gpushare.domain.links import with_scores
from gpushare.domain.model import NodeName
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import card, placement, request
from tests.testbed.waiting import wait_until

NAMES = [NodeName("a"), NodeName("b")]


class Scene:
    def __init__(self) -> None:
        self.state = ExtenderState(wait_s=0, pending_for_s=5)
        self.packer = self.state.packer
        self.verbs = SchedulingVerbs(Embedded(), self.state, WaitAllowance(0))
        for name in NAMES:
            self.state.ledger.set_cards(name, [card(units=100, uuid=f"{name}-0")])
        self.state.ledger.record(placement("p", "b-0", 50, 1, node="b"))

    def see(self, times: int = ENOUGH) -> None:
        for number in range(times):
            self.packer.see(request(f"p{number}", 50, 1))

    def scores(self, name: str = "frag") -> list[int]:
        pod = request("new", 50, 1, policy=name)
        found = dict(self.verbs.prioritize(ExtenderArgs(pod.pod, pod, NAMES)))
        return [found.get(name, 0) for name in NAMES]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def values(learning: FragLearning) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(LearningCollector(learning))
    return {s.name: s.value for family in registry.collect() for s in family.samples}


def test_a_pod_may_wish_it_where_the_policy_is_another(scene: Scene) -> None:
    """The first one starts the learning; pods of other policies do not."""
    scene.see()
    learning = FragLearning(scene.packer, wanted=False)
    assert scene.scores("best-fit") == [0, 5]
    assert not learning.learn_if_due()
    scene.scores()
    assert learning.learn_if_due()
    assert scene.scores() == [0, 10]


def test_links_do_not_count_beside_what_is_learnt(scene: Scene) -> None:
    """The node with the least cost wins, and the one with the links gets no step."""
    for name in NAMES:
        listed = [card(i, 100, uuid=f"{name}-{i}") for i in range(3)]
        scores = [250 if name == "b" else 10] * 3
        scene.state.ledger.set_cards(name, with_scores(listed, scores))
    pod = request("new", cores=200, policy="frag")
    asked = ExtenderArgs(pod.pod, pod, NAMES)
    scene.see()
    assert scene.verbs.prioritize(asked) == [("b", 3)], "best-fit, and links"
    assert FragLearning(scene.packer, wanted=True).learn_if_due()
    assert scene.verbs.prioritize(asked) == [("a", 10)]


def test_not_before_enough_was_seen_and_not_twice(scene: Scene) -> None:
    """Learning is due after so many pods, not after so much time; the winner takes all.

    Nor before nodes and pods are read: pods alone could be measured by no card.
    """
    nodes, pods = Event(), Event()
    learning = FragLearning(scene.packer, wanted=True, after=(nodes, pods))
    scene.see(ENOUGH - 1)
    pods.set()
    assert not learning.learn_if_due()
    scene.packer.see(request("last", 50, 1))
    assert not learning.learn_if_due()
    assert scene.scores() == [0, 5], "best-fit until something is learnt"
    nodes.set()
    assert learning.learn_if_due()
    assert scene.scores() == [0, 10]
    assert not learning.learn_if_due()


def test_learning_that_fails_is_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods are placed as before, and metrics tell of it."""
    scene.see()
    metrics: dict[str, float] = {
        "vcuda_extender_frag_pods_seen": ENOUGH,
        "vcuda_extender_frag_lessons_failed_total": 1,
    }

    def fail(*_args: object) -> None:
        raise ArithmeticError("no price")

    learning = FragLearning(scene.packer, wanted=True, clock=lambda: 1234.0)
    with monkeypatch.context() as troubled:
        troubled.setattr(learner_room, "learn", fail)
        assert not learning.learn_if_due()
    assert values(learning) == metrics
    assert scene.scores() == [0, 5]
    assert learning.learn_if_due()
    metrics["vcuda_extender_frag_learnt_timestamp_seconds"] = 1234.0
    assert values(learning) == metrics


def test_the_extender_waits_for_both_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FragLearning] = []

    def note(*args: Any, **how: Any) -> FragLearning:
        made.append(FragLearning(*args, **how))
        return made[0]

    monkeypatch.setattr(main, "FragLearning", note)
    stop = Event()
    try:
        main.assemble_extender(ExtenderSettings(), Embedded(), stop)
        after = made[0]._after
        assert len(set(after)) == 2
        wait_until(lambda: all(each.is_set() for each in after), "both lists")
    finally:
        stop.set()


def test_the_thread_learns_by_itself(scene: Scene) -> None:
    learning, stop = FragLearning(scene.packer, wanted=True), Event()
    thread = Thread(target=learning.run, args=(stop,))
    thread.start()
    try:
        scene.see()
        wait_until(lambda: learning.learned_at is not None, "the first tables")
    finally:
        stop.set()
        thread.join()
    assert scene.packer.tables is not None
