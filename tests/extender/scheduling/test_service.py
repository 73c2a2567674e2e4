"""filter, prioritize and preempt over the ledger, and how long filter waits."""

import json
from collections.abc import Mapping
from dataclasses import replace
from threading import Timer
from typing import Any

import pytest

from extender.scheduling.bind import BindOutcome
from extender.scheduling.filter_cache import FilterAnswer
from extender.scheduling.service import WaitAllowance, divide_names
from extender.scheduling.wire import write_filter_reply
from gpushare.domain.eviction.preemption import Victims
from gpushare.domain.model import NodeName, PodUID, Reason, Refusal
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Unavailable
from gpushare.kube.json_reader import Malformed
from tests.builders import bound_json, card, event, placement, pod_json
from tests.extender.extender_fixture import Clock, ExtenderFixture, Fault, asked
from tests.extender.scheduling.test_preempt import preemption
from tests.work import work

N = NodeName("n")
NO_MEMORY = "Insufficient baidu.com/vcuda-memory on one card"


def test_filter_is_idempotent() -> None:
    """kube-scheduler may ask twice in a cycle; the first answer is not in the way."""
    extender = ExtenderFixture(n=(29,), m=(10,))
    pod = extender.create(units=20)
    first = extender.filter(pod, "n", "m", "gone")
    assert list(first.kept) == ["n"]
    assert first.refused == {"m": NO_MEMORY, "gone": "No shared cards"}
    assert extender.filter(pod, "n", "m", "gone") == first
    assert len(extender.inflight) == 1


@pytest.mark.parametrize("ours", [{}, {"units": "0", "cores": 0}])
def test_a_pod_that_asks_zero_passes_everywhere(ours: dict[str, Any]) -> None:
    """Even to nodes without cards; preempt keeps kube-scheduler's own victims."""
    extender = ExtenderFixture()
    pod = extender.create(**ours)
    assert list(extender.filter(pod, "n", "gone").kept) == ["n", "gone"]
    assert extender.verbs.prioritize(asked(pod, "n", "gone")) == []
    assert len(extender.inflight) == 0
    kept = extender.verbs.preempt(preemption(pod, n=("u",), m=()))
    assert kept == {"n": Victims((PodUID("u"),))}


def test_its_own_reservation_does_not_stand_in_a_pods_way() -> None:
    extender = ExtenderFixture()
    pod, other = (extender.create(name, units=20) for name in "ab")
    assert not extender.bind(pod).error
    assert list(extender.filter(pod).kept) == ["n"]
    assert extender.filter(other).refused == {"n": NO_MEMORY}


def test_a_pod_whose_bind_may_yet_come_true_is_kept_on_its_node() -> None:
    """bind would refuse all others; an error has kube-scheduler ask again by itself."""
    extender = ExtenderFixture(n=(29,), m=(29,))
    pod = extender.create(units=20)
    extender.cluster.on_bind = [Fault(Unavailable("..."))]
    assert extender.bind(pod, "m").error
    words = "The result of an earlier bind to another node is not known yet"
    result = extender.filter(pod, "n", "m")
    assert (list(result.kept), result.refused) == (["m"], {"n": words})
    assert not extender.bind(pod, "m", judged=False).error
    assert extender.filter(pod, "n").error == words
    assert len(extender.inflight) == 0


@pytest.mark.parametrize(
    ("name", "priority", "kept"),
    [
        ("nominee", 5, True),
        ("higher", 6, True),
        ("equal", 5, False),
        ("lower", 4, False),
    ],
)
def test_a_nomination_stands_in_the_way_of_lesser_and_equal_pods(
    name: str, priority: int, *, kept: bool
) -> None:
    """As kube-scheduler has it for whole nodes (contracts 1.2)."""
    extender = ExtenderFixture()
    nominee = pod_json("nominee", units=20, priority=5, nominated="n")
    extender.pods.apply(event("ADDED", nominee))
    result = extender.filter(pod_json(name, units=20, priority=priority))
    assert list(result.kept) == (["n"] if kept else [])
    assert dict(result.refused) == ({} if kept else {"n": NO_MEMORY})


