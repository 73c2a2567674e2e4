"""The overview on a screen: 80 columns, the same with and without colour."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gpushare.domain.model import CORES_PER_CARD, NOTHING, Amount
from gpushare.kube import words
from gpushare.kube.names import DOMAIN
from gpusharectl.output import Piece, Words, age, bar, fill
from gpusharectl.state.read import Placements, Trouble
from gpusharectl.state.view import (
    COUNTED,
    PLUGIN_READY,
    CardView,
    NamespaceView,
    NodeView,
    Overview,
    PodShare,
    Quota,
    Stay,
    WaitingPod,
    total_units,
)

LABEL, MEMORY_BAR = 22, 14
_CORE_BAR = 10
_INDENT = 4
_MOST = 6
_COMING = "+"
_VENDOR = "NVIDIA "
_WARN, _DIM = "yellow", "dim"


@dataclass(frozen=True, slots=True)
class Layout:
    """The width, and how much to draw: ``only`` one node, or everything (``wide``)."""

    width: int
    wide: bool = False
    only: str = ""


def _draw_card(
    node: NodeView, view: CardView, layout: Layout
) -> Iterator[RenderableType]:
    """Draw a card: bars and numbers of what is allotted, then the pods."""
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
    if layout.wide:
        yield Words(f"    {card.uuid}  {card.model}", _DIM)
        for number, share in enumerate(view.pods):
            yield _row(number, share, node)
    elif view.pods:
        legend = _legend(view.pods, node, layout.width - _INDENT)
        yield Padding(legend, (0, 0, 0, _INDENT), expand=False)


def _pieces(view: CardView) -> list[Amount]:
    """Return the amounts of the largest pods, and the sum of all others."""
    here = [one.amount for one in view.pods if one.stay is not Stay.NOMINATED]
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
        says.append("sick: no new pod comes here, running pods stay charged")
    if card.cordoned:
        says.append(f"cordoned → gpusharectl uncordon-card {where}")
    return "; ".join(says)


def _legend(pods: Sequence[PodShare], node: NodeView, width: int) -> Text:
    items = [
        _sign(number, share).append(f" {_named(share, node)}", "default")
        for number, share in enumerate(pods[:_MOST])
    ]
    if len(pods) > _MOST:
        left = len(pods) - _MOST
        rest = fill(_MOST).append(f" and {left} more (-o wide)", "default")
        items.append(rest)
    return _packed(items, width)


def _sign(number: int, share: PodShare) -> Text:
    """Return the pod's fill in the bars; a nominated pod is in no bar."""
    if share.stay is Stay.NOMINATED:
        return Words(_COMING)
    return fill(min(number, _MOST))


def _named(share: PodShare, node: NodeView) -> str:
    """Return a pod's name and size, and what is unusual about it here."""
    amount = share.amount
    size = str(amount.units) if amount.units else words.cores(amount.cores)
    if share.whole:
        size = "whole card"
    marks = ", ".join(_marks(share, node))
    return f"{share.pod} {size}{f' ({marks})' if marks else ''}"


def _marks(share: PodShare, node: NodeView) -> Iterator[str]:
    if share.stay is Stay.UNPLACED:
        yield "its card is not known"
    if share.stay is Stay.NOMINATED:
        yield "room is reserved for it"
    if share.planned:
        indexes = {view.card.uuid: view.card.index for view in node.cards}
        cards = (str(indexes.get(uuid, uuid)) for uuid in share.planned)
        yield f"planned on card {', '.join(cards)}"
    if share.leaving:
        yield "terminating"
    if share.waits:
        yield "not started"


def _row(number: int, share: PodShare, node: NodeView) -> Text:
    amount = share.amount
    text = Words("    ").append_text(_sign(number, share)).append(f" {share.pod}")
    text.append(f"  {words.units(amount.units)}  {words.memory(amount.units)}")
    text.append(f"  {words.cores(amount.cores)}  priority {share.pod.priority}")
    for mark in (*(["whole card"] if share.whole else []), *_marks(share, node)):
        text.append(f"  {mark}", _WARN)
    return text


def _packed(items: Sequence[Text], width: int) -> Text:
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


def _namespaces(seen: Sequence[NamespaceView], layout: Layout) -> Iterator[Words]:
    """Draw what each namespace's pods hold, and how much of its quotas is used.

    Of several quotas on one resource the one with the least left is shown; ``wide``
    shows all. A resource without any quota has no column.
    """
    if not seen:
        return
    shown = seen if layout.wide else seen[:_MOST_QUOTAS]
    name = max(_NAME, *(len(one.name) for one in shown)) if layout.wide else _NAME
    columns = {
        resource: _width(shown, resource)
        for resource in COUNTED
        if any(_tightest(view, resource) for view in seen)
    }
    yield from _head(name, columns, known=seen[0].quotas is not None)
    for view in shown:
        yield _line(view, name, columns)
        for quota in view.quotas or () if layout.wide else ():
            text = f"  quota {quota.name}: {_of(quota)} of {quota.resource}"
            yield Words(text, _DIM)
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


