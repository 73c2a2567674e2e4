"""filter, prioritize and preempt over the ledger, and how long filter waits."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from threading import Timer
from typing import Any

import pytest

from extender.scheduling.bind import Outcome
from extender.scheduling.service import (
    UNKNOWN,
    Patience,
    judge,
    preempt,
    prioritize,
    refuse_all,
)
from extender.scheduling.wire import (
    NODE_CACHE,
    ExtenderArgs,
    PreemptionArgs,
    filter_reply,
)
from gpushare.domain.cache import Answer, Scores
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import HostAmount, NodeName, PodUID
from gpushare.domain.preemption import Budget, Facts, Victims
from gpushare.domain.refusal import Reason, Refusal, invalid
from gpushare.kube import codec, names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Forbidden, Unavailable
from gpushare.kube.json_reader import Malformed
from tests.builders import (
    FIRST_FIT,
    SPREAD,
    bound_json,
    card,
    cards,
    container_json,
    event,
    node,
    placement,
    pod_json,
    request,
    roomy,
)
from tests.extender.extender_fixture import Clock, ExtenderFixture, Fault, asked

N = NodeName("n")
NO_MEMORY = "Insufficient baidu.com/vcuda-memory on one card"


def preemption(pod: Json, **victims: tuple[str, ...]) -> PreemptionArgs:
    proposals = {
        NodeName(name): Victims(tuple(PodUID(uid) for uid in uids))
        for name, uids in victims.items()
    }
    return PreemptionArgs(
        codec.pod_ref(pod), codec.pod_request(pod, codec.pod_ref(pod)), proposals
    )


def whole_nodes(pod: Json) -> ExtenderArgs:
    return ExtenderArgs(
        codec.pod_ref(pod), codec.pod_request(pod, codec.pod_ref(pod)), None
    )


def test_filter_is_idempotent() -> None:
    """kube-scheduler may ask twice in a cycle; the first answer is not in the way."""
    extender = ExtenderFixture(n=(29,), m=(10,))
    pod = extender.create(units=20)
    first = extender.filter(pod, "n", "m", "gone")
    assert list(first.kept) == ["n"]
    assert first.refused == {"m": NO_MEMORY, "gone": "No shared cards"}
    assert extender.filter(pod, "n", "m", "gone") == first
    assert len(extender.inflight) == 1


@pytest.mark.parametrize("ours", [{}, {"units": 0}, {"units": "0", "cores": 0}])
def test_a_pod_that_asks_zero_passes_everywhere(ours: dict[str, Any]) -> None:
    """Even to nodes without cards, and without standing in anybody's way."""
    extender = ExtenderFixture()
    pod = extender.create(**ours)
    assert list(extender.filter(pod, "n", "gone").kept) == ["n", "gone"]
    assert extender.verbs.prioritize(asked(pod, "n", "gone")) == [("n", 0), ("gone", 0)]
    assert len(extender.inflight) == 0
    kept = extender.verbs.preempt(preemption(pod, n=("u",), m=()))
    assert kept == {"n": Victims((PodUID("u"),))}


def test_its_own_reservation_does_not_stand_in_a_pods_way() -> None:
    """After an unanswered bind it is filtered again; only others see it as held."""
    extender = ExtenderFixture()
    pod = extender.create(units=20)
    assert not extender.bind(pod).error
    assert list(extender.filter(pod).kept) == ["n"]
    assert extender.filter(extender.create("other", units=20)).refused == {
        "n": NO_MEMORY
    }


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
        pytest.param("nominee", 5, True, id="its-own"),
        pytest.param("higher", 6, True, id="of-a-lesser-pod"),
        pytest.param("equal", 5, False, id="of-an-equal-pod"),
        pytest.param("lower", 4, False, id="of-a-higher-pod"),
    ],
)
def test_a_nomination_stands_in_the_way_of_lesser_and_equal_pods(
    name: str, priority: int, *, kept: bool
) -> None:
    """As kube-scheduler has it for whole nodes (contracts 1.2)."""
    extender = ExtenderFixture()
    nominee = pod_json("nominee", units=20, priority=5, nominated="n")
    extender.pods.apply(event("ADDED", nominee))
    pod = pod_json(name, units=20, priority=priority)
    result = extender.filter(pod)
    assert list(result.kept) == (["n"] if kept else [])
    assert dict(result.refused or {}) == ({} if kept else {"n": NO_MEMORY})