@pytest.mark.parametrize(
    ("pod", "words", "field"),
    [
        (
            pod_json(units=4, annotations={names.POLICY: "tetris"}),
            'no policy "tetris"; known are first-fit, best-fit, spread, frag',
            "Pod.metadata.annotations",
        ),
        (pod_json(cores=150), "150 cores are neither", "Pod"),
    ],
    ids=["unknown-policy", "invalid-request"],
)
def test_an_invalid_pod_is_refused_by_every_node(
    pod: Json, words: str, field: str
) -> None:
    extender = ExtenderFixture(n=(29,), m=(29,))
    refused = extender.filter(pod, "n", "m").refused
    assert refused.keys() == {"n", "m"}
    (reason,) = set(refused.values())
    assert reason.startswith(f"Invalid vcuda request: {words}")
    assert extender.verbs.prioritize(asked(pod, "n")) == []
    with pytest.raises(Malformed) as error:
        extender.verbs.preempt(preemption(pod, n=("u",)))
    assert error.value.field == field
    assert len(extender.inflight) == 0


@pytest.mark.parametrize(
    ("policy", "asked_about", "scores"),
    [
        ("first-fit", ("m", "n"), {"n": 7}),
        ("spread", ("m", "n"), {"m": 7}),
        ("spread", ("m", "n", "unknown"), {"m": 10, "n": 3}),
        ("spread", ("n",), {}),
        ("spread", (), {}),
    ],
    ids=["fuller", "emptier", "above-unknown", "one", "none"],
)
def test_prioritize_scores_by_the_pods_policy(
    policy: str, asked_about: tuple[str, ...], scores: dict[str, int]
) -> None:
    """In the order of the names, above the least, which is 0 for an unknown node."""
    extender = ExtenderFixture(n=(29,), m=(29,))
    extender.bind(extender.create("there", units=20))
    pod = pod_json(units=4, annotations={names.POLICY: policy})
    found = extender.verbs.prioritize(asked(pod, *asked_about))
    assert found == list(scores.items())


def test_a_pending_pod_takes_room_only_where_there_is_a_choice() -> None:
    """It may never be bound; bind decides anyway. After 5 s it is forgotten."""
    extender = ExtenderFixture(n=(10,), m=(10,))
    first, second = extender.create("a", units=10), extender.create("b", units=10)
    assert list(extender.filter(first, "n").kept) == ["n"]
    result = extender.filter(second, "n", "m")
    assert (list(result.kept), result.refused) == (["m"], {"n": NO_MEMORY})
    assert list(extender.filter(second, "n").kept) == ["n"]
    extender.clock.now = 5.0
    assert list(extender.filter(second, "n", "m").kept) == ["n", "m"]
    assert extender.bind(first).error == ""
    assert extender.bind(second).error == NO_MEMORY


def test_a_yes_that_makes_no_difference_makes_nobody_wait() -> None:
    extender = ExtenderFixture(wait_s=60.0, n=(29,))
    for name in "ab":
        pod = extender.create(name, units=10)
        assert list(extender.filter(pod).kept) == ["n"]


def test_what_was_bound_while_filter_waited_counts() -> None:
    extender = ExtenderFixture(wait_s=60.0, n=(29,))
    first, second = (extender.create(name, units=20) for name in "ab")
    extender.filter(first)
    bind = Timer(0.05, extender.bind, [first], {"judged": False})
    bind.start()
    result = extender.filter(second)
    bind.join()
    assert result.refused == {"n": NO_MEMORY}


def test_a_bind_that_ends_while_filter_judges_counts() -> None:
    """Else it would be among the pending no more, and not in the ledger yet."""
    extender = ExtenderFixture(n=(29,))
    first, second = (extender.create(name, units=20) for name in "ab")
    extender.filter(first)
    others = extender.inflight.others

    def after_the_bind(*which: Any) -> Any:
        extender.inflight.others = others  # type: ignore[method-assign]
        extender.bind(first, judged=False)
        return others(*which)

    extender.inflight.others = after_the_bind  # type: ignore[method-assign]
    assert extender.filter(second).refused == {"n": NO_MEMORY}


