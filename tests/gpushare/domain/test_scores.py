"""The scores of all nodes, kept and mended."""

import pytest

from gpushare.domain import cache as room
from gpushare.domain.cache import Scores
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from tests.builders import BEST_FIT, FIRST_FIT, SPREAD, cards, placement


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
    score = room.score

    def counting(node: Node, policy: Policy) -> int:
        seen.append(node.name)
        return score(node, policy)

    monkeypatch.setattr(room, "score", counting)
    return seen


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(FIRST_FIT, [10, 5, 0, 10], id="first-fit-fills"),
        pytest.param(BEST_FIT, [10, 5, 0, 10], id="best-fit-fills"),
        pytest.param(SPREAD, [0, 5, 10, 0], id="spread-spreads"),
    ],
)
def test_each_node_has_its_score(
    ledger: Ledger, policy: Policy, expected: list[int]
) -> None:
    """0 to 10; one without cards has nothing to give, and counts as full."""
    names = ("full", "half", "empty", "bare")
    assert Scores(ledger).of(policy) == dict(zip(names, expected, strict=True))


def test_policies_are_kept_apart(ledger: Ledger) -> None:
    """Asked in turns, each has its own."""
    scores = Scores(ledger)
    for _ in range(2):
        assert scores.of(FIRST_FIT)[NodeName("full")] == 10
        assert scores.of(SPREAD)[NodeName("full")] == 0


def test_only_what_changed_is_scored_again(ledger: Ledger, scored: list[str]) -> None:
    """However often it is asked; a pod that goes makes its node emptier."""
    scores = Scores(ledger)
    scores.of(FIRST_FIT)
    scored.clear()
    assert scores.of(FIRST_FIT)[NodeName("full")] == 10
    assert scored == []
    ledger.release(placement("p").pod.uid)
    assert scores.of(FIRST_FIT)[NodeName("full")] == 0
    assert scored == ["full"]


def test_what_was_given_stays_as_it_is(ledger: Ledger) -> None:
    """What changes later is in the next answer; nothing is copied without need."""
    scores = Scores(ledger)
    before = scores.of(FIRST_FIT)
    ledger.record(placement("r", units=1, node="full"))
    assert scores.of(FIRST_FIT) is before
    ledger.release(placement("p").pod.uid)
    ledger.forget(NodeName("bare"))
    after = scores.of(FIRST_FIT)
    assert (before[NodeName("full")], after[NodeName("full")]) == (10, 1)
    assert (NodeName("bare") in before, NodeName("bare") in after) == (True, False)


def test_a_node_that_is_gone_has_no_score(ledger: Ledger) -> None:
    """And has one again when it comes back."""
    scores = Scores(ledger)
    scores.of(SPREAD)
    ledger.forget(NodeName("empty"))
    assert "empty" not in scores.of(SPREAD)
    ledger.set_cards(NodeName("empty"), cards(29))
    assert scores.of(SPREAD)[NodeName("empty")] == 10


def test_a_journal_that_has_gone_on_is_no_harm(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has not asked for long has everything scored anew."""
    monkeypatch.setattr("gpushare.domain.ledger._LONGEST_JOURNAL", 4)
    scores = Scores(ledger)
    scores.of(SPREAD)
    ledger.forget(NodeName("bare"))
    for number in range(8):
        ledger.record(placement(f"n{number}", units=1, node="empty"))
    assert scores.of(SPREAD) == {"full": 0, "half": 5, "empty": 7}
