"""A card on a screen: its two bars, and whose each fill is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpushare.domain.model import CORES_PER_CARD, NOTHING, Amount
from gpushare.kube import words
from gpusharectl.inspection.views import CardView, NodeView, Stay, Tenant
from gpusharectl.output import Piece, Words, bar, fill

LABEL, MEMORY_BAR = 22, 14
_CORE_BAR = 10
_INDENT = 4
_MOST = 6
_COMING = "+"
_VENDOR = "NVIDIA "
_WARN, _DIM = "yellow", "dim"


@dataclass(frozen=True, slots=True)
class Paper:
    """What to draw on, and how much: ``only`` one node, or ``wide``, all there is."""

    width: int
    wide: bool = False
    only: str = ""


def draw_card(node: NodeView, view: CardView, paper: Paper) -> Iterator[RenderableType]:
    """Draw one card: what is held in bars and numbers, then by whom."""
    card, charged = view.card, view.charged
    line = Words(f"{_label(view):<{LABEL}}")
    here = _pieces(view)
    units = [Piece("", amount.units) for amount in here]
    line.append_text(bar(card.units, units, MEMORY_BAR))
    line.append(f" {f'{charged.units}/{card.units}':>7}")
    line.append(f"  {words.memory_of(charged.units, card.units):>11}  ")
    cores = [Piece("", amount.cores) for amount in here]
    line.append_text(bar(CORES_PER_CARD, cores, _CORE_BAR))
    line.append(f" {f'{charged.cores}/{CORES_PER_CARD}':>7}")
    yield line
    if not card.open:
        yield Words(f"    {_closed(node, view)}", _WARN)
    if paper.wide:
        yield Words(f"    {card.uuid}  {card.model}", _DIM)
        for number, tenant in enumerate(view.tenants):
            yield _row(number, tenant, node)
    elif view.tenants:
        legend = _legend(view.tenants, node, paper.width - _INDENT)
        yield Padding(legend, (0, 0, 0, _INDENT), expand=False)


def _pieces(view: CardView) -> list[Amount]:
    """Give what the largest pods have, and what all others have together."""
    here = [one.amount for one in view.tenants if one.stay is not Stay.NOMINATED]
    rest = sum(here[_MOST:], NOTHING)
    return [*here[:_MOST], rest] if rest else here


def _label(view: CardView) -> str:
    model = view.card.model.removeprefix(_VENDOR) or words.NOT_KNOWN
    text = f"  card {view.card.index}  {model}"
    return text if len(text) < LABEL else f"{text[: LABEL - 2]}… "


def _closed(node: NodeView, view: CardView) -> str:
    card, where = view.card, f"{node.name} {view.card.index}"
    says = []
    if not card.healthy:
        says.append("sick: nothing new comes here, what runs stays charged")
    if card.cordoned:
        says.append(f"cordoned → gpusharectl uncordon-card {where}")
    return "; ".join(says)


def _legend(tenants: Sequence[Tenant], node: NodeView, width: int) -> Text:
    items = [
        _sign(number, tenant).append(f" {named(tenant, node)}", "default")
        for number, tenant in enumerate(tenants[:_MOST])
    ]
    if len(tenants) > _MOST:
        left = len(tenants) - _MOST
        rest = fill(_MOST).append(f" and {left} more (-o wide)", "default")
        items.append(rest)
    return packed(items, width)


def _sign(number: int, tenant: Tenant) -> Text:
    """Give the pod's fill in the bars; one that is only coming is in none."""
    if tenant.stay is Stay.NOMINATED:
        return Words(_COMING)
    return fill(min(number, _MOST))


def named(tenant: Tenant, node: NodeView) -> str:
    """Name a pod with its size, and what is odd about its being here."""
    amount = tenant.amount
    size = str(amount.units) if amount.units else words.cores(amount.cores)
    if tenant.whole:
        size = "whole card"
    marks = ", ".join(_marks(tenant, node))
    return f"{tenant.pod} {size}{f' ({marks})' if marks else ''}"


def _marks(tenant: Tenant, node: NodeView) -> Iterator[str]:
    if tenant.stay is Stay.UNPLACED:
        yield "on which card is not known"
    if tenant.stay is Stay.NOMINATED:
        yield "room kept for it"
    if tenant.planned:
        indexes = {view.card.uuid: view.card.index for view in node.cards}
        cards = (str(indexes.get(uuid, uuid)) for uuid in tenant.planned)
        yield f"planned on card {', '.join(cards)}"
    if tenant.leaving:
        yield "leaving"
    if tenant.waits:
        yield "not started"


def _row(number: int, tenant: Tenant, node: NodeView) -> Text:
    amount = tenant.amount
    text = Words("    ").append_text(_sign(number, tenant)).append(f" {tenant.pod}")
    text.append(f"  {words.units(amount.units)}  {words.memory(amount.units)}")
    text.append(f"  {words.cores(amount.cores)}  priority {tenant.pod.priority}")
    for mark in (*(["whole card"] if tenant.whole else []), *_marks(tenant, node)):
        text.append(f"  {mark}", _WARN)
    return text


def packed(items: Sequence[Text], width: int) -> Text:
    """Put things side by side, as many on a line as there is room for."""
    text, used = Words(), 0
    for item in items:
        if used and used + 2 + item.cell_len > width:
            text.append("\n")
            used = 0
        elif used:
            text.append("  ")
            used += 2
        text.append_text(item)
        used += item.cell_len
    return text
