"""Pods that name the cards that they may have, and came without a placement."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.cards.devices import Cards, card_key
from gpushare.kube.names import MODELS
from gpushare.kube.names import UUIDS as WANTED
from gpusharectl.demo.devices import CannotStartYetError
from tests.deviceplugin.node_fixture import UUIDS, NodeFixture, found_card, visible


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFixture]:
    cards = found_card(0), replace(found_card(1), model="Tesla T4")
    with NodeFixture(tmp_path, *cards) as made:
        yield made


def on_card(index: int) -> Callable[..., list[str]]:
    """kubelet's own choice: this card's ids, whatever was planned."""

    def prefer(
        _: Cards,
        resource: str,
        available: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> list[str]:
        key = card_key(UUIDS[index])
        return [one for one in available if one.startswith(key)][:size]

    return prefer


@pytest.mark.parametrize(
    ("key", "text", "card"),
    [
        (MODELS, "tesla t4", 1),
        (WANTED, UUIDS[1], 1),
        (MODELS, "!Tesla P4", 1),
        (WANTED, f"!{UUIDS[0]}", 1),
    ],
)
def test_it_gets_one_of_them(node: NodeFixture, key: str, text: str, card: int) -> None:
    """Here too, where nobody else has chosen."""
    pod = node.bind("a", 20, 1, card=None, annotations={key: text})
    assert visible(node.run(pod)["main"]) == (UUIDS[card],)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Tesla P4", f"kubelet chose card {UUIDS[1]}, excluded by {MODELS}"),
        ("!Tesla T4", f"kubelet chose card {UUIDS[1]}, excluded by {MODELS}"),
        ("Tesla *", ""),
        ("!A10", ""),
    ],
)
def test_a_swap_onto_another_card_waits(
    node: NodeFixture, text: str, words: str
) -> None:
    """kubelet chose for itself, and it is not a card that the pod may have."""
    pod = node.bind("a", 20, 1, card=0, annotations={MODELS: text})
    node.serving.admission.prefer = on_card(1)  # type: ignore[method-assign]
    if not words:
        assert visible(node.run(pod)["main"]) == (UUIDS[1],)
        return
    node.admit(pod)
    with pytest.raises(CannotStartYetError, match=re.escape(words)):
        node.devices.start(pod["metadata"]["uid"], "main")
    assert node.actual("a") is None


def test_lists_that_change_later_stop_nobody(node: NodeFixture) -> None:
    """The card was the pod's when it was placed, and is now."""
    pod = node.bind("a", 20, 1, card=0, annotations={MODELS: "Tesla T4"})
    assert visible(node.run(pod)["main"]) == (UUIDS[0],)


def test_it_is_turned_away_where_there_is_none(node: NodeFixture) -> None:
    """In the extender's own words."""
    pod = node.bind("a", 20, 1, card=None, annotations={MODELS: "H100"})
    words = "No shared cards that baidu.com/vcuda-models allows"
    assert words in node.refuse(pod)
