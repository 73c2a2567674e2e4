"""Allotted and used side by side, with what is worth a look. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpushare.domain.model import NodeName
from gpusharectl.inspection.views import CardView, NodeView, Survey
from gpusharectl.top.concerns import concerns
from gpusharectl.top.exporters import Heard, Silence, Told
from gpusharectl.top.figures import size
from gpusharectl.top.page import CardSeen, PageSeen
from gpusharectl.top.podrows import Place, pod_rows
from gpusharectl.top.rows import CardRow, Flag, NodeRow, PodRow, Sign, Top

Sort = Literal["mem", "sm"]
UNATTRIBUTED_MIB = 512.0
"""As the alert VcudaUnattributedMemory has it: less is the driver's own."""
_NOT_ASKED = Silence("its exporter was not asked", "")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted: the pods of one namespace or of all, and which comes first.

    ``sort`` None: pods by memory, cards by node and index.
    """

    namespace: str = ""
    sort: Sort | None = None


def joined(seen: Survey, told: Mapping[str, Told], wish: Wish) -> Top:
    """Join the books with what the exporters told of each node of the survey."""
    nodes: list[NodeRow] = []
    cards: list[CardRow] = []
    pods: list[PodRow] = []
    for view in seen.nodes:
        heard = told.get(view.name, _NOT_ASKED)
        page = heard.page if isinstance(heard, Heard) else PageSeen()
        because = heard.because if isinstance(heard, Silence) else ""
        nodes.append(NodeRow(view.name, not because, because))
        cards += [_card(view, one, page) for one in view.cards]
        pods += pod_rows(Place(view, seen.books.page(NodeName(view.name)), page))
    wanted = [one for one in pods if wish.namespace in ("", one.namespace)]
    if wish.sort:
        cards.sort(key=lambda one: _most_first(wish.sort, one.used_mib, one.busy))
    wanted.sort(key=lambda one: _pod_order(wish.sort, one))
    return Top(
        books=seen.books,
        at=seen.at,
        nodes=tuple(nodes),
        cards=tuple(cards),
        pods=tuple(wanted),
        troubles=tuple(concerns(told, seen.at)),
        elsewhere=len(seen.troubles),
    )


def _pod_order(
    sort: Sort | None, row: PodRow
) -> tuple[tuple[bool, float], str, str, str]:
    first = _most_first(sort, row.used_mib, row.sm)
    return (first, row.full_name, row.node, row.uuid)


def _most_first(
    sort: Sort | None, mib: float | None, busy: float | None
) -> tuple[bool, float]:
    """Order by the one asked for; what is unknown comes last, and never as 0."""
    value = busy if sort == "sm" else mib
    return (value is None, -(value or 0.0))


def _card(node: NodeView, view: CardView, page: PageSeen) -> CardRow:
    uuid = str(view.card.uuid)
    seen = page.cards.get(uuid, CardSeen(uuid))
    outside = page.outside_mib(uuid)
    return CardRow(
        node=node.name,
        card=view.card,
        allotted=view.charged,
        used_mib=seen.used_mib,
        busy=seen.busy,
        celsius=seen.celsius,
        watts=seen.watts,
        outside_mib=outside,
        unattributed_mib=seen.unattributed_mib,
        sm_source=seen.sm_source,
        flags=tuple(_flags(node.name, view, seen, outside)),
    )


def _flags(
    node: str, view: CardView, seen: CardSeen, outside: float | None
) -> Iterator[Flag]:
    card = view.card
    if not card.healthy:
        words = "sick: nothing new comes here, what runs stays charged"
        do = f"gpusharectl clear-card {node} {card.index}, once you have seen to it"
        yield Flag(Sign.SICK, words, do)
    if card.cordoned:
        do = f"gpusharectl uncordon-card {node} {card.index}"
        yield Flag(Sign.CORDONED, "cordoned: nothing new comes here", do)
    look = f"nvidia-smi on {node}"
    if outside:
        words = f"processes outside Kubernetes use {size(outside)}"
        yield Flag(Sign.OUTSIDE, words, look)
    hidden = seen.unattributed_mib
    if hidden is not None and hidden > UNATTRIBUTED_MIB:
        words = f"{size(hidden)} in use belong to no process that is known"
        yield Flag(Sign.UNATTRIBUTED, words, look)
