"""Answers and scores that are kept between requests, and what a new shape costs."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from extender.scheduling import filter_cache
from extender.scheduling.filter_cache import KeptAnswers, KeptScores
from gpushare.domain.card_selector import CardSelector
from gpushare.domain.ledger import Ledger
from gpushare.domain.links import with_scores
from gpushare.domain.model import NodeName, PodRequest, Reason, Refusal
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal
from gpushare.domain.policies import Policy
from gpushare.domain.request import MOST_APART
from tests.builders import (
    BEST_FIT,
    FIRST_FIT,
    SPREAD,
    apart,
    card,
    cards,
    placement,
    ref,
    request,
    share,
)
from tests.work import work


def cluster(**units: int) -> Ledger:
    """A ledger of nodes with one card each."""
    ledger = Ledger()
    for name, size in units.items():
        ledger.set_cards(NodeName(name), [card(units=size)])
    return ledger


class Counting:
    """A judge that remembers whom it was asked about."""

    def __init__(self, pending: PodRequest) -> None:
        self.asked = pending
        self.seen: list[str] = []

    def __call__(self, page: Node) -> Refusal | None:
        self.seen.append(page.name)
        return find_refusal(self.asked, page, FIRST_FIT)


def test_the_answer_divides_the_nodes() -> None:
    ledger = cluster(a=29, b=10, c=5)
    ledger.set_cards(NodeName("d"), [])
    answer = KeptAnswers(ledger).answer(request(units=20), FIRST_FIT)
    assert answer.fits == {"a"}
    memory, none = Refusal(Reason.MEMORY), Refusal(Reason.NO_CARDS)
    assert answer.refused == {memory: {"b", "c"}, none: {"d"}}


def test_an_answer_is_mended_by_what_changed() -> None:
    """A placement, a release, a new node, a lost node, a resized card."""
    ledger = cluster(a=29, b=29)
    fitting = KeptAnswers(ledger)

    def told() -> tuple[set[str], set[str]]:
        answer = fitting.answer(request(units=20), FIRST_FIT)
        return set(answer.fits), set().union(*answer.refused.values())

    assert told() == ({"a", "b"}, set())
    ledger.record(placement("p", 0, 10, node="a"))
    assert told() == ({"b"}, {"a"})
    ledger.release(ref("p").uid)
    assert told() == ({"a", "b"}, set())
    ledger.set_cards(NodeName("c"), [card()])
    ledger.forget(NodeName("a"))
    assert told() == ({"b", "c"}, set())
    ledger.set_cards(NodeName("b"), [card(units=3)])
    assert told() == ({"c"}, {"b"})
    ledger.forget(NodeName("b"))
    assert told() == ({"c"}, set())


def test_only_nodes_that_changed_are_judged_again() -> None:
    ledger = cluster(a=29, b=29, c=29)
    fitting, judge = KeptAnswers(ledger), Counting(request(units=20))
    fitting.judged("shape", judge)
    assert sorted(judge.seen) == ["a", "b", "c"]
    judge.seen.clear()
    fitting.judged("shape", judge)
    assert judge.seen == []
    ledger.record(placement("p", 0, 1, node="b"))
    ledger.record(placement("q", 0, 1, node="b"))
    fitting.judged("shape", judge)
    assert judge.seen == ["b"]


def test_one_shape_is_judged_once_for_all_its_pods() -> None:
    ledger = cluster(a=29)
    fitting = KeptAnswers(ledger)
    first = fitting.answer(request("p1", 20), FIRST_FIT)
    assert fitting.answer(request("p2", 20), SPREAD).fits is first.fits


def test_an_answer_is_a_value() -> None:
    ledger = cluster(a=29, b=29, c=5)
    fitting, pending = KeptAnswers(ledger), request(units=20)
    before = fitting.answer(pending, FIRST_FIT)
    ledger.record(placement("p", 0, 10, node="a"))
    ledger.set_cards(NodeName("c"), [card()])
    after = fitting.answer(pending, FIRST_FIT)
    assert after.fits == {"b", "c"}
    assert after.refused == {Refusal(Reason.MEMORY): {"a"}}
    assert before.fits == {"a", "b"}
    assert before.refused == {Refusal(Reason.MEMORY): {"c"}}


def test_an_answer_that_stays_the_same_is_not_copied() -> None:
    """Most changes of a node change no verdict, and the sets are large."""
    ledger = cluster(a=29, b=5)
    fitting, pending = KeptAnswers(ledger), request(units=20)
    before = fitting.answer(pending, FIRST_FIT)
    ledger.record(placement("p", 0, 1, node="a"))
    assert fitting.answer(pending, FIRST_FIT) is before


def test_a_judge_that_fails_leaves_the_answer_to_be_mended() -> None:
    """The nodes that changed are judged by the next one who asks."""
    ledger = cluster(a=29)
    fitting = KeptAnswers(ledger)
    assert fitting.judged("shape", Counting(request(units=20))).fits == {"a"}
    ledger.record(placement("p", 0, 10, node="a"))

    def broken(_page: Node) -> Refusal | None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fitting.judged("shape", broken)
    assert not fitting.judged("shape", Counting(request(units=20))).fits


def test_shapes_are_kept_apart() -> None:
    fitting = KeptAnswers(cluster(a=29, b=10))
    assert fitting.answer(request(units=5), FIRST_FIT).fits == {"a", "b"}
    assert fitting.answer(request(units=5, cores=1), FIRST_FIT).fits == {"a", "b"}
    assert fitting.answer(request(units=20), FIRST_FIT).fits == {"a"}
    assert fitting.answer(apart("p", 5, 6), FIRST_FIT).fits == {"a"}
    assert fitting.answer(apart("p", 6, 5), BEST_FIT).fits == {"a"}


def test_a_shape_asked_long_ago_is_dropped_and_judged_anew() -> None:
    fitting = KeptAnswers(cluster(a=29))
    old, often = Counting(request(units=20)), Counting(request(units=20))
    fitting.judged("old", old)
    for number in range(64):
        fitting.judged("often", often)
        fitting.judged(number, Counting(request(units=number)))
    assert fitting.judged("old", old).fits == {"a"}
    assert (old.seen, often.seen) == (["a", "a"], ["a"])


def test_a_new_shape_is_judged_on_the_names_that_are_asked() -> None:
    """On all nodes only after as many names; kube-scheduler asks about some of many."""
    ledger = cluster(a=29, b=10, c=29)
    fitting, judge = KeptAnswers(ledger), Counting(request(units=20))
    for pending, fits, judged in (
        ("ab", "a", "ab"),
        ("bx", "", "b"),
        ("c", "ac", "abc"),
    ):
        answer = fitting.judged("shape", judge, [NodeName(name) for name in pending])
        assert (answer.fits, judge.seen) == ({*fits}, [*judged])
        judge.seen.clear()
    assert fitting.judged("shape", judge, [NodeName("c")]).fits == {"a", "c"}
    assert judge.seen == []


def test_names_that_one_filter_asks_again_do_not_count() -> None:
    """It may judge several times; else each pod of a new shape would drive one out."""
    fitting, judge = KeptAnswers(cluster(a=29, b=10)), Counting(request(units=20))
    first, second = request(), request()
    for pending, asking in (("ab", first), ("a", first), ("b", first), ("ab", second)):
        fitting.judged("shape", judge, [NodeName(name) for name in pending], asking)
    assert judge.seen == [*"ab", *"a", *"b", *"ab"]
    fitting.judged("shape", judge, [NodeName("a")], request())
    assert judge.seen[6:] == []
    for asking in (first, first, second):
        fitting.judged("other", judge, [NodeName("a")], asking)
    assert judge.seen[6:] == [*"aaa"]


def test_a_new_shape_is_forgotten_after_many_others() -> None:
    """A tenant may make up any number of them."""
    fitting, judge = KeptAnswers(cluster(a=29, b=10)), Counting(request(units=20))
    both = [NodeName("a"), NodeName("b")]
    fitting.judged("shape", judge, both)
    for number in range(300):
        fitting.judged(number, Counting(request(units=1)), both)
    fitting.judged("shape", judge, [NodeName("a")])
    assert judge.seen == [*"ab", *"a"]


def test_many_new_shapes_leave_what_is_kept() -> None:
    """3,000 pods that all differ make none of the others be judged again."""
    fitting, judge = KeptAnswers(cluster(a=29)), Counting(request(units=20))
    fitting.judged("often", judge)
    for number in range(3000):
        fitting.judged(number, Counting(request(units=1)), [NodeName("a")])
    fitting.judged("often", judge)
    assert judge.seen == ["a"]


def test_an_answer_older_than_the_journal_is_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes that went meanwhile are not left behind in it."""
    monkeypatch.setattr("gpushare.domain.ledger._LONGEST_JOURNAL", 10)
    ledger = cluster(gone=29, a=5)
    fitting, judge = KeptAnswers(ledger), Counting(request(units=20))
    fitting.judged("shape", judge)
    ledger.forget(NodeName("gone"))
    for turn in range(20):
        ledger.set_cards(NodeName("a"), [card(units=20 + turn % 2)])
    judge.seen.clear()
    answer = fitting.judged("shape", judge)
    assert answer.fits == {"a"}
    assert not any(answer.refused.values())
    assert judge.seen == ["a"]