def test_an_unknown_policy_is_refused_with_the_names() -> None:
    """Everywhere in the same words; preempt names the field, having no Error."""
    extender = ExtenderFixture(n=(29,), m=(29,))
    pod = pod_json(units=4, annotations={names.POLICY: "tetris"})
    words = 'no policy "tetris"; known are first-fit, best-fit, spread, frag'
    refused = dict.fromkeys("nm", f"Invalid vcuda request: {words}")
    assert extender.filter(pod, "n", "m").refused == refused
    assert extender.verbs.prioritize(asked(pod, "n")) == [("n", 0)]
    with pytest.raises(Malformed, match=r"^Pod\.metadata\.annotations: .*tetris"):
        extender.verbs.preempt(preemption(pod, n=("u",)))


def test_an_invalid_request_is_refused_everywhere() -> None:
    """The event says why; nothing stays pending."""
    extender = ExtenderFixture()
    pod = pod_json(cores=150)
    (words,) = (extender.filter(pod).refused or {}).values()
    assert words.startswith("Invalid vcuda request: 150 cores")
    assert extender.verbs.prioritize(asked(pod, "n")) == [("n", 0)]
    with pytest.raises(Malformed, match=r"^Pod: Invalid vcuda request"):
        extender.verbs.preempt(preemption(pod, n=("u",)))
    assert len(extender.inflight) == 0


def test_whole_nodes_are_told_what_to_change() -> None:
    """Filter has a field for it, prioritize has none."""
    extender = ExtenderFixture()
    args = whole_nodes(pod_json(units=4))
    assert extender.verbs.filter(args).error == NODE_CACHE
    with pytest.raises(Malformed, match="nodeCacheCapable"):
        extender.verbs.prioritize(args)


def test_prioritize_takes_the_pods_policy() -> None:
    """First-fit likes the fuller node, spread the emptier."""
    extender = ExtenderFixture(n=(29,), m=(29,))
    extender.bind(extender.create("there", units=20))
    first = extender.verbs.prioritize(asked(pod_json(units=4), "n", "m"))
    wishes = {names.POLICY: "spread"}
    spread = extender.verbs.prioritize(
        asked(pod_json(units=4, annotations=wishes), "n", "m")
    )
    assert first == [("n", 7), ("m", 0)]
    assert spread == [("n", 3), ("m", 10)]


def test_two_in_flight_are_not_both_sent_to_the_last_room() -> None:
    """When the wait is over in vain, the other node is offered."""
    extender = ExtenderFixture(n=(10,), m=(10,))
    extender.filter(extender.create("a", units=10), "n")
    result = extender.filter(extender.create("b", units=10), "n", "m")
    assert list(result.kept) == ["m"]
    assert result.refused == {"n": NO_MEMORY}


def test_hope_is_the_answer_when_caution_leaves_nothing() -> None:
    """The first may never be bound; bind decides anyway, and says Error."""
    extender = ExtenderFixture(n=(10,))
    first, second = extender.create("a", units=10), extender.create("b", units=10)
    assert list(extender.filter(first).kept) == ["n"]
    assert list(extender.filter(second).kept) == ["n"]
    assert extender.bind(first).error == ""
    assert extender.bind(second).error == NO_MEMORY


def test_a_yes_that_makes_no_difference_makes_nobody_wait() -> None:
    """There is room for both, so the minute is not waited."""
    extender = ExtenderFixture(wait_s=60.0, n=(29,))
    extender.filter(extender.create("a", units=10))
    assert list(extender.filter(extender.create("b", units=10)).kept) == ["n"]


