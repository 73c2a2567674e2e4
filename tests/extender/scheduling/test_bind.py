"""bind: reserve, write once, and settle conflicts and lost answers."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from extender.scheduling.bind import BindOutcome, BindResult
from gpushare.domain.model import Amount, NodeName, Placement, PodRequest, PodUID
from gpushare.domain.placement import place
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    Throttled,
    Unavailable,
    Unreachable,
)
from gpushare.kube.resource_claims.allocated import read_resource_claim
from tests.builders import (
    AT,
    FIRST_FIT,
    allocation_json,
    claim_json,
    event,
    placement,
    pod_json,
)
from tests.extender.extender_fixture import ExtenderFixture, Fault

NO_MEMORY = "Insufficient baidu.com/vcuda-memory on one card"


def annotation(extender: ExtenderFixture, name: str = "pod") -> str | None:
    notes = extender.cluster.pod(name)["metadata"].get("annotations") or {}
    found: str | None = notes.get(names.PLACEMENT)
    return found


def uid(pod: Json) -> PodUID:
    return PodUID(pod["metadata"]["uid"])


NO_ANSWER = Fault(Unavailable("..."))
ANSWERED = Fault(Unavailable("500", answered=True))


def test_one_write_binds_and_records() -> None:
    """The annotation is what the ledger has; no read and no second write."""
    extender = ExtenderFixture()
    pod = extender.create(units=20, cores=5)
    assert extender.bind(pod) == BindResult(BindOutcome.BOUND)
    assert (extender.cluster.writes, extender.cluster.reads) == (1, 0)
    assert extender.node_of("pod") == "n"
    placement = extender.ledger.placement(uid(pod))
    assert placement is not None
    assert annotation(extender) == encode_placement(placement, AT)
    assert extender.free().units == 9


def test_a_replayed_bind_succeeds_and_changes_nothing() -> None:
    extender = ExtenderFixture()
    pod = extender.create(units=20)
    extender.bind(pod)
    before = extender.cluster.pod("pod")
    assert extender.bind(pod) == BindResult(BindOutcome.ALREADY)
    extender.see()
    assert extender.bind(pod) == BindResult(BindOutcome.ALREADY)
    assert extender.cluster.pod("pod") == before
    assert (extender.cluster.writes, extender.cluster.reads) == (1, 1)
    assert extender.free().units == 9


@pytest.mark.parametrize(
    ("how", "other", "words"),
    [
        ({"units": 4}, {"uid": "x"}, "pod default/pod was created again; its UID is"),
        ({"units": 4}, {"node": "nowhere"}, "there is no node nowhere"),
        ({"cores": 150}, {}, "Invalid vcuda request: 150 cores"),
        ({"units": 4, "annotations": {names.POLICY: "x"}}, {}, 'no policy "x"'),
        (None, {}, "pod default/pod is gone"),
    ],
    ids=["another-uid", "unknown-node", "request", "policy", "gone"],
)
def test_what_cannot_be_bound_is_refused(
    how: dict[str, Any] | None, other: dict[str, str], words: str
) -> None:
    """The API server would bind to an unknown node without a word (contracts 1.5)."""
    extender = ExtenderFixture()
    pod = pod_json(units=4) if how is None else extender.create(**how)
    bound = extender.bind(pod, **other, judged=False)  # type: ignore[arg-type]
    assert bound.outcome is BindOutcome.REFUSED
    assert words in bound.error
    assert extender.cluster.writes == 0
    assert not extender.ledger.reservations()


@pytest.mark.parametrize("seen", [True, False])
def test_a_pod_that_is_gone_or_cannot_be_read_is_not_bound(*, seen: bool) -> None:
    extender = ExtenderFixture()
    pod = extender.create(seen=seen, units=20)
    if seen:
        extender.cluster.delete(Kind.PODS, "default", "pod")
    else:
        extender.cluster.on_get = [Unavailable("...")]
    assert extender.bind(pod, judged=seen).outcome is BindOutcome.FAILED
    assert extender.cluster.writes == (1 if seen else 0)
    assert extender.free().units == 29


def test_a_pod_that_is_bound_elsewhere_is_refused() -> None:
    extender = ExtenderFixture(n=(29,), m=(29,))
    pod = extender.create(units=4)
    extender.cluster.bind(PodTarget("default", "pod", uid(pod)), "m", {})
    extender.see()
    words = "pod default/pod is already bound to node m"
    assert extender.bind(pod, judged=False) == BindResult(BindOutcome.REFUSED, words)
    assert extender.cluster.writes == 1


@pytest.mark.parametrize(
    ("filtered", "late_s", "reads"),
    [
        pytest.param(True, 0.0, 0, id="what-filter-judged"),
        pytest.param(True, 5.0, 1, id="filter-was-too-long-ago"),
        pytest.param(False, 0.0, 1, id="what-the-api-server-holds"),
    ],
)
def test_the_book_of_pods_may_lag_behind(
    *, filtered: bool, late_s: float, reads: int
) -> None:
    extender = ExtenderFixture(n=(29, 29))
    pod = extender.create(units=20, annotations={names.UUIDS: "GPU-00000000"})
    now = {names.UUIDS: "GPU-1"}
    extender.cluster.annotate(Kind.PODS, "default", "pod", now)
    if filtered:
        extender.filter(extender.cluster.pod("pod"))
    extender.clock.now = late_s
    assert extender.bind(pod, judged=False) == BindResult(BindOutcome.BOUND)
    assert [extender.free(index=index).units for index in (0, 1)] == [29, 9]
    assert extender.cluster.reads == reads


@pytest.mark.parametrize("seen", [True, False])
def test_a_made_up_filter_does_not_make_a_pod_smaller(*, seen: bool) -> None:
    """A process of the host may send one for any UID; the pod's own spec counts."""
    extender = ExtenderFixture()
    pod = extender.create(seen=seen, units=25, cores=5)
    body = pod_json(units=1)
    body["metadata"] = pod["metadata"]
    extender.filter(body)
    assert extender.bind(pod, judged=False) == BindResult(BindOutcome.BOUND)
    assert extender.free() == Amount(95, 4)


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
@pytest.mark.parametrize("seen", [True, False])
def test_a_made_up_review_is_not_what_a_pod_gets(*, seen: bool, device: str) -> None:
    """A claim with a pod's UID is charged beside the pod, and never in its place."""
    extender = ExtenderFixture(n=(29, 29))
    pod = extender.create(seen=False, units=25, cores=5)
    body = claim_json("c", allocation_json(device, units=1, cores=1))
    body["metadata"]["uid"] = uid(pod)
    found = read_resource_claim(body)
    assert found is not None
    assert not extender.state.resource_claims.reserve(found, "1")
    if seen:
        extender.see()
    assert extender.bind(pod) == BindResult(BindOutcome.BOUND)
    extender.see()
    free = [extender.free(index=index).units for index in (0, 1)]
    assert free == ([3, 29] if device == "gpu-0" else [4, 28])


