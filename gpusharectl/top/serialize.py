"""Top as data: what ``-o json`` and ``-o yaml`` give. Pure.

The shape is a promise, as inspect's: fields may come, none goes or changes its meaning
while ``v`` stays. Always pods and cards, whatever ``--by``; ``-n`` leaves out pods, and
``--node`` everything of other nodes. Amounts have ``cores``, ``units`` and
``memory_mib``. Memory in MiB; ``sm_percent`` and ``busy_percent`` of the whole card, of
which a core is one hundredth. null: nobody knows, or it does not apply; 0 is idle::

    v         1
    at        when it was looked at, RFC 3339
    books     {from: "extender" | "pods and nodes", because}
    totals    {cards, memory_mib, allotted_mib, used_mib, cards_told}
    nodes     [{name, told, because}]: whether its exporter told, else why not
    cards     [{node, uuid, index, model, units, memory_mib, healthy, cordoned,
              allotted: amount, used_mib, busy_percent, celsius, watts, outside_mib,
              unattributed_mib, sm_source, flags}]
    pods      [{namespace, name, uid, node, card, index, stay, whole,
              allotted: amount, used_mib, sm_percent, idle_s, containers, flags}]
      containers  [{name, allotted: amount, used_mib, sm_percent, last_busy, over}]
      flags   [{sign, words, do}]
    warnings  [{about, what, do}]

``used_mib`` of the totals is of the ``cards_told`` cards of which it is known.
``outside_mib`` is the memory of processes outside Kubernetes, ``unattributed_mib`` what
is in use less all that processes are known to use. ``stay`` as inspect's; null, and
``allotted`` too, for a pod that uses a card without a share of it. ``last_busy`` is in
seconds since 1970 by that node's clock, and ``idle_s`` since then. Signs: over,
no-share, unplaced, gone, idle, leaving, not-started, sick, cordoned, outside,
unattributed.
"""

from collections.abc import Iterable

from gpushare.domain.model import UNIT_MIB, Amount
from gpusharectl.state.serialize import (
    VERSION,
    Data,
    amount_data,
    books_data,
    trouble_data,
)
from gpusharectl.top.rows import CardRow, ContainerRow, Flag, PodRow, Top


def top_data(top: Top) -> Data:
    """Give all of it, whatever the screen leaves out."""
    return {
        "v": VERSION,
        "at": top.at.isoformat(),
        "books": books_data(top.books),
        "totals": _totals(top.cards),
        "nodes": [
            {"name": one.name, "told": one.told, "because": one.because or None}
            for one in top.nodes
        ],
        "cards": [_card(one) for one in top.cards],
        "pods": [_pod(one) for one in top.pods],
        "warnings": trouble_data(top.troubles),
    }


def _totals(cards: Iterable[CardRow]) -> Data:
    rows = list(cards)
    known = [one for one in (row.used_mib for row in rows) if one is not None]
    held = sum(min(row.allotted.units, row.card.units) for row in rows)
    return {
        "cards": len(rows),
        "memory_mib": sum(row.card.units for row in rows) * UNIT_MIB,
        "allotted_mib": held * UNIT_MIB,
        "used_mib": sum(known) if known else None,
        "cards_told": len(known),
    }


def _card(row: CardRow) -> Data:
    card = row.card
    return {
        "node": row.node,
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model or None,
        "units": card.units,
        "memory_mib": card.units * UNIT_MIB,
        "healthy": card.healthy,
        "cordoned": card.cordoned,
        "allotted": amount_data(row.allotted),
        "used_mib": row.used_mib,
        "busy_percent": row.busy,
        "celsius": row.celsius,
        "watts": row.watts,
        "outside_mib": row.outside_mib,
        "unattributed_mib": row.unattributed_mib,
        "sm_source": row.sm_source or None,
        "flags": _flags(row.flags),
    }


def _pod(row: PodRow) -> Data:
    return {
        "namespace": row.namespace,
        "name": row.name,
        "uid": row.uid or None,
        "node": row.node,
        "card": row.uuid or None,
        "index": row.index,
        "stay": row.stay.value if row.stay else None,
        "whole": row.whole,
        "allotted": _amount(row.allotted),
        "used_mib": row.used_mib,
        "sm_percent": row.sm,
        "idle_s": row.idle_s,
        "containers": [_container(one) for one in row.containers],
        "flags": _flags(row.flags),
    }


def _container(row: ContainerRow) -> Data:
    return {
        "name": row.name,
        "allotted": _amount(row.allotted),
        "used_mib": row.used_mib,
        "sm_percent": row.sm,
        "last_busy": row.last_busy,
        "over": row.over if row.seen else None,
    }


def _amount(amount: Amount | None) -> Data | None:
    return None if amount is None else amount_data(amount)


def _flags(flags: Iterable[Flag]) -> list[Data]:
    return [
        {"sign": one.sign.value, "words": one.words, "do": one.do or None}
        for one in flags
    ]
