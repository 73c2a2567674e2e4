"""prioritize: how much each node is liked."""

import pytest

from extender.prioritize import prioritize
from gpushare.domain.model import NodeName
from gpushare.domain.policies import Policy
from tests.builders import (
    BEST_FIT,
    FIRST_FIT,
    SPREAD,
    cards,
    node,
    placement,
    request,
)

NAMES = [NodeName(name) for name in ("full", "half", "empty", "unknown")]
PAGES = {
    NodeName("full"): node(holds=[placement(units=29)], name="full"),
    NodeName("half"): node(*cards(20), holds=[placement(units=10)], name="half"),
    NodeName("empty"): node(name="empty"),
}


@pytest.mark.parametrize(
    ("policy", "scores"),
    [
        pytest.param(FIRST_FIT, [10, 5, 0, 0], id="first-fit-fills"),
        pytest.param(BEST_FIT, [10, 5, 0, 0], id="best-fit-fills"),
        pytest.param(SPREAD, [0, 5, 10, 0], id="spread-spreads"),
    ],
)
def test_each_name_gets_its_score(policy: Policy, scores: list[int]) -> None:
    """0 to 10, in the order given; 0 for a node that the ledger does not know."""
    found = prioritize(NAMES, PAGES.get, policy, request())
    assert found == list(zip(NAMES, scores, strict=True))


def test_a_node_without_cards_is_no_surprise() -> None:
    """Filter refuses it, but whoever asks gets a score in bounds."""
    bare = node(*cards(0), name="bare")
    pages = {NodeName("bare"): bare}
    scored = prioritize([NodeName("bare")], pages.get, SPREAD, request())
    assert scored == [("bare", 0)]
