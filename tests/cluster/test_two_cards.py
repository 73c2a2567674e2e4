"""Seed 001, one machine with two cards, done literally."""

from tests.cluster.manifests import (
    SEED_COMMAND,
    TWO_OF_4_GIB,
    TWO_P4,
    container,
    deployment,
    pod,
)
from tests.cluster.manifests import TWO_CARD_APPS as APPS
from tests.cluster.seen import card_of, refused_with
from tests.cluster.site import EDGE, Site
from tests.testbed.waiting import wait_until

SPLIT = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory on one card."


def test_two_cards_of_4_gib(site: Site) -> None:
    """2 and 2 GiB share card 1; 2 and 3 GiB have a card each.

    80 percent of a card leave no room for another such part: one has it to itself.
    """
    site.gpus["cp"].set_cards(TWO_OF_4_GIB)
    first, second = (card.uuid for card in TWO_OF_4_GIB)
    site.create(pod("ai-1", container("main", 8, 1)))
    site.create(pod("ai-2", container("main", 8, 1)))
    site.wait_running("ai-1", "ai-2")
    assert [card_of(site, "ai-1"), card_of(site, "ai-2")] == [first, first]

    site.kubectl("delete", "pod", "ai-2")
    site.create(pod("ai-2", container("main", 12, 1)))
    site.wait_running("ai-2")
    assert [card_of(site, "ai-1"), card_of(site, "ai-2")] == [first, second]

    site.kubectl("delete", "pod", "ai-1", "ai-2")
    site.create(*(pod(f"most-{n}", container("main", 13, 1)) for n in range(2)))
    site.wait_running("most-0", "most-1")
    assert {card_of(site, f"most-{n}") for n in range(2)} == {first, second}
    site.create(pod("more", container("main", 4, 1)))
    refused_with(site, "more", SPLIT)


def test_three_apps_on_two_p4(site: Site) -> None:
    """Cards of 29 units: 4 and 20 share one, the other 20 has the other.

    Inside, each has number 0; by the UUID it is one of the host's list.
    """
    site.gpus["cp"].set_cards(TWO_P4)
    assert site.allocatable("cp") == (200, 58)
    literal = [deployment(*one, script=SEED_COMMAND) for one in APPS.items()]
    site.create(*literal, namespace=EDGE)
    wait_until(lambda: site.ready(*APPS, namespace=EDGE), "all three apps", 120)

    host = site.gpus["cp"].host_list()
    assert [line.partition(": ")[0] for line in host] == ["GPU 0", "GPU 1"]
    groups: dict[str, list[int]] = {}
    for name, units in APPS.items():
        seen = site.smi(site.pod_of(name, EDGE), namespace=EDGE)
        (line,) = [line for line in host if line[len("GPU 0") :] in seen]
        assert seen == f"GPU 0{line[len('GPU 0') :]}\n"
        groups.setdefault(line, []).append(units)
    assert sorted(groups.values()) == [[4, 20], [20]]
    assert set(groups) == set(host)