@pytest.mark.parametrize(
    ("seen", "node"),
    [(False, ""), (False, "n"), (False, "m"), (True, "n"), (True, "m")],
)
def test_a_pod_that_has_ended_is_not_charged(*, seen: bool, node: str) -> None:
    """The watch does not list it after a restart, and so would never free it.

    The watch may also be behind, and have the pod as it was before it was bound.
    """
    extender = ExtenderFixture(n=(29,), m=(29,))
    pod = extender.create(seen=seen, units=11)
    if node:
        held = placement("pod", 0, 11, 0, node=node)
        note = {names.PLACEMENT: encode_placement(held, AT)}
        extender.cluster.bind(PodTarget("default", "pod", uid(pod)), node, note)
    ended = {"status": {"phase": "Succeeded"}}
    extender.cluster.patch(Kind.PODS, "default", "pod", ended, subresource="status")
    bound = extender.bind(pod)
    assert (bound.outcome is BindOutcome.ALREADY) == (node == "n" and not seen)
    assert [extender.free(name).units for name in "nm"] == [29, 29]
    assert not extender.ledger.reservations()


def test_a_pod_that_ends_while_it_is_bound_again_is_not_charged() -> None:
    """The watch has told of its end before the second bind reserves its room."""
    extender = ExtenderFixture(n=(29,))
    pod = extender.create(seen=False, units=11)
    asks, page = codec.read_pod_record(pod).request, extender.ledger.node(NodeName("n"))
    assert isinstance(asks, PodRequest)
    assert page is not None
    meant = place(asks, page, FIRST_FIT)
    assert isinstance(meant, Placement)
    read = extender.cluster.get

    def get(kind: Kind, namespace: str, name: str) -> Json:
        before = read(kind, namespace, name)
        extender.cluster.get = read  # type: ignore[method-assign]
        note = {names.PLACEMENT: encode_placement(meant, AT)}
        extender.cluster.bind(PodTarget("default", "pod", uid(pod)), "n", note)
        ended = {"status": {"phase": "Succeeded"}}
        extender.cluster.patch(Kind.PODS, "default", "pod", ended, subresource="status")
        extender.pods.apply(event("DELETED", extender.cluster.pod("pod")))
        return before

    extender.cluster.get = get  # type: ignore[method-assign]
    assert not extender.bind(pod).error
    assert extender.free().units == 29
    assert not extender.ledger.reservations()