def test_a_late_yes_is_forgotten() -> None:
    """Five seconds after its filter the room counts as free again."""
    extender = ExtenderFixture(n=(10,), m=(10,))
    extender.filter(extender.create("a", units=10), "n")
    extender.clock.now = 5.0
    result = extender.filter(extender.create("b", units=10), "n", "m")
    assert list(result.kept) == ["n", "m"]


def crowded() -> tuple[ExtenderFixture, Json]:
    """A full node of two pods, and a pod of higher rank that wants one's room."""
    extender = ExtenderFixture(n=(20,))
    for name in ("a", "b"):
        pod = extender.create(name, uid=f"uid-{name}", units=10, labels={"app": name})
        extender.bind(pod)
        extender.see(name)
    return extender, pod_json("high", units=10, priority=9)


def uid(extender: ExtenderFixture, name: str) -> str:
    return str(extender.cluster.pod(name)["metadata"]["uid"])


BUDGET = {
    "metadata": {"name": "b", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "a"}}},
    "status": {"disruptionsAllowed": 0},
}


def test_preempt_counts_budgets() -> None:
    """Where a pod outside any budget will do, it is taken."""
    extender, high = crowded()
    extender.cluster.create(Kind.BUDGETS, BUDGET)
    chosen = extender.verbs.preempt(preemption(high, n=("none-of-ours",)))
    assert chosen[N].uids == ("none-of-ours", uid(extender, "b"))
    assert chosen[N].budget_violations == 0


