"""Whole cards, as many as hundreds of cores and nobody else's; and room by moves."""

import sys
from pathlib import Path

from tests.cluster.manifests import (
    THREE_OF_4_GIB,
    TWO_OF_4_GIB,
    container,
    deployment,
    pod,
)
from tests.cluster.seen import ALLOCATION, allocation, card_of, inside, refused_with
from tests.cluster.site import Site
from tests.testbed.waiting import wait_until

ROOT = Path(__file__).parents[2]

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


def make_room(site: Site, *words: str) -> tuple[int, str]:
    """Run the command on the control-plane host, as an administrator does."""
    own = ["env", f"PYTHONPATH={ROOT}", "COLUMNS=100", sys.executable]
    command = [*own, "-m", "gpusharectl", "make-room", *words]
    done = site.cluster.nodes["cp"].run(command)
    return done.returncode, done.stdout + done.stderr


def test_room_is_made_for_a_pod_of_a_deployment(site: Site) -> None:
    """Of 16 units a card, 9 and 12 are held: 11 are free, on no one card.

    A pod of 4 goes to the other card, whose budget allows it only later.
    """
    site.gpus["cp"].set_cards(TWO_OF_4_GIB)
    for name, units in {"stays": 5, "large": 12, "moves": 4}.items():
        site.create(deployment(name, units))
        wait_until(lambda name=name: site.ready(name), f"{name} to run", 120)
    moves = site.pod_of("moves")
    assert card_of(site, moves) == card_of(site, site.pod_of("stays")) == FIRST
    site.create(deployment("waits", 11))
    waits = wait_until(lambda: site.pods_of("waits"), "a pod")[0]["metadata"]["name"]
    refused_with(site, waits, NOT_ON_ONE)

    site.kubectl("create", "pdb", "keep", "--selector=app=moves", "--min-available=1")
    code, said = make_room(site, waits, "--evict", "--yes")
    assert (code, site.pod_of("moves")) == (3, moves), said
    assert "Not moved: 1 pod that a PodDisruptionBudget protects now." in said

    site.kubectl("delete", "pdb", "keep")
    code, said = make_room(site, waits, "--evict", "--yes")
    assert code == 0, said
    assert "Nothing keeps the room" not in said
    site.wait_running(waits)
    assert card_of(site, waits) == FIRST
    wait_until(lambda: site.ready("moves"), "the moved pod to run", 120)
    assert card_of(site, site.pod_of("moves")) == SECOND
    assert [card["uuid"] for card in site.cards("cp")] == [FIRST, SECOND]
    annotations = site.get("node", "cp")["metadata"]["annotations"]
    assert "baidu.com/vcuda-cordon" not in annotations