@pytest.mark.parametrize(
    ("priority", "terminating", "awaited"),
    [(1, True, "n"), (1, False, None), (10, True, None)],
    ids=["leaves", "stays", "is-no-victim"],
)
def test_the_nominated_node_is_awaited_while_victims_leave(
    priority: int, terminating: bool, awaited: str | None
) -> None:
    """Refused as unresolvable, it would cost the pod its nomination."""
    extender = ExtenderFixture(n=(29, 29), m=(10,))
    for index in (0, 1):
        held = placement(f"old-{index}", index, 20, priority=priority)
        ends = terminating and index == 0
        extender.pods.apply(event("ADDED", bound_json(held, terminating=ends)))
    pod = extender.create("vip", units=25, priority=10)
    pod["status"]["nominatedNodeName"] = "n"
    result = extender.filter(pod, "n", "m")
    assert result.awaited == awaited
    reply = json.loads(write_filter_reply(result))
    failed = {"n": NO_MEMORY} if awaited else {}
    assert reply["FailedNodes"] == failed
    both = {"n": NO_MEMORY, "m": NO_MEMORY}
    assert reply["FailedAndUnresolvableNodes"] | failed == both
    assert not reply["FailedAndUnresolvableNodes"].keys() & failed


def member(
    extender: ExtenderFixture, name: str, units: int, group: str = "gang"
) -> Json:
    body = pod_json(name, units=units)
    body["spec"]["schedulingGroup"] = {"podGroupName": group}
    made = extender.cluster.create(Kind.PODS, body)
    extender.pods.apply(event("ADDED", made))
    return made


def test_where_a_pod_of_a_group_goes_is_certain() -> None:
    """One node is kept, so the next one knows what is left; nobody waits for a bind."""
    extender = ExtenderFixture(wait_s=60.0, n=(10, 10), m=(10,))
    pods = [member(extender, name, 10) for name in "abcd"]
    kept = [list(extender.filter(pod, "m", "n").kept) for pod in pods]
    assert sorted(kept) == [[], ["m"], ["n"], ["n"]]


def test_there_is_no_hope_among_the_pods_of_a_group() -> None:
    """One of them may be refused, but never bound alone. Another group may fail."""
    extender = ExtenderFixture(wait_s=0.0, n=(10, 4, 4))
    first, second = (member(extender, name, 8) for name in "ab")
    assert list(extender.filter(first).kept) == ["n"]
    assert extender.filter(second).refused == {"n": NO_MEMORY}
    third = member(extender, "c", 8, group="other")
    assert list(extender.filter(third).kept) == ["n"]


def test_a_group_fits_in_whatever_order_it_is_bound() -> None:
    extender = ExtenderFixture(n=(10, 10))
    pods = [member(extender, f"p{n}", units) for n, units in enumerate((6, 4, 6, 4))]
    assert all(extender.filter(pod).kept == ("n",) for pod in pods)
    for number in (1, 3, 0, 2):
        assert extender.bind(pods[number], judged=False).error == ""
    assert [extender.free(index=index).units for index in (0, 1)] == [0, 0]


def test_a_plan_that_somebody_else_took_keeps_no_pod_out() -> None:
    extender = ExtenderFixture(n=(10, 10))
    extender.filter(member(extender, "a", 8))
    assert extender.bind(extender.create("x", units=8)).error == ""
    assert extender.free(index=0).units == 10
    assert extender.bind(extender.create("y", units=8)).error == ""


@pytest.mark.parametrize(("size", "units"), [(10, 8), (8, 10)])
def test_a_pod_of_a_group_whose_bind_is_in_doubt_keeps_its_card(
    size: int, units: int
) -> None:
    """It holds card 1, though by now it would be planned on card 0; others see it."""
    extender = ExtenderFixture(n=(10, size))
    extender.bind(extender.create("blocker", units=8))
    first = member(extender, "a", 8)
    extender.cluster.on_bind = [Fault(Unavailable("..."))]
    assert extender.bind(first).outcome is BindOutcome.UNKNOWN
    extender.pods.apply(event("DELETED", extender.cluster.pod("blocker")))
    assert list(extender.filter(first).kept) == ["n"]
    second = member(extender, "b", units)
    assert list(extender.filter(second).kept) == ["n"]
    for pod in (second, first):
        assert extender.bind(pod, judged=False).error == ""
    free = [extender.free(index=index).units for index in (0, 1)]
    assert free == [10 - units, size - 8]


