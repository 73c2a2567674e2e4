"""prioritize: how much each node is liked."""

from extender.scheduling.service import prioritize
from gpushare.domain.cache import Scores
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName
from tests.builders import SPREAD, card, request


def test_each_name_gets_its_score() -> None:
    """In the order given; 0 for a node that the ledger does not know."""
    ledger = Ledger()
    ledger.set_cards(NodeName("a"), [card(units=29)])
    names = [NodeName("unknown"), NodeName("a")]
    found = prioritize(names, Scores(ledger).of, SPREAD, request())
    assert found == [("unknown", 0), ("a", 10)]
