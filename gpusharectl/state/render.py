"""The survey on a screen: 80 columns, and the same with and without colour.

A card on a screen: its two bars, and whose each fill is.

Namespaces on a screen: a line each, and in a wide one a line for each quota.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gpushare.domain.model import CORES_PER_CARD, NOTHING, Amount
from gpushare.kube import words
from gpushare.kube.names import DOMAIN
from gpusharectl.output import Piece, Words, age, bar, fill
from gpusharectl.state.placements import Books
from gpusharectl.state.read import Trouble
from gpusharectl.state.view import (
    COUNTED,
    PLUGIN_READY,
    CardView,
    NamespaceView,
    NodeView,
    Quota,
    Stay,
    Survey,
    Tenant,
    Waiting,
)

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


_MOST_QUOTAS = 10
_NAME, _NUMBER = 20, 7
_NO_QUOTA = "-"


def draw_namespaces(seen: Sequence[NamespaceView], paper: Paper) -> Iterator[Words]:
    """Show what is allotted to each namespace, and how much of its quotas is used.

    Of several quotas on one resource the one that has least left; a wide screen names
    all. Resources without a quota anywhere have no column.
    """
    if not seen:
        return
    shown = seen if paper.wide else seen[:_MOST_QUOTAS]
    name = max(_NAME, *(len(one.name) for one in shown)) if paper.wide else _NAME
    columns = {
        resource: _width(shown, resource)
        for resource in COUNTED
        if any(_tightest(view, resource) for view in seen)
    }
    yield from _head(name, columns, known=seen[0].quotas is not None)
    for view in shown:
        yield _line(view, name, columns)
        for quota in view.quotas or () if paper.wide else ():
            told = f"  quota {quota.name}: {_of(quota)} of {quota.resource}"
            yield Words(told, _DIM)
    if left := len(seen) - len(shown):
        yield Words(f"and {words.counted(left, 'namespace')} more (-o wide)", _DIM)


def _width(seen: Sequence[NamespaceView], resource: str) -> int:
    texts = [_text(_tightest(view, resource)) for view in seen]
    return max(len(text) for text in (_short(resource), *texts))


def _head(name: int, columns: Mapping[str, int], *, known: bool) -> Iterator[Words]:
    over = f"{'':{name}}{'allotted':>{2 * _NUMBER}}"
    if columns or not known:
        over += "  used of quota" if known else f"  quotas {words.NOT_KNOWN}"
    line = f"{'namespace':{name}}{'units':>{_NUMBER}}{'cores':>{_NUMBER}}"
    line += "".join(f"  {_short(one):>{width}}" for one, width in columns.items())
    yield Words(f"\n{over}", _DIM)
    yield Words(line, _DIM)


def _line(view: NamespaceView, name: int, columns: Mapping[str, int]) -> Words:
    cut = view.name if len(view.name) <= name else f"{view.name[: name - 1]}…"
    line = Words(f"{cut:{name}}")
    line.append(f"{view.allotted.units:>{_NUMBER}}{view.allotted.cores:>{_NUMBER}}")
    for resource, width in columns.items():
        tight = _tightest(view, resource)
        over = tight is not None and _left(tight) < 0
        line.append(f"  {_text(tight):>{width}}", _WARN if over else None)
    return line


def _short(resource: str) -> str:
    return resource.removeprefix(f"{DOMAIN}/")


def _tightest(view: NamespaceView, resource: str) -> Quota | None:
    here = [one for one in view.quotas or () if one.resource == resource]
    return min(here, key=_left, default=None)


def _left(quota: Quota) -> float:
    """Give what is left of a quota; of one that nobody knows, more than of any."""
    if quota.hard is None or quota.used is None:
        return float("inf")
    return quota.hard - quota.used


def _text(quota: Quota | None) -> str:
    return _NO_QUOTA if quota is None else _of(quota)


def _of(quota: Quota) -> str:
    parts = (quota.used, quota.hard)
    return "/".join(words.NOT_KNOWN if one is None else str(one) for one in parts)


_MOST_PENDING = 10
_HEAD = f"{'':{LABEL}}{'memory':<{MEMORY_BAR}}   units          GiB  cores"


def draw(console: Console, seen: Survey, *, wide: bool = False, only: str = "") -> None:
    """Show a survey; ``wide`` leaves nothing out, and lines grow with it."""
    paper = Paper(console.width, wide, only)
    for part in _parts(seen, paper):
        console.print(part, soft_wrap=wide and isinstance(part, Text))


def source(books: Books) -> str:
    """Say whose books these are, where they are not the extender's own."""
    if not books.unasked:
        return ""
    return (
        f"from pods and nodes; the extender was not asked: {books.unasked}; "
        f"policy {books.choice.default} taken as its own"
    )


