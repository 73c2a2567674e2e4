"""Which card and which node a policy likes best."""

import re
from pathlib import Path

import pytest

from gpushare.domain.model import Amount, Reason, Refusal
from gpushare.domain.policies import POLICIES, Policy, PolicyChoice
from tests.builders import card, node, placement, policy, request


def best(chosen: Policy, rooms: list[tuple[int, int]]) -> int:
    """The index of the card liked best, from (cores, units) left on each."""
    ranks = [chosen.rank(card(i), Amount(*room)) for i, room in enumerate(rooms)]
    return ranks.index(min(ranks))


@pytest.mark.parametrize(
    ("name", "rooms", "index"),
    [
        ("first-fit", [(10, 10), (90, 90), (5, 5)], 0),
        ("best-fit", [(10, 10), (90, 90), (5, 5)], 2),
        ("best-fit", [(50, 10), (20, 10)], 1),
        ("best-fit", [(50, 10), (50, 10)], 0),
        ("spread", [(10, 10), (90, 90), (5, 5)], 1),
        ("spread", [(20, 10), (50, 10)], 1),
        ("spread", [(50, 10), (50, 10)], 0),
        ("frag", [(10, 10), (90, 90), (5, 5)], 2),
    ],
)
def test_the_card_liked_best(
    name: str, rooms: list[tuple[int, int]], index: int
) -> None:
    assert best(policy(name), rooms) == index


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("first-fit", [0, 1, 5, 10]),
        ("best-fit", [0, 1, 5, 10]),
        ("spread", [10, 9, 5, 0]),
        ("frag", [0, 1, 5, 10]),
    ],
)
def test_the_node_score(name: str, scores: list[int]) -> None:
    """Packing likes full nodes and spreading empty ones; any use at all counts.

    Without somebody who has learned, frag is best-fit.
    """
    pages = [node(card(units=100), holds=[placement(units=n)]) for n in (1, 50, 100)]
    by_node = [POLICIES[name].node_score(page) for page in [node(), *pages]]
    assert by_node == scores


@pytest.mark.parametrize("name", POLICIES)
def test_the_score_stays_within_kube_schedulers_range(name: str) -> None:
    for page in (
        node(card(units=1), holds=[placement(units=999, cores=999)]),
        node(card(healthy=False)),
        node(),
    ):
        assert 0 <= POLICIES[name].node_score(page) <= 10


@pytest.mark.parametrize(
    ("choice", "wish", "chosen"),
    [
        (PolicyChoice(), None, ("first-fit", "index")),
        (PolicyChoice("spread", "uuid"), None, ("spread", "uuid")),
        (PolicyChoice("spread", "uuid"), "best-fit", ("best-fit", "uuid")),
    ],
)
def test_a_pods_wish_goes_before_the_clusters_choice(
    choice: PolicyChoice, wish: str | None, chosen: tuple[str, str]
) -> None:
    """The default is as seed 001 states placement; the card order is the cluster's."""
    policy = choice.policy(wish)
    assert (policy.name, policy.card_order) == chosen


@pytest.mark.parametrize(
    ("wish", "words"),
    [("pack", '"pack"'), ("", '""'), ("a%sb\n", '"asb"'), ("First-Fit", '"First-Fit"')],
)
def test_an_unknown_policy_is_refused_with_the_names(wish: str, words: str) -> None:
    """The user's own words lose what would spoil the event."""
    no = PolicyChoice().policy(wish)
    assert no == Refusal(
        Reason.INVALID,
        f"no policy {words}; known are first-fit, best-fit, spread, frag",
    )


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("first-fit", "the first card by UUID with room"),
        ("best-fit", "the card with the least room that is enough"),
        ("spread", "the card with the most room"),
        ("frag", "the card with the best score"),
    ],
)
def test_the_sentence_of_a_policy(name: str, rule: str) -> None:
    assert policy(name, order="uuid").explain(request()) == f"{name} takes {rule}"


def test_whole_cards_have_a_sentence_of_their_own() -> None:
    sentence = policy().explain(request(cores=200))
    assert sentence == "whole cards are taken from the largest untouched ones"


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_has_a_sentence(name: str) -> None:
    """As a part of ``why``'s sentence: it ends without a full stop."""
    rule = POLICIES[name].takes.format(order="index")
    assert rule.startswith("the ")
    assert not rule.endswith(".")


def test_the_protocol_names_each() -> None:
    page = Path(__file__).parents[3] / "docs" / "protocol.md"
    (row,) = (
        line
        for line in page.read_text().splitlines()
        if line.startswith("| `baidu.com/vcuda-policy`")
    )
    assert set(re.findall(r"`([a-z-]+)`", row)) == set(POLICIES)