@pytest.mark.parametrize("ours", [{}, {"units": 0}], ids=["nothing", "zero"])
def test_a_pod_that_asks_zero_is_bound_plainly(ours: dict[str, Any]) -> None:
    extender = ExtenderFixture(n=(29,))
    pod = extender.create(**ours)
    assert extender.bind(pod) == BindResult(BindOutcome.BOUND)
    assert annotation(extender) is None
    assert extender.ledger.placement(uid(pod)) is None
    assert extender.bind(pod).error == ""


def test_a_lost_race_for_the_room_is_a_conflict() -> None:
    """Filter's yes was not a promise; the words are those of the refusal."""
    extender = ExtenderFixture()
    first, second = extender.create("a", units=20), extender.create("b", units=20)
    extender.bind(first)
    assert extender.bind(second) == BindResult(BindOutcome.CONFLICT, NO_MEMORY)
    assert extender.cluster.writes == 1


@pytest.mark.parametrize("_round", range(10))
def test_two_binds_for_the_last_room_one_wins(_round: int) -> None:
    extender = ExtenderFixture()
    pods = [extender.create(name, units=20) for name in "ab"]
    with ThreadPoolExecutor(2) as threads:
        found = sorted(bound.outcome for bound in threads.map(extender.bind, pods))
    assert found == [BindOutcome.BOUND, BindOutcome.CONFLICT]
    assert sorted(extender.node_of(name) for name in "ab") == ["", "n"]


@pytest.mark.parametrize("_round", range(10))
def test_two_binds_of_one_pod_both_succeed(_round: int) -> None:
    extender = ExtenderFixture(n=(29, 29))
    pod = extender.create(units=20)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(extender.bind, [pod, pod]))
    assert [bound.error for bound in found] == ["", ""]
    assert [extender.free(index=index).units for index in (0, 1)] == [9, 29]


def test_what_was_bound_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    extender = ExtenderFixture()
    with caplog.at_level(logging.INFO):
        extender.bind(extender.create(units=20, cores=5))
    (record,) = [each for each in caplog.records if each.message == "bound"]
    expected = {"card": "GPU-0", "units": 20, "cores": 5, "policy": "first-fit"}
    assert vars(record).items() >= expected.items()
    assert vars(record)["took_ms"] >= 0


