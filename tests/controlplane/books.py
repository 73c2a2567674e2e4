"""What the API server's objects add up to, card by card."""

import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal

from tests.controlplane.world import CARDS, World, node_of, shares_of
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.rest import Json, Rest

Card = tuple[str, str]
"""Node and UUID."""


@dataclass
class Book:
    """Every card with its units, and what pods hold of it: cores and units."""

    units: dict[Card, int]
    held: dict[Card, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def free(self) -> dict[Card, tuple[int, int]]:
        """Give cores and units left on each card."""
        return {
            card: (
                100 - sum(cores for cores, _ in self.held[card]),
                units - sum(held for _, held in self.held[card]),
            )
            for card, units in self.units.items()
        }


def asked(a_pod: Json) -> tuple[int, int]:
    """Give the cores and units of a pod whose containers run together."""
    requests = [c["resources"]["requests"] for c in a_pod["spec"]["containers"]]
    cores = sum(number(each.get(CORE, "0")) for each in requests)
    return cores, sum(number(each.get(MEMORY, "0")) for each in requests)


def number(quantity: str) -> int:
    scale = {"m": Decimal("0.001"), "k": Decimal(1000)}.get(quantity[-1], Decimal(1))
    return int(Decimal(quantity.rstrip("mk")) * scale)


def checked_book(rest: Rest) -> Book:
    """Add up what pods hold, insisting that nothing is wrong with it.

    No card is over its capacity; every bound pod that asks has a placement of its own,
    on cards of its node, for just what it asks; whole cards are nobody else's.
    """
    book = Book(_capacities(rest.items("/api/v1/nodes")))
    for a_pod in rest.items("/api/v1/pods"):
        if node_of(a_pod) and a_pod["status"]["phase"] not in {"Succeeded", "Failed"}:
            _charge(book, a_pod)
    over = {card: free for card, free in book.free().items() if min(free) < 0}
    assert not over, f"cards over their capacity: {over}"
    return book


def assert_refused(world: World, a_pod: Json, says: str) -> None:
    """Insist that the pod waits, and that its event begins so."""
    verdict = world.verdict(a_pod)
    name = a_pod["metadata"]["name"]
    assert not verdict.node, f"{name} runs on {verdict.node}, cards {verdict.cards}"
    count = len(world.nodes)
    words = f"0/{count} nodes are available: {says}. "
    right = f"{verdict.event} ".startswith(words)
    assert right, f"the event says something else: {verdict.event}"
    checked_book(world.rest)


def pending_though_fitting(rest: Rest) -> list[str]:
    """Name the pods that wait although one node has the cards for them."""
    book = checked_book(rest)
    waiting = [a_pod for a_pod in rest.items("/api/v1/pods") if not node_of(a_pod)]
    return [p["metadata"]["name"] for p in waiting if _fits(book, *asked(p))]


def _capacities(nodes: Iterable[Json]) -> dict[Card, int]:
    cards: dict[Card, int] = {}
    for node in nodes:
        name = node["metadata"]["name"]
        text = node["metadata"].get("annotations", {}).get(CARDS)
        # A broken annotation gives no cards, so that no pod may be there at all.
        with suppress(TypeError, ValueError):
            for card in json.loads(text)["cards"]:
                cards[name, card["uuid"]] = card["units"]
    return cards


def _charge(book: Book, a_pod: Json) -> None:
    name, node = a_pod["metadata"]["name"], node_of(a_pod)
    cores, units = asked(a_pod)
    if not (cores or units):
        return
    shares = shares_of(a_pod)
    assert shares, f"{name} is bound without a placement"
    for uuid, share_cores, share_units in shares:
        assert (node, uuid) in book.units, f"{name} is on no card of {node}: {uuid}"
        book.held[node, uuid].append((share_cores, share_units))
    if cores < 100:
        assert [(c, u) for _, c, u in shares] == [(cores, units)], name
    else:
        full = [(100, book.units[node, uuid]) for uuid, _, _ in shares]
        assert [(c, u) for _, c, u in shares] == full, name
        assert len(shares) == cores // 100, name
        assert units <= sum(u for _, u in full), name


def _fits(book: Book, cores: int, units: int) -> bool:
    if cores < 100:
        rooms = book.free().values()
        return any(cores <= room[0] and units <= room[1] for room in rooms)
    untouched: dict[str, list[int]] = defaultdict(list)
    for (node, uuid), size in book.units.items():
        if not book.held[node, uuid]:
            untouched[node].append(size)
    count = cores // 100
    return any(
        len(sizes) >= count and sum(sorted(sizes)[-count:]) >= units
        for sizes in untouched.values()
    )