@pytest.fixture
def ledger() -> Ledger:
    """Four nodes: full, half full, empty, and one without cards."""
    ledger = Ledger()
    for name, units in {"full": 29, "half": 20, "empty": 29}.items():
        ledger.set_cards(NodeName(name), cards(units))
    ledger.set_cards(NodeName("bare"), ())
    ledger.record(placement("p", units=29, node="full"))
    ledger.record(placement("q", units=10, node="half"))
    return ledger


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that were scored, in order."""
    seen: list[str] = []
    score = filter_cache.score_node

    def counting(node: Node, policy: Policy) -> int:
        seen.append(node.name)
        return score(node, policy)

    monkeypatch.setattr(filter_cache, "score_node", counting)
    return seen


def test_each_node_has_its_score(ledger: Ledger) -> None:
    """0 to 10, for each policy; one without cards counts as full."""
    names, scores = ("full", "half", "empty", "bare"), KeptScores(ledger)
    for policy, expected in (
        (FIRST_FIT, [10, 5, 0, 10]),
        (SPREAD, [0, 5, 10, 0]),
        (BEST_FIT, [10, 5, 0, 10]),
        (FIRST_FIT, [10, 5, 0, 10]),
    ):
        assert scores.of(policy) == dict(zip(names, expected, strict=True))


def test_only_what_changed_is_scored_again(ledger: Ledger, scored: list[str]) -> None:
    scores = KeptScores(ledger)
    scores.of(FIRST_FIT)
    scored.clear()
    assert scores.of(FIRST_FIT)[NodeName("full")] == 10
    assert scored == []
    ledger.release(placement("p").pod.uid)
    assert scores.of(FIRST_FIT)[NodeName("full")] == 0
    assert scored == ["full"]


def test_what_was_given_stays_as_it_is(ledger: Ledger) -> None:
    scores = KeptScores(ledger)
    before = scores.of(FIRST_FIT)
    ledger.record(placement("r", units=1, node="full"))
    assert scores.of(FIRST_FIT) is before
    ledger.release(placement("p").pod.uid)
    ledger.forget(NodeName("bare"))
    after = scores.of(FIRST_FIT)
    assert (before[NodeName("full")], after[NodeName("full")]) == (10, 1)
    assert (NodeName("bare") in before, NodeName("bare") in after) == (True, False)


def test_a_journal_that_has_gone_on_is_no_harm(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.domain.ledger._LONGEST_JOURNAL", 4)
    scores = KeptScores(ledger)
    scores.of(SPREAD)
    ledger.forget(NodeName("bare"))
    for number in range(8):
        ledger.record(placement(f"n{number}", units=1, node="empty"))
    assert scores.of(SPREAD) == {"full": 0, "half": 5, "empty": 7}


def test_links_are_scored_where_they_count(ledger: Ledger) -> None:
    """Of nodes with links, for one claim of several cards; a pod that fits nowhere has
    no score."""
    name, scores, pair = NodeName("linked"), KeptScores(ledger), request(cores=200)
    assert scores.of_links(pair, FIRST_FIT) == {}
    ledger.set_cards(name, with_scores(cards(64, 64, 64), (10, 10, 250)))
    assert scores.of_links(pair, FIRST_FIT) == {name: 250}
    assert scores.of_links(request(cores=100), FIRST_FIT) == {}
    first = replace(pair, cards=CardSelector.of(uuids=["GPU-0", "GPU-1"]))
    assert scores.of_links(first, FIRST_FIT) == {name: 10}
    ledger.record(placement("r", on="GPU-1", units=1, node="linked"))
    assert scores.of_links(pair, FIRST_FIT) == {name: 10}
    assert scores.of_links(request(cores=300), FIRST_FIT) == {}
    ledger.set_cards(name, cards(64, 64, 64))
    assert scores.of_links(pair, FIRST_FIT) == {}


def test_the_scores_of_few_shapes_are_kept(
    ledger: Ledger, scored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any pod may ask for a new shape; what was asked last is kept."""
    monkeypatch.setattr(filter_cache, "_MOST_SHAPES", 2)
    scores = KeptScores(ledger)
    for policy in (FIRST_FIT, SPREAD, FIRST_FIT):
        scores.of(policy)
    scores.of_links(request(cores=200), FIRST_FIT)
    scored.clear()
    scores.of(FIRST_FIT)
    assert scored == []
    scores.of(SPREAD)
    assert len(scored) == 4


