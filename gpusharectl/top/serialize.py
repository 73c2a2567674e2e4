"""Top as data: what ``top -o json`` and ``-o yaml`` print. Pure.

The shape is a promise, as inspect's: fields may be added; none is removed or changes
its meaning while ``v`` stays. There are always pods and cards, whatever ``--by`` says;
``-n`` leaves out pods, ``--node`` everything of other nodes. An amount has ``cores``,
``units`` and ``memory_mib``. Memory is in MiB; ``sm_percent`` and ``busy_percent`` are
of the whole card, of which a core is one hundredth. null: not known, or it does not
apply; 0 is idle::

    v         1
    at        when the cluster was read, RFC 3339
    books     {from: "extender" | "pods and nodes", because}
    totals    {cards, memory_mib, allotted_mib, used_mib, cards_told}
    nodes     [{name, told, because}]: whether its exporter answered, else why not
    cards     [{node, uuid, index, model, units, memory_mib, healthy, cordoned,
              allotted: amount, used_mib, busy_percent, celsius, watts, outside_mib,
              unattributed_mib, sm_source, flags}]
    pods      [{namespace, name, uid, node, card, index, stay, whole,
              allotted: amount, used_mib, sm_percent, idle_s, containers, flags,
              claims: [name]}]
      containers  [{name, allotted: amount, used_mib, sm_percent, last_busy, over}]
      flags   [{sign, words, do}]
    warnings  [{about, what, do}]

``used_mib`` of the totals is of the ``cards_told`` cards of which it is known.
``outside_mib`` is the memory of processes outside Kubernetes, ``unattributed_mib`` the
used memory that no known process uses. ``claims`` are the ResourceClaims by which a pod
has its share; pods that use the same claim share one amount. A claim whose pods are not
known has an entry of its own. ``stay`` is as in inspect; null, and
``allotted`` too, for a pod that uses a card without a share of it. ``last_busy`` is in
seconds since 1970 by that node's clock, and ``idle_s`` the time since then. Signs:
over, no-share, unplaced, gone, idle, leaving, not-started, claim, sick, cordoned,
outside, unattributed.
"""

from collections.abc import Iterable

from gpushare.domain.model import UNIT_MIB, Amount
from gpusharectl.output import VERSION, Data, encode
from gpusharectl.state.view import total_units
from gpusharectl.top.rows import CardRow, ContainerRow, Flag, PodRow, Top


def top_data(top: Top) -> Data:
    """Return all of it, also what the screen leaves out."""
    return {
        "v": VERSION,
        "at": top.at.isoformat(),
        "books": encode(top.placements),
        "totals": _totals(top),
        "nodes": [
            {"name": name, "told": not because, "because": because or None}
            for name, because in top.nodes.items()
        ],
        "cards": [_card(one) for one in top.cards],
        "pods": [_pod(one) for one in top.pods],
        "warnings": encode(top.troubles),
    }


def _totals(top: Top) -> Data:
    units, allotted = total_units(row.view for row in top.cards)
    known = top.used_mib
    return {
        "cards": len(top.cards),
        "memory_mib": units * UNIT_MIB,
        "allotted_mib": allotted * UNIT_MIB,
        "used_mib": sum(known) if known else None,
        "cards_told": len(known),
    }


def _card(row: CardRow) -> Data:
    seen = row.seen
    return {
        "node": row.node,
        **encode(row.view.card),
        "allotted": encode(row.view.allotted),
        "used_mib": seen.used_mib,
        "busy_percent": seen.busy,
        "celsius": seen.celsius,
        "watts": seen.watts,
        "outside_mib": row.outside_mib,
        "unattributed_mib": seen.unattributed_mib,
        "sm_source": seen.sm_source or None,
        "flags": _flags(row.flags),
    }


def _pod(row: PodRow) -> Data:
    share = row.share
    return {
        "namespace": row.namespace,
        "name": row.name,
        "uid": str(share.pod.uid) if share else None,
        "node": row.node,
        "card": row.uuid or None,
        "index": row.index,
        "stay": share.stay.value if share else None,
        "whole": share is not None and share.whole,
        "allotted": _amount(row.allotted),
        "used_mib": row.used_mib,
        "sm_percent": row.sm,
        "idle_s": row.idle_s,
        "containers": [_container(one) for one in row.containers],
        "flags": _flags(row.flags),
        "claims": list(row.claims),
    }


def _container(row: ContainerRow) -> Data:
    seen = row.seen
    return {
        "name": row.name,
        "allotted": _amount(row.allotted),
        "used_mib": seen and seen.used_mib,
        "sm_percent": seen and seen.sm,
        "last_busy": seen and seen.last_busy,
        "over": seen and seen.over,
    }


def _amount(amount: Amount | None) -> Data | None:
    return None if amount is None else encode(amount)


def _flags(flags: Iterable[Flag]) -> list[Data]:
    return [
        {"sign": one.sign.value, "words": one.words, "do": one.do or None}
        for one in flags
    ]
