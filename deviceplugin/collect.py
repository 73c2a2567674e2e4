"""The answer of ``GET /v1/collect``, as BIE's edge agent reads it (seed 000). Pure.

The agent waits without a timeout and gives up all its pods for one answer that is no
success, so this is made of what was read last and always is one.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from deviceplugin.fields import FB_TOTAL, FB_USED, MEMORY
from deviceplugin.snapshot import Snapshot

Unit = Literal["mib", "bytes"]
"""What memory is counted in; the seed does not say, its numbers look like MiB."""

_IN_A_MIB = {"mib": 1, "bytes": 1 << 20}


def collect_page(snapshot: Snapshot, node: str, unit: Unit = "mib") -> dict[str, Any]:
    """Give the body: under the node's name its cards, by index, and their sums.

    A card whose memory in use is unknown is left out of everything: counted as unused
    it would look free. ``percent`` is a fraction, of the node by its sums.
    """
    known = [
        (used * _IN_A_MIB[unit], total * _IN_A_MIB[unit])
        for used, total in _cards(snapshot)
    ]
    sums = (sum(used for used, _ in known), sum(total for _, total in known))
    body: dict[str, Any] = {
        "deviceNum": len(known),
        "devices": [_memory(one) for one in known],
    }
    return {node: body | _memory(sums)}


def _cards(snapshot: Snapshot) -> Iterator[tuple[int, int]]:
    """Give used and total MiB of each card that told them."""
    found = snapshot.rounds.get(MEMORY)
    if found is None or snapshot.found is None:
        return
    for card in sorted(snapshot.found.cards, key=lambda card: card.index):
        says = found.cards.get(card.uuid)
        used = None if says is None else says.values.get(FB_USED)
        if says is not None and used is not None:
            yield int(used), int(says.values.get(FB_TOTAL, card.memory_mib))


def _memory(pair: Sequence[int]) -> dict[str, Any]:
    used, total = pair
    percent = used / total if total else 0.0
    return {"percent": percent, "totalMemory": total, "usedMemory": used}