@pytest.mark.parametrize(
    ("fault", "outcome", "free"),
    [
        (Fault(Conflict("409"), lands=True), BindOutcome.BOUND, 9),
        (Fault(Conflict("409"), lands=True, annotations={}), BindOutcome.FAILED, 9),
        (Fault(Conflict("409"), lands=True, node="m"), BindOutcome.FAILED, 29),
        (Fault(Conflict("409")), BindOutcome.FAILED, 29),
        (Fault(Forbidden("403")), BindOutcome.FAILED, 29),
        (Fault(NotFound("404")), BindOutcome.FAILED, 29),
        (Fault(Throttled("429", 1.0)), BindOutcome.FAILED, 29),
        (Fault(Unavailable("..."), lands=True), BindOutcome.BOUND, 9),
        (Fault(Unavailable("...")), BindOutcome.UNKNOWN, 9),
        (Fault(Unavailable("..."), lands=True, node="m"), BindOutcome.FAILED, 29),
    ],
    ids=lambda value: repr(value) if isinstance(value, Fault) else None,
)
def test_what_the_answer_means(fault: Fault, outcome: BindOutcome, free: int) -> None:
    """The reservation is given up only when the write cannot take effect (0005)."""
    extender = ExtenderFixture(n=(29,), m=(29,))
    pod = extender.create(units=20)
    extender.cluster.on_bind = [fault]
    bound = extender.bind(pod)
    assert bound.outcome is outcome
    assert bool(bound.error) == (outcome is not BindOutcome.BOUND)
    assert extender.free().units == free


@pytest.mark.parametrize("error", [Conflict("409"), Unavailable("...")], ids=repr)
@pytest.mark.parametrize("unreadable", [Unavailable("..."), Forbidden("403")], ids=repr)
def test_an_unreadable_pod_keeps_its_reservation(
    error: ClusterError, unreadable: ClusterError
) -> None:
    extender = ExtenderFixture()
    pod = extender.create(units=20)
    extender.cluster.on_bind = [Fault(error)]
    extender.cluster.on_get = [unreadable]
    assert extender.bind(pod).outcome is BindOutcome.UNKNOWN
    assert extender.free().units == 9


@pytest.mark.parametrize("made_again", [False, True], ids=["gone", "made-again"])
def test_no_answer_about_a_pod_that_has_left_gives_the_room_back(
    *, made_again: bool
) -> None:
    """The write asks for its UID, so that it can never come true."""
    extender = ExtenderFixture()
    pod = extender.create(units=20)
    extender.cluster.delete(Kind.PODS, "default", "pod")
    if made_again:
        extender.create(seen=False, units=20)
    extender.cluster.on_bind = [NO_ANSWER]
    assert extender.bind(pod).outcome is BindOutcome.FAILED
    assert extender.free().units == 29


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
    extender = ExtenderFixture()
    extender.cluster.on_bind = list(faults)
    pod, other = extender.create(units=20), extender.create("other", units=20)
    extender.bind(pod)
    for second in range(1, given_up):
        extender.clock.now = float(second)
        if extender.cluster.on_bind or second >= 20:
            assert extender.bind(pod).outcome is BindOutcome.UNKNOWN
        extender.binder.settle_overdue()
        assert extender.bind(other) == BindResult(BindOutcome.CONFLICT, NO_MEMORY)
    extender.clock.now = float(given_up)
    words = "an earlier bind to n had no effect"
    assert extender.bind(pod) == BindResult(BindOutcome.FAILED, words)
    assert extender.cluster.writes == min(len(faults), 20)
    extender.cluster.on_bind = []
    assert extender.bind(other) == BindResult(BindOutcome.BOUND)


def test_an_unanswered_pod_is_bound_again_for_what_it_asked() -> None:
    """Where it asks another thing by now, its room may not be what it wants."""
    extender, pod = unanswered(lands=False)
    extender.clock.now = 19.9
    extender.cluster.annotate(Kind.PODS, "default", "pod", {names.POLICY: "spread"})
    changed = extender.cluster.pod("pod")
    assert extender.bind(changed, "m").outcome is BindOutcome.UNKNOWN
    assert extender.bind(pod, "m") == BindResult(BindOutcome.BOUND)


def test_an_unanswered_bind_that_the_watch_brings_never_expires() -> None:
    extender, _ = unanswered(lands=True)
    extender.see()
    for extender.clock.now in (0.0, 100.0):
        extender.binder.settle_overdue()
    assert extender.free("m").units == 9


def unanswered(*, lands: bool) -> tuple[ExtenderFixture, Json]:
    """A pod whose bind to m was neither answered nor could be looked at."""
    extender = ExtenderFixture(n=(29,), m=(29,))
    pod = extender.create(units=20)
    extender.cluster.on_bind = [Fault(Unavailable("..."), lands=lands)]
    extender.cluster.on_get = [Unavailable("...")]
    assert extender.bind(pod, "m").outcome is BindOutcome.UNKNOWN
    return extender, pod