def test_a_new_cycle_of_a_group_forgets_the_one_before() -> None:
    """It was refused as a whole, so none of its pods stands where it was planned."""
    extender = ExtenderFixture(n=(10,))
    blocker = extender.create("blocker", units=4)
    extender.bind(blocker)
    big, small = member(extender, "big", 8), member(extender, "small", 5)
    assert not extender.filter(big).kept
    assert list(extender.filter(small).kept) == ["n"]
    extender.pods.apply(event("DELETED", extender.cluster.pod("blocker")))
    assert list(extender.filter(big).kept) == ["n"]
    assert not extender.filter(small).kept


def test_a_pod_asked_about_twice_in_a_row_is_of_the_same_cycle() -> None:
    """First for its nominated node, then for all (contracts 1.2)."""
    extender = ExtenderFixture(n=(10,), m=(10,))
    first, second = (member(extender, name, 8) for name in "ab")
    extender.filter(first, "n")
    assert not extender.filter(second, "n").kept
    assert list(extender.filter(second, "n", "m").kept) == ["m"]


def test_preempt_sees_where_the_pods_of_the_group_go() -> None:
    extender = ExtenderFixture(n=(10, 10))
    low = placement("low", 1, 10, priority=-5)
    extender.pods.apply(event("ADDED", bound_json(low)))
    first, second = (member(extender, name, 8) for name in "ab")
    assert list(extender.filter(first).kept) == ["n"]
    args = preemption(second, n=("x",))
    assert extender.verbs.preempt(args)[N].uids == ("x",)
    chosen = extender.verbs.preempt(replace(args, group="default/gang"))
    assert set(chosen[N].uids) == {"x", "uid-low"}


CORE = Refusal(Reason.CORE)
NO_CORE = "Insufficient baidu.com/vcuda-core on one card"
NO_CARDS = "No shared cards"


def nodes(text: str) -> list[NodeName]:
    return [NodeName(name) for name in text.split()]


def answer(fits: str, **refused: str) -> FilterAnswer:
    groups = {Refusal(Reason(key)): set(nodes(text)) for key, text in refused.items()}
    return FilterAnswer(set(nodes(fits)), groups)


@pytest.mark.parametrize(
    ("names", "special", "kept", "refused"),
    [
        pytest.param("b a", {}, "b a", {}, id="all-fit-in-the-order-given"),
        pytest.param("x y", {}, "", {"x": NO_MEMORY, "y": NO_CORE}, id="none-fits"),
        pytest.param("x b", {}, "b", {"x": NO_MEMORY}, id="some-fit"),
        pytest.param("z", {}, "", {"z": NO_CARDS}, id="unknown-node"),
        pytest.param("z b x", {}, "b", {"z": NO_CARDS, "x": NO_MEMORY}, id="mixed"),
        pytest.param("", {}, "", {}, id="no-names"),
        pytest.param("b b x x", {}, "b b", {"x": NO_MEMORY}, id="names-twice"),
        pytest.param("a x", {"x": None}, "a x", {}, id="fits-for-this-pod"),
        pytest.param(
            "a x", {"a": CORE}, "", {"a": NO_CORE, "x": NO_MEMORY}, id="does-not"
        ),
        pytest.param("a x", {"x": CORE}, "a", {"x": NO_CORE}, id="another-reason"),
        pytest.param("a x", {"z": None}, "a", {"x": NO_MEMORY}, id="not-asked-about"),
    ],
)
def test_every_name_is_kept_or_has_its_reason(
    names: str,
    special: dict[NodeName, Refusal | None],
    kept: str,
    refused: Mapping[str, str],
) -> None:
    """This pod may see a node otherwise than its like; only names asked about count."""
    result = divide_names(nodes(names), answer("a b c", memory="x", core="y"), special)
    assert list(result.kept) == nodes(kept)
    assert dict(result.refused) == refused