@pytest.mark.parametrize("broken", ["forbidden", "malformed"])
def test_preempt_answers_without_budgets(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Unreadable ones are logged, and victims are chosen as if there were none."""
    extender, high = crowded()
    if broken == "forbidden":
        extender.cluster.on_list = Forbidden("no right to list")
    else:
        extender.cluster.create(Kind.BUDGETS, {**BUDGET, "spec": {"selector": 1}})
    with caplog.at_level(logging.WARNING):
        chosen = extender.verbs.preempt(preemption(high, n=(uid(extender, "a"),)))
    assert chosen == {"n": Victims((PodUID(uid(extender, "a")),))}
    assert "disruption budgets not read" in caplog.messages


def test_a_yes_is_no_reservation() -> None:
    """Filter writes nothing: the room is as free as before."""
    extender = ExtenderFixture(n=(29,))
    extender.filter(extender.create(units=20))
    assert extender.free().units == 29
    assert not extender.ledger.reservations()


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
    reply = json.loads(filter_reply(result))
    failed = {"n": NO_MEMORY} if awaited else {}
    assert reply["FailedNodes"] == failed
    both = {"n": NO_MEMORY, "m": NO_MEMORY}
    assert reply["FailedAndUnresolvableNodes"] | failed == both
    assert not reply["FailedAndUnresolvableNodes"].keys() & failed


def test_preempt_dooms_the_victims_it_names() -> None:
    """So that the first one's room is kept before the last one is seen to go."""
    extender = ExtenderFixture(n=(29,))
    extender.pods.apply(event("ADDED", bound_json(placement("low", 0, 20, priority=1))))
    pod = extender.create("vip", units=20, priority=10)
    assert extender.verbs.preempt(preemption(pod, n=("uid-low",)))
    assert [one.pod.name for one in extender.pods.leaving(N)] == ["low"]


@pytest.mark.parametrize(
    ("priority", "names"),
    [(5, {"x", "uid-seen"}), (99, set())],
    ids=["lower", "higher"],
)
def test_preempt_names_no_pod_that_was_never_seen_bound(
    priority: int, names: set[str]
) -> None:
    """The answer to its bind never came; the other card is cleared, or none."""
    extender = ExtenderFixture(n=(20, 20))
    extender.create("ghost", units=20)
    extender.cluster.on_bind = [Fault(Unavailable("no answer"))]
    assert extender.bind(extender.cluster.pod("ghost")).outcome is Outcome.UNKNOWN
    high = pod_json("high", units=20, priority=9)
    seen = placement("seen", 1, 20, priority=priority)
    extender.pods.apply(event("ADDED", bound_json(seen)))
    chosen = extender.verbs.preempt(preemption(high, n=("x",)))
    assert {uid for victims in chosen.values() for uid in victims.uids} == names


def test_preempt_names_the_younger_of_two_equals() -> None:
    """By the time when kubelet took them; one not yet taken is the youngest."""
    extender = ExtenderFixture(n=(20,))
    for name, started in {"a": "03:04:05", "b": "03:04:06", "c": ""}.items():
        pod = bound_json(placement(name, 0, 5))
        pod["status"] |= {"startTime": f"2026-01-02T{started}Z"} if started else {}
        extender.pods.apply(event("ADDED", pod))
    high = pod_json("high", units=15, priority=9)
    chosen = extender.verbs.preempt(preemption(high, n=("x",)))
    assert chosen[N].uids == ("x", "uid-b", "uid-c")


def member(
    extender: ExtenderFixture, name: str, units: int, group: str = "gang"
) -> Json:
    """Make a pod of a scheduling group."""
    containers = [container_json(units=units)]
    body = pod_json(name, containers=containers)
    body["spec"]["schedulingGroup"] = {"podGroupName": group}
    made = extender.cluster.create(Kind.PODS, body)
    extender.pods.apply(event("ADDED", made))
    return made


def test_where_a_pod_of_a_group_goes_is_certain() -> None:
    """One node is kept, so the next one knows what is left; nobody waits for a bind."""
    extender = ExtenderFixture(wait_s=60.0, n=(10, 10), m=(10,))
    kept = [
        list(extender.filter(member(extender, f"p{number}", 10), "m", "n").kept)
        for number in range(4)
    ]
    assert sorted(kept) == [[], ["m"], ["n"], ["n"]]


def test_there_is_no_hope_among_the_pods_of_a_group() -> None:
    """In sum there is room for two; the other may be refused, but never bound alone."""
    extender = ExtenderFixture(wait_s=60.0, n=(10, 4, 4))
    first, second = (member(extender, name, 8) for name in "ab")
    assert list(extender.filter(first).kept) == ["n"]
    assert extender.filter(second).refused == {"n": NO_MEMORY}


def test_a_pod_of_another_group_may_hope() -> None:
    """Whether the first group is bound at all, nobody knows."""
    extender = ExtenderFixture(n=(10,))
    extender.filter(member(extender, "a", 8))
    assert list(extender.filter(member(extender, "b", 8, group="other")).kept) == ["n"]


def test_a_group_fits_in_whatever_order_it_is_bound() -> None:
    """Each bind leaves alone what is planned for the others."""
    extender = ExtenderFixture(n=(10, 10))
    pods = [member(extender, f"p{n}", units) for n, units in enumerate((6, 4, 6, 4))]
    for pod in pods:
        assert list(extender.filter(pod).kept) == ["n"]
    for number in (1, 3, 0, 2):
        assert extender.bind(pods[number], judged=False).error == ""
    assert [extender.free(index=index).units for index in (0, 1)] == [0, 0]


def test_a_plan_that_somebody_else_took_keeps_no_pod_out() -> None:
    """What is planned is left alone only where there is a choice."""
    extender = ExtenderFixture(n=(10, 10))
    extender.filter(member(extender, "a", 8))
    assert extender.bind(extender.create("x", units=8)).error == ""
    assert extender.free(index=0).units == 10
    assert extender.bind(extender.create("y", units=8)).error == ""


def in_doubt(*cards: int) -> tuple[ExtenderFixture, Json]:
    """A pod of a group that holds 8 units of card 1; card 0 came free since."""
    extender = ExtenderFixture(n=cards)
    extender.bind(extender.create("blocker", units=8))
    pod = member(extender, "a", 8)
    extender.cluster.on_bind = [Fault(Unavailable("..."))]
    assert extender.bind(pod).outcome is Outcome.UNKNOWN
    extender.pods.apply(event("DELETED", extender.cluster.pod("blocker")))
    assert list(extender.filter(pod).kept) == ["n"]
    return extender, pod


def test_a_plan_does_not_move_a_pod_whose_bind_is_in_doubt() -> None:
    """It holds its card, though it would be planned on another one by now."""
    extender, first = in_doubt(10, 10)
    second = member(extender, "b", 8)
    assert list(extender.filter(second).kept) == ["n"]
    for pod in (second, first):
        assert extender.bind(pod, judged=False).error == ""
    assert [extender.free(index=index).units for index in (0, 1)] == [2, 2]


def test_the_next_pod_of_a_group_sees_the_card_that_is_held() -> None:
    """Not the one that would be planned by now: all of that is free."""
    extender, _ = in_doubt(10, 8)
    assert list(extender.filter(member(extender, "b", 10)).kept) == ["n"]


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
    """The card that is free now is planned for another one, who is no victim either."""
    extender = ExtenderFixture(n=(10, 10))
    low = placement("low", 1, 10, priority=-5)
    extender.pods.apply(event("ADDED", bound_json(low)))
    first, second = (member(extender, name, 8) for name in "ab")
    assert list(extender.filter(first).kept) == ["n"]
    args = preemption(second, n=("x",))
    assert extender.verbs.preempt(args)[N].uids == ("x",)
    chosen = extender.verbs.preempt(replace(args, group="default/gang"))
    assert set(chosen[N].uids) == {"x", "uid-low"}


MEMORY = Refusal(Reason.MEMORY)
CORE = Refusal(Reason.CORE)
NO_CORE = "Insufficient baidu.com/vcuda-core on one card"
NO_CARDS = "No shared cards"


def nodes(text: str) -> list[NodeName]:
    return [NodeName(name) for name in text.split()]


def answer(fits: str, **refused: str) -> Answer:
    reasons = {"memory": MEMORY, "core": CORE}
    groups = {reasons[key]: set(nodes(text)) for key, text in refused.items()}
    return Answer(set(nodes(fits)), groups)


@pytest.mark.parametrize(
    ("names", "kept", "refused"),
    [
        pytest.param("b a", "b a", {}, id="all-fit-in-the-order-given"),
        pytest.param("x y", "", {"x": NO_MEMORY, "y": NO_CORE}, id="none-fits"),
        pytest.param("x b", "b", {"x": NO_MEMORY}, id="some-fit"),
        pytest.param("z", "", {"z": NO_CARDS}, id="unknown-node"),
        pytest.param(
            "z b x", "b", {"z": NO_CARDS, "x": NO_MEMORY}, id="all-three-kinds"
        ),
        pytest.param("", "", {}, id="no-names"),
        pytest.param("b b x x", "b b", {"x": NO_MEMORY}, id="names-twice"),
    ],
)
def test_every_name_is_kept_or_has_its_reason(
    names: str, kept: str, refused: Mapping[str, str]
) -> None:
    """Whatever was asked comes back, once, on one of the two sides."""
    result = judge(nodes(names), answer("a b c", memory="x", core="y"), {})
    assert list(result.kept) == nodes(kept)
    assert dict(result.refused or {}) == refused
    assert result.error == ""


@pytest.mark.parametrize(
    ("exceptions", "kept", "refused"),
    [
        pytest.param({"x": None}, "a x", {}, id="a-refused-node-fits-after-all"),
        pytest.param({"a": CORE}, "", {"a": NO_CORE, "x": NO_MEMORY}, id="and-not"),
        pytest.param({"x": CORE}, "a", {"x": NO_CORE}, id="another-reason"),
        pytest.param({"z": None}, "a", {"x": NO_MEMORY}, id="a-node-not-asked-about"),
    ],
)
def test_exceptions_overrule(
    exceptions: dict[str, Refusal | None], kept: str, refused: Mapping[str, str]
) -> None:
    """This pod may see a node otherwise than its like; only names asked about count."""
    special = {NodeName(name): no for name, no in exceptions.items()}
    result = judge(nodes("a x"), answer("a", memory="x"), special)
    assert list(result.kept) == nodes(kept)
    assert dict(result.refused or {}) == refused


def test_a_pod_that_no_node_can_take_is_refused_everywhere() -> None:
    """The same words for every node, since kube-scheduler counts by words."""
    result = refuse_all(nodes("a b"), invalid("no policy"))
    assert result.kept == ()
    assert result.refused == dict.fromkeys("ab", "Invalid vcuda request: no policy")


def test_an_unknown_node_shares_no_cards() -> None:
    """Not an error: kube-scheduler may know a node before our watch does."""
    expected = Refusal(Reason.NO_CARDS)
    assert expected == UNKNOWN


PAGE = node(
    *cards(20, 20),
    holds=[
        placement("a", 0, 10),
        placement("b", 0, 10),
        placement("c", 1, 15),
        placement("vip", 1, 5, priority=100),
    ],
)


def victims(*names: str, broken: int = 0) -> Victims:
    return Victims(tuple(PodUID(f"uid-{name}") for name in names), broken)


def choose(
    units: int, proposal: Victims, *budgets: Budget, on: NodeName = N
) -> dict[NodeName, Victims]:
    asked = request("high", units=units, priority=10, host=HostAmount())
    facts = Facts(roomy(), budgets)
    return preempt(asked, {on: proposal}, {N: PAGE}.get, FIRST_FIT, facts)


@pytest.mark.parametrize(
    ("units", "proposal", "chosen"),
    [
        pytest.param(10, victims("a"), victims("a"), id="frees-a-card-is-kept"),
        pytest.param(15, victims("a", "c"), victims("a", "c"), id="kept-word-for-word"),
        pytest.param(20, victims("a", "c"), victims("a", "b"), id="mended"),
        pytest.param(15, victims("b"), victims("c"), id="the-fewest-on-one-card"),
        pytest.param(
            10, victims("b", broken=3), victims("b", broken=3), id="violations"
        ),
    ],
)
def test_victims_must_free_one_card(
    units: int, proposal: Victims, chosen: Victims
) -> None:
    """Kept where they do; others where not; never a pod of the same rank or higher."""
    found = choose(units, proposal)[N]
    assert set(found.uids) == set(chosen.uids)
    assert found.budget_violations == chosen.budget_violations


@pytest.mark.parametrize(
    ("units", "proposal", "on"),
    [
        pytest.param(21, victims("a", "b", "c"), N, id="no-card-is-so-large"),
        pytest.param(1, victims("a"), NodeName("unknown"), id="unknown-node"),
        pytest.param(0, victims(), N, id="no-victims-at-all"),
    ],
)
def test_a_node_where_evicting_does_not_help_is_left_out(
    units: int, proposal: Victims, on: NodeName
) -> None:
    """kube-scheduler takes a node with no victims for an error (contracts 1.3)."""
    assert choose(units, proposal, on=on) == {}


def test_victims_without_shares_stay_victims() -> None:
    """They were chosen for something of the node that is not seen here."""
    found = choose(20, victims("cpu-hog", "a"))[N]
    assert set(found.uids) == {"uid-cpu-hog", "uid-a", "uid-b"}


def test_budgets_are_kept_where_they_can_be() -> None:
    """The card of pods that may not be disturbed is cleared last."""
    kept = Budget(frozenset({PodUID("uid-c")}), 0)
    found = choose(15, victims("vip"), kept)[N]
    assert set(found.uids) == {"uid-a", "uid-b"}
    assert found.budget_violations == 0


def test_each_name_gets_its_score() -> None:
    """In the order given; 0 for a node that the ledger does not know."""
    ledger = Ledger()
    ledger.set_cards(NodeName("a"), [card(units=29)])
    names = [NodeName("unknown"), NodeName("a")]
    found = prioritize(names, Scores(ledger).of, SPREAD, request())
    assert found == [("unknown", 0), ("a", 10)]


def test_a_call_may_wait_while_there_is_budget() -> None:
    """A second is saved up for bursts."""
    patience = Patience(0.4, clock=Clock())
    assert patience.allowed_s("a") == 0.4
    patience.spend("a", 0.4)
    patience.spend("b", 0.4)
    assert patience.allowed_s("c") == 0.0


@pytest.mark.parametrize(("passed_s", "allowed_s"), [(0.9, 0.0), (2.1, 0.4)])
def test_the_budget_fills_with_a_fifth_of_the_time(
    passed_s: float, allowed_s: float
) -> None:
    """So that the scheduler loses no more than that."""
    clock = Clock()
    patience = Patience(0.4, clock=clock)
    patience.spend("a", 1.0)
    clock.now += passed_s
    assert patience.allowed_s("b") == allowed_s


def test_the_budget_is_never_more_than_is_saved() -> None:
    """After an hour without refusals too."""
    clock = Clock()
    patience = Patience(0.4, clock=clock)
    clock.now += 3600
    assert patience.allowed_s("a") == 0.4
    patience.spend("a", 0.7)
    assert patience.allowed_s("b") == 0.0


def waits(patience: Patience, namespace: str, clock: Clock, most: int) -> int:
    """How many pods of a namespace, refused one after another, may wait."""
    found = 0
    for _ in range(most):
        waited_s = patience.allowed_s(namespace)
        found += waited_s > 0
        patience.spend(namespace, waited_s)
        clock.now += waited_s
    return found


def test_refused_pods_of_one_namespace_do_not_take_the_time_of_all() -> None:
    """3,000 pods that fit nowhere leave a quarter of what is saved up.

    So the pods of another namespace still wait for the news that may help them.
    """
    clock = Clock()
    patience = Patience(0.02, clock=clock)
    assert waits(patience, "crowd", clock, 3000) <= 45
    assert waits(patience, "victim", clock, 5) == 5


def test_a_namespace_earns_three_quarters_of_what_all_earn() -> None:
    """15 % of the time: 300 ms in two seconds, and what is earned in these."""
    clock = Clock()
    patience = Patience(0.02, clock=clock)
    waits(patience, "crowd", clock, 3000)
    clock.now += 2.0
    assert waits(patience, "crowd", clock, 3000) == pytest.approx(17, abs=1)


def test_a_thousand_namespaces_are_no_more_than_all() -> None:
    """The bound for all together holds, and whoever is done with is forgotten."""
    clock = Clock()
    patience = Patience(0.02, clock=clock)
    total = sum(waits(patience, f"n{n}", clock, 3) for n in range(5000))
    assert 50 <= total <= 64


def test_no_wait_at_all_can_be_asked_for() -> None:
    """GPUSHARE_WAIT_FOR_NEWS_S=0."""
    assert Patience(0.0).allowed_s("a") == 0.0


def test_room_that_comes_while_filter_waits_is_taken() -> None:
    """kube-scheduler heard of the other pod's end a moment before us."""
    extender = ExtenderFixture(wait_for_news_s=20.0)
    extender.ledger.record(placement("old", 0, 20))
    news = Timer(0.05, extender.ledger.release, [PodUID("uid-old")])
    news.start()
    result = extender.verbs.filter(asked(extender.create("new", units=20), "n"))
    news.join()
    assert result.kept == ["n"]


def test_news_that_does_not_help_ends_no_wait() -> None:
    """Filter goes on waiting, and answers no when the time is over."""
    extender = ExtenderFixture(wait_for_news_s=0.1)
    extender.ledger.record(placement("old", 0, 20))
    news = Timer(0.02, extender.ledger.set_cards, [NodeName("m"), [card(units=4)]])
    news.start()
    result = extender.verbs.filter(asked(extender.create("new", units=20), "n"))
    news.join()
    assert list(result.kept) == []


def test_a_pod_that_fits_does_not_wait() -> None:
    """Nor does one that no node can ever take: the budget is whole afterwards."""
    extender = ExtenderFixture(wait_for_news_s=5.0)
    fits = extender.verbs.filter(asked(extender.create("a", units=4), "n"))
    never = extender.verbs.filter(asked(extender.create("b", cores=150), "n"))
    assert (list(fits.kept), list(never.kept)) == (["n"], [])
    assert extender.verbs.patience.allowed_s("default") == 5.0
