"""What the API server says of nodes, written into the ledger."""

import logging

import pytest

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName
from gpushare.informers.nodes import NodeInformer
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from tests.builders import card, event, left, node_json, page

N = NodeName("n")


def test_a_nodes_cards_are_written_down() -> None:
    ledger = Ledger()
    informer = NodeInformer(ledger)
    informer.replace(
        iter([page(node_json("n", card()), token="t"), page(node_json("m"))])
    )
    assert left(ledger.node(N)).units == 29
    informer.apply(event("MODIFIED", node_json("n", card(units=16))))
    assert left(ledger.node(N)).units == 16
    assert informer.knows(NodeName("m"))
    assert not informer.knows(NodeName("x"))


def test_a_node_that_is_gone_is_forgotten() -> None:
    ledger = Ledger()
    informer = NodeInformer(ledger)
    listed = [node_json(name, card()) for name in "abc"]
    informer.replace(iter([page(*listed)]))
    informer.apply(event("DELETED", listed[0]))
    informer.replace(iter([page(listed[2])]))
    assert [record.name for record in ledger.nodes()] == ["c"]
    assert [informer.knows(NodeName(name)) for name in "abc"] == [False, False, True]


def test_a_broken_node_shares_no_cards_until_it_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log says once which and why; the other nodes go on."""
    ledger = Ledger()
    informer = NodeInformer(ledger)
    twice = node_json("n", card(0), card(1, uuid="GPU-0"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            informer.replace(iter([page(twice, node_json("m", card()))]))
    assert [r.message for r in caplog.records] == ["node annotation not understood"]
    assert vars(caplog.records[0])["node"] == "n"
    assert informer.broken() == {"n": "baidu.com/vcuda-cards.cards: has GPU-0 twice"}
    page_of_n = ledger.node(N)
    assert page_of_n.cards == ()
    assert left(ledger.node(NodeName("m"))).units == 29
    informer.apply(event("MODIFIED", node_json("n", card())))
    assert informer.broken() == {}
    assert left(ledger.node(N)).units == 29


def test_a_cordon_on_cards_that_are_not_there_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Ledger()
    informer = NodeInformer(ledger)
    cordon = {names.CORDON: "GPU-O, GPU-0"}
    for _ in range(3):
        informer.replace(iter([page(node_json("n", card(0), annotations=cordon))]))
    assert [r.message for r in caplog.records] == [
        "cordon on cards that the node does not have"
    ]
    assert vars(caplog.records[0])["cards"] == "GPU-O"
    assert vars(caplog.records[0])["node"] == "n"
    page_of_n = ledger.node(N)
    assert page_of_n.summary.cards == 0
    assert informer.broken() == {}
    other = {names.CORDON: "GPU-9"}
    informer.apply(event("MODIFIED", node_json("n", card(0), annotations=other)))
    assert len(caplog.records) == 2
    assert left(ledger.node(N)).units == 29


def test_of_very_many_cards_that_are_not_there_some_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The annotation has room for thousands."""
    cordon = {names.CORDON: ",".join(f"GPU-{number}" for number in range(10, 500))}
    node = node_json("n", card(0), annotations=cordon)
    NodeInformer(Ledger()).apply(event("ADDED", node))
    (messages,) = caplog.records
    assert vars(messages)["cards"].split(",")[::19] == ["GPU-10", "GPU-117"]


def test_a_cordon_before_the_cards_is_no_slip(caplog: pytest.LogCaptureFixture) -> None:
    """The device plugin has yet to say which cards there are, or cannot be read."""
    informer = NodeInformer(Ledger())
    for more in ({}, {names.CARDS: "{"}):
        notes = {names.CORDON: "GPU-0", **more}
        informer.apply(event("MODIFIED", node_json("n", annotations=notes)))
    assert "cordon" not in " ".join(r.message for r in caplog.records)


def test_links_that_cannot_be_read_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cards are used without them."""
    ledger = Ledger()
    informer = NodeInformer(ledger)
    text = encode_cards([card(0), card(1)])
    broken = {names.CARDS: text.replace('"cards"', '"links":[7,7],"cards"')}
    for _ in range(3):
        informer.apply(event("MODIFIED", node_json("n", annotations=broken)))
    assert [r.message for r in caplog.records] == ["links between cards not understood"]
    assert "has 2 scores; 2 cards have 1 pairs" in vars(caplog.records[0])["because"]
    assert informer.broken() == {}
    assert ledger.node(N).summary.cards == 2
    informer.apply(event("MODIFIED", node_json("n", annotations={names.CARDS: text})))
    informer.apply(event("MODIFIED", node_json("n", annotations=broken)))
    assert len(caplog.records) == 2