@pytest.mark.parametrize(
    ("lands", "readable", "outcome"),
    [
        pytest.param(False, True, BindOutcome.UNKNOWN, id="may-be-on-its-way"),
        pytest.param(True, True, BindOutcome.REFUSED, id="bound-after-all"),
        pytest.param(False, False, BindOutcome.FAILED, id="cannot-be-read"),
    ],
)
def test_an_unanswered_pod_does_not_move(
    *, lands: bool, readable: bool, outcome: BindOutcome
) -> None:
    extender, pod = unanswered(lands=lands)
    extender.cluster.on_get = [] if readable else [Unavailable("...")]
    assert extender.bind(pod, "n").outcome is outcome
    assert (extender.free("n").units, extender.free("m").units) == (29, 9)
    if outcome is BindOutcome.UNKNOWN:
        extender.clock.now += 30
        assert extender.bind(pod, "n").outcome is BindOutcome.FAILED
        assert extender.bind(pod, "n") == BindResult(BindOutcome.BOUND)
        assert (extender.free("n").units, extender.free("m").units) == (9, 29)


def test_an_unanswered_bind_that_lands_late_keeps_its_room() -> None:
    """Even after its reservation has expired, once a bind has come upon it."""
    extender, pod = unanswered(lands=False)
    late = extender.ledger.placement(PodUID(pod["metadata"]["uid"]))
    assert late is not None
    written = {names.PLACEMENT: encode_placement(late, AT)}
    lost = Fault(Conflict("409"), lands=True, node="m", annotations=written)
    extender.cluster.on_bind = [lost]
    extender.ledger.cancel(late.pod.uid)
    assert extender.bind(pod, "n").error
    assert extender.node_of("pod") == "m"
    other = extender.create("other", units=20)
    assert extender.bind(other, "m") == BindResult(BindOutcome.CONFLICT, NO_MEMORY)


@pytest.mark.parametrize(
    "no", [Throttled("429"), Unreachable("refused"), Forbidden("403")]
)
def test_a_no_to_a_retry_says_nothing_of_the_first_bind(no: ClusterError) -> None:
    """Its room stays held, since it may yet come true."""
    extender, pod = unanswered(lands=False)
    extender.cluster.on_bind = [Fault(no)]
    assert extender.bind(pod, "m").outcome is BindOutcome.UNKNOWN
    assert extender.free("m").units == 9


@pytest.mark.parametrize(
    ("lands", "late_s", "readable", "left"),
    [
        pytest.param(True, 60.1, True, 9, id="bound"),
        pytest.param(False, 60.1, True, 29, id="not-bound"),
        pytest.param(False, 60.0, True, 9, id="too-early"),
        pytest.param(False, 60.1, False, 9, id="cannot-be-read"),
    ],
)
def test_an_overdue_reservation_is_settled(
    *, lands: bool, late_s: float, readable: bool, left: int
) -> None:
    """Where nobody binds the pod again and the watch is silent."""
    extender, _ = unanswered(lands=lands)
    extender.clock.now = late_s
    extender.cluster.on_get = [] if readable else [Unavailable("...")]
    extender.binder.settle_overdue()
    assert extender.free("m").units == left
    settled = readable and late_s > 60
    assert bool(extender.ledger.reservations()) is not settled


def test_a_device_plugin_may_be_faster_than_the_answer() -> None:
    """What was meant is the plan; that kubelet chose otherwise is no failure of it."""
    extender = ExtenderFixture(n=(29, 29))
    pod = extender.create("a", units=20)
    both = {}
    for key, card in ((names.PLACEMENT, 0), (names.ACTUAL, 1)):
        held = placement("a", card, 20)
        held = replace(held, pod=replace(held.pod, uid=uid(pod)))
        both[key] = encode_placement(held, AT)
    fault = Fault(Unavailable("..."), lands=True, annotations=both)
    extender.cluster.on_bind = [fault]
    assert extender.bind(pod).outcome is BindOutcome.BOUND
    extender.see("a")
    assert (extender.free(index=0).units, extender.free(index=1).units) == (29, 9)