@pytest.fixture(scope="module")
def ratio() -> Callable[[PodRequest], float]:
    """The work of a new shape, in that of a new shape that fits everywhere."""
    random, ledger = Random(7), Ledger()
    for number in range(100):
        name = f"node-{number:03d}"
        uuids = [f"GPU-{number:08x}-{i:04x}" for i in range(8)]
        node_cards = [
            card(i, 94, uuid=u, model=f"A{i % 2}") for i, u in enumerate(uuids)
        ]
        ledger.set_cards(NodeName(name), node_cards)
        shares = [share(u, random.randint(5, 40), random.randint(5, 30)) for u in uuids]
        ledger.record(placement(f"held-{name}", node=name, shares=shares))
    fitting = KeptAnswers(ledger)
    fitting.answer(request(units=3), FIRST_FIT)  # Each node sums itself up once.
    fits = work(lambda: fitting.answer(request(units=4), FIRST_FIT))
    return lambda pending: work(lambda: fitting.answer(pending, FIRST_FIT)) / fits


def limited(**lists: list[str]) -> PodRequest:
    return replace(request(units=5), cards=CardSelector.of(**lists))


SOME = [f"GPU-{n:08x}" for n in range(90, 122)]


@pytest.mark.parametrize(
    ("pending", "most"),
    [
        pytest.param(request(units=5), 1.1, id="fits"),
        pytest.param(request(units=1000), 1.6, id="too large"),
        pytest.param(request(cores=800), 1.3, id="whole cards"),
        pytest.param(limited(uuids=SOME), 8, id="32 uuids"),
        pytest.param(limited(uuids=["!GPU-00000001"]), 6, id="not a uuid"),
        pytest.param(limited(models=["T4", "*b*", "A9*"]), 6, id="models"),
        pytest.param(limited(models=["!A1"]), 8, id="not a model"),
        pytest.param(apart("p", *[2] * MOST_APART), 10, id="apart on one card"),
        pytest.param(apart("p", *[200] * MOST_APART), 1.8, id="apart too large"),
        pytest.param(apart("p", *[60] * MOST_APART), 20, id="apart too many"),
        pytest.param(apart("p", *range(20, 20 + MOST_APART)), 30, id="apart"),
        pytest.param(apart("p", *range(48, 48 + 9)), 20, id="apart and large"),
        pytest.param(apart("p", *range(35, 35 + 12)), 60, id="apart and hopeless"),
    ],
)
def test_what_a_new_shape_costs(
    ratio: Callable[[PodRequest], float], pending: PodRequest, most: float
) -> None:
    """Refusals cost what a fit costs, and nothing costs hundreds of times as much."""
    assert ratio(pending) <= most


def test_kept_answers_tell_wishes_apart() -> None:
    ledger = Ledger()
    for name, model in {"a": "Tesla P4", "b": "Tesla T4"}.items():
        ledger.set_cards(NodeName(name), [card(0, 29, model=model)])
    fitting = KeptAnswers(ledger)
    plain = request(units=5)
    assert fitting.answer(plain, FIRST_FIT).fits == {"a", "b"}
    for model, name in {"Tesla P4": "a", "Tesla T4": "b"}.items():
        wishing = replace(plain, cards=CardSelector.of(models=[model]))
        assert fitting.answer(wishing, FIRST_FIT).fits == {name}
    assert fitting.answer(plain, FIRST_FIT).fits == {"a", "b"}