def _parts(seen: Survey, paper: Paper) -> Iterator[RenderableType]:
    yield _sum(seen, paper.only)
    if told := source(seen.books):
        yield Words(f"({told})", _DIM)
    if any(node.cards for node in seen.nodes):
        yield Words(f"\n{_HEAD}", _DIM)
    for node in seen.nodes:
        yield from _node(node, paper)
    if not paper.only:
        yield from draw_namespaces(seen.namespaces, paper)
        yield from _pending(seen, paper)
    yield from to_look_at([t for t in seen.troubles if paper.only in ("", t.about)])


def _sum(seen: Survey, only: str) -> Group:
    if not seen.cards and only:
        return Group(Words(f"{only} shares no cards.", "bold"))
    if not seen.cards:
        others = words.counted(seen.others, "node")
        return Group(
            Words(f"No node shares a card; {others} in the cluster.", "bold"),
            Words("Next: gpusharectl install, which labels the nodes that have some."),
        )
    nodes = words.counted(sum(bool(node.cards) for node in seen.nodes), "node")
    cards = words.counted(len(seen.cards), "card")
    share = round(100 * seen.allotted / seen.units) if seen.units else 0
    text = Words(
        f"{nodes}, {cards}, {words.units(seen.units)} ({words.memory(seen.units)}): "
        f"{seen.allotted} allotted ({share} %)",
        "bold",
    )
    block = "Nothing is free on any open card."
    if seen.largest and seen.largest.free.units:
        free = seen.largest.free.units
        block = f"Largest free block: {words.units(free)} ({words.memory(free)})"
        block += f" on {seen.largest}."
    return Group(text, Words(block))


def _node(node: NodeView, paper: Paper) -> Iterator[RenderableType]:
    line = Words(node.name, "bold")
    for state in _states(node):
        line.append(f"  {state}", _WARN)
    yield line
    if paper.wide:
        yield Words(
            f"  kubelet offers {_known(node.offered_units)} units and "
            f"{_known(node.offered_cores)} cores; device plugin pod {node.plugin}",
            _DIM,
        )
    for card in node.cards:
        yield from draw_card(node, card, paper)
    for uuid, tenant in node.gone:
        yield Words(f"  on a card that is gone ({uuid}): {named(tenant, node)}", _WARN)


def _states(node: NodeView) -> Iterator[str]:
    if not node.cards:
        yield "no cards"
    if node.complaint:
        yield "its annotation cannot be read"
    if node.ready is not True:
        yield "not ready" if node.ready is False else f"ready: {words.NOT_KNOWN}"
    if not node.schedulable:
        yield "unschedulable"
    if node.labelled and node.plugin != PLUGIN_READY:
        yield f"device plugin {node.plugin}"


def _pending(seen: Survey, paper: Paper) -> Iterator[RenderableType]:
    if not seen.pending:
        return
    yield Words(f"\n{words.counted(len(seen.pending), 'pod')} pending", "bold")
    shown = seen.pending if paper.wide else seen.pending[:_MOST_PENDING]
    for one in shown:
        old = f", {age(one.since, seen.at)} old" if one.since else ""
        yield Words(f"  {one.pod}  asks {one.asks}{old}")
        yield Padding(Words(_why(one, paper)), (0, 0, 0, _INDENT), expand=False)
    if left := len(seen.pending) - len(shown):
        yield Words(f"  and {left} more (-o wide)", _DIM)
    first = seen.pending[0].pod
    yield Words(f"  → gpusharectl why {first}")


def _why(one: Waiting, paper: Paper) -> str:
    said = one.because
    if one.nominated:
        said += f"; room is being made on {one.nominated}"
    if one.scheduler and (one.room or paper.wide):
        said += f"\nkube-scheduler: {one.scheduler}"
    return said


def to_look_at(found: Sequence[Trouble]) -> Iterator[RenderableType]:
    """Say what an operator should look at, and what to do about each."""
    if not found:
        return
    yield Words("\nTo look at", "bold")
    for one in found:
        text = Words(f"{one.about}: ", _WARN).append(one.what, "default")
        yield Padding(text, (0, 0, 0, 2), expand=False)
        yield Padding(Words(f"→ {one.do}"), (0, 0, 0, _INDENT), expand=False)


def _known(number: int | None) -> str:
    return words.NOT_KNOWN if number is None else str(number)
