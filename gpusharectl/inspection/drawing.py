"""The survey on a screen: 80 columns, and the same with and without colour."""

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gpushare.kube import words
from gpusharectl.demo.age import age
from gpusharectl.inspection.books import Books
from gpusharectl.inspection.carddrawing import (
    LABEL,
    MEMORY_BAR,
    Paper,
    draw_card,
    named,
)
from gpusharectl.inspection.picture import Trouble
from gpusharectl.inspection.quotadrawing import draw_namespaces
from gpusharectl.inspection.survey import PLUGIN_READY
from gpusharectl.inspection.views import (
    NodeView,
    Survey,
    Waiting,
)
from gpusharectl.output import Words

_INDENT = 4
_MOST_PENDING = 10
_HEAD = f"{'':{LABEL}}{'memory':<{MEMORY_BAR}}   units          GiB  cores"
_WARN, _DIM = "yellow", "dim"


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