def draw(
    console: Console, seen: Overview, *, wide: bool = False, only: str = ""
) -> None:
    """Draw an overview; ``wide`` leaves nothing out and makes longer lines."""
    layout = Layout(console.width, wide, only)
    for part in _parts(seen, layout):
        console.print(part, soft_wrap=wide and isinstance(part, Text))


def source(placements: Placements) -> str:
    """Return where the placements come from; empty if it is the extender."""
    if not placements.not_asked:
        return ""
    return (
        f"computed from pods and nodes, because {placements.not_asked}; policy "
        f"{placements.choice.default} is assumed"
    )


def _parts(seen: Overview, layout: Layout) -> Iterator[RenderableType]:
    yield _sum(seen, layout.only)
    if text := source(seen.placements):
        yield Words(f"({text})", _DIM)
    if any(node.cards for node in seen.nodes):
        yield Words(f"\n{_HEAD}", _DIM)
    for node in seen.nodes:
        yield from _node(node, layout)
    if not layout.only:
        yield from _namespaces(seen.namespaces, layout)
        yield from _pending(seen, layout)
    yield from warnings([t for t in seen.troubles if layout.only in ("", t.about)])


def _sum(seen: Overview, only: str) -> Group:
    if not seen.cards and only:
        return Group(Words(f"{only} shares no cards.", "bold"))
    if not seen.cards:
        others = words.counted(seen.others, "node")
        return Group(
            Words(f"No node shares a card; the cluster has {others}.", "bold"),
            Words("Next: gpusharectl install; it labels the nodes with cards."),
        )
    nodes = words.counted(sum(bool(node.cards) for node in seen.nodes), "node")
    cards = words.counted(len(seen.cards), "card")
    units, allotted = total_units(seen.cards)
    share = round(100 * allotted / units) if units else 0
    text = Words(
        f"{nodes}, {cards}, {words.units(units)} ({words.memory(units)}): "
        f"{allotted} allotted ({share} %)",
        "bold",
    )
    block = "Nothing is free on any open card."
    if seen.largest and seen.largest.free.units:
        free = seen.largest.free.units
        block = f"Largest free block: {words.units(free)} ({words.memory(free)})"
        block += f" on {seen.largest}."
    return Group(text, Words(block))


def _node(node: NodeView, layout: Layout) -> Iterator[RenderableType]:
    line = Words(node.name, "bold")
    for state in _states(node):
        line.append(f"  {state}", _WARN)
    yield line
    if layout.wide:
        yield Words(
            f"  kubelet offers {_known(node.offered_units)} units and "
            f"{_known(node.offered_cores)} cores; device plugin pod {node.plugin}",
            _DIM,
        )
    for card in node.cards:
        yield from _draw_card(node, card, layout)
    for uuid, share in node.gone:
        pod = _named(share, node)
        yield Words(f"  on a card that no longer exists ({uuid}): {pod}", _WARN)


def _states(node: NodeView) -> Iterator[str]:
    if not node.cards:
        yield "no cards"
    if node.complaint:
        yield "its annotation cannot be read"
    if node.ready is not True:
        yield "not ready" if node.ready is False else "readiness not known"
    if not node.schedulable:
        yield "unschedulable"
    if node.labelled and node.plugin != PLUGIN_READY:
        yield f"device plugin {node.plugin}"


def _pending(seen: Overview, layout: Layout) -> Iterator[RenderableType]:
    if not seen.pending:
        return
    yield Words(f"\n{words.counted(len(seen.pending), 'pod')} pending", "bold")
    shown = seen.pending if layout.wide else seen.pending[:_MOST_PENDING]
    for one in shown:
        old = f", {age(one.since, seen.at)} old" if one.since else ""
        yield Words(f"  {one.pod}  requests {one.asks}{old}")
        yield Padding(Words(_why(one, layout)), (0, 0, 0, _INDENT), expand=False)
    if left := len(seen.pending) - len(shown):
        yield Words(f"  and {left} more (-o wide)", _DIM)
    first = seen.pending[0].pod
    yield Words(f"  → gpusharectl why {first}")


def _why(one: WaitingPod, layout: Layout) -> str:
    said = one.because
    if one.nominated:
        said += f"; pods on {one.nominated} are being preempted for it"
    if one.scheduler and (one.room or layout.wide):
        said += f"\nkube-scheduler: {one.scheduler}"
    return said


def warnings(found: Sequence[Trouble]) -> Iterator[RenderableType]:
    """Draw what needs an operator, each with the next step."""
    if not found:
        return
    yield Words("\nWarnings", "bold")
    for one in found:
        text = Words(f"{one.about}: ", _WARN).append(one.what, "default")
        yield Padding(text, (0, 0, 0, 2), expand=False)
        yield Padding(Words(f"→ {one.do}"), (0, 0, 0, _INDENT), expand=False)


def _known(number: int | None) -> str:
    return words.NOT_KNOWN if number is None else str(number)
