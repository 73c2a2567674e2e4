"""What bind makes of a conflict, of a no, and of no answer (decision 0005)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from extender.scheduling.bind import Bound, Outcome
from gpushare.domain.model import PodUID
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    Throttled,
    Unavailable,
    Unreachable,
)
from tests.builders import AT, placement
from tests.extender.stand_ins import Fault, House

NO_MEMORY = "Insufficient baidu.com/vcuda-memory on one card"


@pytest.mark.parametrize(
    ("fault", "outcome", "free"),
    [
        pytest.param(Fault(Conflict("409"), lands=True), Outcome.BOUND, 9, id="ours"),
        pytest.param(
            Fault(Conflict("409"), lands=True, annotations={}),
            Outcome.FAILED,
            9,
            id="bound-here-without-our-placement",
        ),
        pytest.param(
            Fault(Conflict("409"), lands=True, node="m"),
            Outcome.FAILED,
            29,
            id="bound-elsewhere",
        ),
        pytest.param(Fault(Conflict("409")), Outcome.FAILED, 29, id="not-bound"),
        pytest.param(Fault(Forbidden("403")), Outcome.FAILED, 29, id="forbidden"),
        pytest.param(Fault(NotFound("404")), Outcome.FAILED, 29, id="not-found"),
        pytest.param(Fault(Throttled("429", 1.0)), Outcome.FAILED, 29, id="throttled"),
        pytest.param(
            Fault(Unavailable("..."), lands=True), Outcome.BOUND, 9, id="came-true"
        ),
        pytest.param(Fault(Unavailable("...")), Outcome.UNKNOWN, 9, id="not-yet"),
        pytest.param(
            Fault(Unavailable("..."), lands=True, node="m"),
            Outcome.FAILED,
            29,
            id="no-answer-and-bound-elsewhere",
        ),
    ],
)
def test_what_the_answer_means(fault: Fault, outcome: Outcome, free: int) -> None:
    """The reservation is given up only when the write cannot come true (0005)."""
    house = House(n=(29,), m=(29,))
    pod = house.create(units=20)
    house.cluster.on_bind = [fault]
    bound = house.bind(pod)
    assert bound.outcome is outcome
    assert bool(bound.error) == (outcome is not Outcome.BOUND)
    assert house.free().units == free


@pytest.mark.parametrize("error", [Conflict("409"), Unavailable("...")], ids=repr)
@pytest.mark.parametrize("unreadable", [Unavailable("..."), Forbidden("403")], ids=repr)
def test_an_unreadable_pod_keeps_its_reservation(
    error: ClusterError, unreadable: ClusterError
) -> None:
    """Nobody knows, so the card is not given away."""
    house = House()
    pod = house.create(units=20)
    house.cluster.on_bind = [Fault(error)]
    house.cluster.on_get = [unreadable]
    assert house.bind(pod).outcome is Outcome.UNKNOWN
    assert house.free().units == 9


@pytest.mark.parametrize("made_again", [False, True], ids=["gone", "made-again"])
def test_no_answer_about_a_pod_that_has_left_gives_the_room_back(
    *, made_again: bool
) -> None:
    """The write asks for its UID, so that it can never come true."""
    house = House()
    pod = house.create(units=20)
    house.cluster.delete(Kind.PODS, "default", "pod")
    if made_again:
        house.create(seen=False, units=20)
    house.cluster.on_bind = [Fault(Unavailable("..."))]
    assert house.bind(pod).outcome is Outcome.FAILED
    assert house.free().units == 29


def test_an_unanswered_reservation_expires_by_its_age() -> None:
    """Where nobody binds the pod again: not at 60 s, but after."""
    house = House()
    house.cluster.on_bind = [Fault(Unavailable("..."))]
    house.bind(house.create(units=20))
    other = house.create("other", units=20)
    house.clock.now = 60.0
    house.binder.settle_overdue()
    assert house.bind(other) == Bound(Outcome.CONFLICT, NO_MEMORY)
    house.clock.now = 60.1
    house.binder.settle_overdue()
    assert house.bind(other) == Bound(Outcome.BOUND)


NO_ANSWER = Fault(Unavailable("..."))
ANSWERED = Fault(Unavailable("500", answered=True))


@pytest.mark.parametrize(
    ("faults", "given_up"),
    [
        pytest.param([NO_ANSWER] * 60, 30, id="no-answer"),
        pytest.param([ANSWERED], 5, id="answered"),
        pytest.param([ANSWERED] * 10, 14, id="answered-again-and-again"),
        pytest.param([ANSWERED] * 60, 24, id="answered-for-ever"),
        pytest.param([NO_ANSWER, ANSWERED], 30, id="first-no-answer"),
        pytest.param([ANSWERED, NO_ANSWER], 30, id="then-no-answer"),
    ],
)
def test_binds_that_fail_hold_the_room_for_a_while(
    faults: Sequence[Fault], given_up: int
) -> None:
    """For 30 s at most, however often the pod is tried again, here each second.

    The bind that gives the room back is refused too, and so tells whoever waits.
    """
    house = House()
    house.cluster.on_bind = list(faults)
    pod, other = house.create(units=20), house.create("other", units=20)
    house.bind(pod)
    for second in range(1, given_up):
        house.clock.now = float(second)
        if house.cluster.on_bind or second >= 20:
            assert house.bind(pod).outcome is Outcome.UNKNOWN
        house.binder.settle_overdue()
        assert house.bind(other) == Bound(Outcome.CONFLICT, NO_MEMORY)
    house.clock.now = float(given_up)
    words = "an earlier bind to n had no effect"
    assert house.bind(pod) == Bound(Outcome.FAILED, words)
    assert house.cluster.writes == min(len(faults), 20)
    house.cluster.on_bind = []
    assert house.bind(other) == Bound(Outcome.BOUND)


def test_an_unanswered_pod_is_bound_again_for_what_it_asked() -> None:
    """Where it asks another thing by now, its room may not be what it wants."""
    house, pod = unanswered(lands=False)
    house.clock.now = 19.9
    house.cluster.annotate(Kind.PODS, "default", "pod", {names.POLICY: "spread"})
    changed = house.cluster.pod("pod")
    assert house.bind(changed, "m").outcome is Outcome.UNKNOWN
    assert house.bind(pod, "m") == Bound(Outcome.BOUND)


def test_an_unanswered_bind_that_the_watch_brings_never_expires() -> None:
    """It came true; only its end frees the room."""
    house = House()
    house.cluster.on_bind = [Fault(Unavailable("..."), lands=True)]
    house.cluster.on_get = [Unavailable("...")]
    assert house.bind(house.create(units=20)).outcome is Outcome.UNKNOWN
    house.see()
    for house.clock.now in (0.0, 100.0):
        house.binder.settle_overdue()
    assert house.free().units == 9


def unanswered(*, lands: bool) -> tuple[House, Json]:
    """A pod whose bind to m was neither answered nor could be looked at."""
    house = House(n=(29,), m=(29,))
    pod = house.create(units=20)
    house.cluster.on_bind = [Fault(Unavailable("..."), lands=lands)]
    house.cluster.on_get = [Unavailable("...")]
    assert house.bind(pod, "m").outcome is Outcome.UNKNOWN
    return house, pod


def test_an_unanswered_pod_does_not_move_at_once() -> None:
    """Its write may still be on the way, though the pod does not show it yet."""
    house, pod = unanswered(lands=False)
    assert house.bind(pod, "n").outcome is Outcome.UNKNOWN
    assert (house.free("n").units, house.free("m").units) == (29, 9)


def test_an_unanswered_pod_moves_when_its_reservation_has_expired() -> None:
    """Then the other room is free again."""
    house, pod = unanswered(lands=False)
    house.clock.now += 30
    assert house.bind(pod, "n").outcome is Outcome.FAILED
    assert house.bind(pod, "n") == Bound(Outcome.BOUND)
    assert (house.free("n").units, house.free("m").units) == (9, 29)


def test_an_unanswered_pod_that_is_bound_after_all_stays() -> None:
    """The room it has there stays held."""
    house, pod = unanswered(lands=True)
    bound = house.bind(pod, "n")
    words = "pod default/pod is already bound to node m"
    assert bound == Bound(Outcome.REFUSED, words)
    assert (house.free("n").units, house.free("m").units) == (29, 9)


def test_an_unanswered_pod_that_cannot_be_read_stays() -> None:
    """Nobody knows, so nothing moves."""
    house, pod = unanswered(lands=False)
    house.cluster.on_get = [Unavailable("...")]
    assert house.bind(pod, "n").outcome is Outcome.FAILED
    assert (house.free("n").units, house.free("m").units) == (29, 9)


def test_an_unanswered_bind_that_lands_late_keeps_its_room() -> None:
    """Even after its reservation has expired, once a bind has come upon it."""
    house, pod = unanswered(lands=False)
    late = house.ledger.placement(PodUID(pod["metadata"]["uid"]))
    assert late is not None
    written = {names.PLACEMENT: encode_placement(late, AT)}
    lost = Fault(Conflict("409"), lands=True, node="m", annotations=written)
    house.cluster.on_bind = [lost]
    house.ledger.cancel(late.pod.uid)
    assert house.bind(pod, "n").error
    assert house.node_of("pod") == "m"
    other = house.create("other", units=20)
    assert house.bind(other, "m") == Bound(Outcome.CONFLICT, NO_MEMORY)


@pytest.mark.parametrize(
    "no", [Throttled("429"), Unreachable("refused"), Forbidden("403")]
)
def test_a_no_to_a_retry_says_nothing_of_the_first_bind(no: ClusterError) -> None:
    """Its room stays held, since it may yet come true."""
    house, pod = unanswered(lands=False)
    house.cluster.on_bind = [Fault(no)]
    assert house.bind(pod, "m").outcome is Outcome.UNKNOWN
    assert house.free("m").units == 9


@pytest.mark.parametrize(("lands", "left"), [(True, 9), (False, 29)])
def test_what_is_overdue_is_looked_at(lands: bool, left: int) -> None:
    """However silent the watch is: a bound pod keeps its room."""
    house, _ = unanswered(lands=lands)
    house.clock.now = 61.0
    house.binder.settle_overdue()
    assert house.free("m").units == left
    assert not house.ledger.reservations()


def test_what_cannot_be_looked_at_stays_held() -> None:
    """Until the API server answers."""
    house, _ = unanswered(lands=False)
    house.clock.now = 61.0
    house.cluster.on_get = [Unavailable("...")]
    house.binder.settle_overdue()
    assert house.free("m").units == 9


def test_a_device_plugin_may_be_faster_than_the_answer() -> None:
    """What was meant is the plan; that kubelet chose otherwise is no failure of it."""
    house = House(n=(29, 29))
    pod = house.create("a", units=20)
    uid = pod["metadata"]["uid"]

    def written(on: int) -> str:
        held = placement("a", on, 20)
        return encode_placement(replace(held, pod=replace(held.pod, uid=uid)), AT)

    both = {names.PLACEMENT: written(0), names.ACTUAL: written(1)}
    fault = Fault(Unavailable("..."), lands=True, annotations=both)
    house.cluster.on_bind = [fault]
    assert house.bind(pod).outcome is Outcome.BOUND
    house.see("a")
    assert (house.free(index=0).units, house.free(index=1).units) == (29, 9)
