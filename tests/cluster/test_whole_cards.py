"""Whole cards: as many as hundreds of cores, and nobody else's."""

from tests.cluster.manifests import THREE_OF_4_GIB, container, pod
from tests.cluster.seen import ALLOCATION, allocation, card_of, inside, refused_with
from tests.cluster.site import Site

FIRST, SECOND, THIRD = (card.uuid for card in THREE_OF_4_GIB)
NOT_ON_ONE = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory on one"
TOUCHED = "0/1 nodes are available: 1 Insufficient untouched cards."


def test_two_whole_cards(site: Site) -> None:
    """200 cores are two cards, all of them; others get the third, or wait."""
    site.gpus["cp"].set_cards(THREE_OF_4_GIB)
    site.create(pod("pair", container("main", None, 200)))
    site.wait_running("pair")
    assert site.visible("pair") == [FIRST, SECOND]
    told = allocation(inside(site, "pair", "cat", ALLOCATION))
    assert told == dict.fromkeys((FIRST, SECOND), (100, 16, 4096))

    site.create(pod("small", container("main", 4, 1)))
    site.wait_running("small")
    assert card_of(site, "small") == THIRD
    site.create(pod("large", container("main", 14, 1)))
    refused_with(site, "large", NOT_ON_ONE)

    site.kubectl("delete", "pod", "pair")
    site.wait_running("large")
    assert card_of(site, "large") == FIRST
    site.create(pod("pair", container("main", None, 200)))
    refused_with(site, "pair", TOUCHED)
    site.kubectl("delete", "pod", "large")
    site.wait_running("pair")
    assert site.visible("pair") == [FIRST, SECOND]