@pytest.mark.parametrize(
    ("spent_s", "passed_s", "allowed_s"),
    [
        pytest.param(0.6, 0, 0.4, id="a-second-is-saved-for-bursts"),
        pytest.param(0.8, 0, 0.0, id="all-is-spent"),
        pytest.param(1.0, 0.9, 0.0, id="too-early"),
        pytest.param(1.0, 2.1, 0.4, id="a-fifth-of-the-time-is-earned"),
        pytest.param(-3600, 0, 0.4, id="never-more-than-a-wait"),
    ],
)
def test_waits_take_a_fifth_of_the_time(
    spent_s: float, passed_s: float, allowed_s: float
) -> None:
    """After an hour without refusals no more than a second is saved."""
    clock = Clock()
    wait_allowance = WaitAllowance(0.4, clock=clock)
    wait_allowance.spend("a", spent_s)
    clock.now += passed_s
    assert wait_allowance.allowed_s("b") == allowed_s
    clock.now += 3600
    assert wait_allowance.allowed_s("b") == 0.4
    wait_allowance.spend("c", 0.7)
    assert wait_allowance.allowed_s("b") == 0.0


def waits(
    wait_allowance: WaitAllowance, namespace: str, clock: Clock, most: int
) -> int:
    found = 0
    for _ in range(most):
        waited_s = wait_allowance.allowed_s(namespace)
        found += waited_s > 0
        wait_allowance.spend(namespace, waited_s)
        clock.now += waited_s
    return found


def test_refused_pods_of_one_namespace_do_not_take_the_time_of_all() -> None:
    """3,000 pods that fit nowhere leave a quarter of what is saved up for others.

    They earn 15 % of the time, and all namespaces together 20 %, however many.
    """
    clock = Clock()
    wait_allowance = WaitAllowance(0.02, clock=clock)
    assert waits(wait_allowance, "crowd", clock, 3000) <= 45
    assert waits(wait_allowance, "victim", clock, 5) == 5
    clock.now += 2.0
    assert waits(wait_allowance, "crowd", clock, 3000) == pytest.approx(18, abs=2)
    clock.now += 10.0
    total = sum(waits(wait_allowance, f"n{n}", clock, 3) for n in range(5000))
    assert 50 <= total <= 64


def test_a_new_kind_of_request_costs_what_the_names_cost_that_are_asked() -> None:
    """Not what all nodes cost, also beside pods whose bind is pending.

    Each of a tenant's thousands of pods may ask for another amount.
    """

    def cost(nodes: int) -> int:
        extender = ExtenderFixture(**{f"n{number}": (29,) for number in range(nodes)})
        bodies = (pod_json(f"p{n}", units=n, cores=n) for n in range(1, 9))
        args = [asked(body, "n0", "n1", "n2") for body in bodies]
        return work(lambda: [extender.verbs.filter(each) for each in args])

    assert cost(300) < 1.2 * cost(30)


@pytest.mark.parametrize("helps", [True, False])
def test_room_that_comes_while_filter_waits_is_taken(*, helps: bool) -> None:
    """kube-scheduler heard of another pod's end before us; other news end no wait."""
    extender = ExtenderFixture(wait_for_news_s=20.0 if helps else 0.1)
    ledger = extender.ledger
    ledger.record(placement("old", 0, 20))
    news = (
        Timer(0.05, ledger.release, [PodUID("uid-old")])
        if helps
        else Timer(0.02, ledger.set_cards, [NodeName("m"), [card(units=4)]])
    )
    news.start()
    result = extender.filter(extender.create("new", units=20))
    news.join()
    assert list(result.kept) == (["n"] if helps else [])


def test_a_pod_that_fits_does_not_wait() -> None:
    """Nor does one that no node can ever take: the budget is whole afterwards."""
    extender = ExtenderFixture(wait_for_news_s=5.0)
    fits = extender.filter(extender.create("a", units=4))
    never = extender.filter(extender.create("b", cores=150))
    assert (list(fits.kept), list(never.kept)) == (["n"], [])
    assert extender.wait_allowance.allowed_s("default") == 5.0
