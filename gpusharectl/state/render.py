"""The overview on a screen: 80 columns, the same with and without colour."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import compress

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from gpushare.domain.card_selector import read_mig_profile
from gpushare.domain.model import CORES_PER_CARD, NOTHING, Amount, Card
from gpushare.domain.node import FreeUnits
from gpushare.kube import names, words
from gpusharectl.output import (
    Hanging,
    Words,
    draw_bar,
    draw_fill,
    draw_step,
    fit_column,
    fit_to_show,
    format_age,
    rounded,
    show,
)
from gpusharectl.state.read import Placements, Setup, Trouble
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
)

_LABEL, _MEMORY_BAR, _CORE_BAR = 22, 14, 10
_INDENT = 4
_MOST = 6
_MOST_PENDING = _MOST_QUOTAS = 10
_WIDTH, _NARROW = 80, 66
"""A card's line is made for this width; what a screen has more is for the models.

A narrower one has no bar of the cores, and a very narrow one no GiB either.
"""
_WARN, _DIM = "yellow", "dim"
NO_TIER = "none"
"""The isolation tier that is not worth a word on each node."""


def draw_overview(
    console: Console, seen: Overview, *, wide: bool = False, verbose: bool = False
) -> None:
    """Draw an overview; ``wide`` leaves nothing out and makes longer lines.

    ``verbose`` adds where the placements come from.
    """
    parts = draw_parts(seen, console.width, wide=wide, verbose=verbose)
    show(console, parts, wide=wide)


def draw_not_installed(nodes: int) -> Iterator[Words]:
    """Say of a cluster with so many nodes that gpushare is not there."""
    counted = words.counted(nodes, "node")
    yield Words(f"gpushare is not installed in this cluster of {counted}.", "bold")
    yield Words("Next: gpusharectl install")


def describe_source(placements: Placements) -> str:
    """Return where the placements come from; empty if it is the extender."""
    if not placements.not_asked:
        return ""
    return (
        f"computed from pods and nodes, because {placements.not_asked}; policy "
        f"{placements.choice.default} is assumed"
    )


def draw_warnings(
    troubles: Sequence[Trouble], *, wrap: bool = True
) -> Iterator[RenderableType]:
    """Draw what needs an operator, each with the next step; ``wrap`` as in ``step``.

    What is the same for several nodes or pods is drawn once.
    """
    if troubles:
        yield Words("\nWarnings", "bold")
    alike: defaultdict[tuple[str, str], list[Trouble]] = defaultdict(list)
    for trouble in troubles:
        alike[trouble.what, trouble.do.replace(trouble.about, "")].append(trouble)
    for those in alike.values():
        about = words.listed((trouble.about for trouble in those), 3)
        text = Words(f"{about}: ", _WARN).append(those[0].what, "default")
        yield indent(text, 2)
        do = those[0].do
        if any(trouble.do != do for trouble in those):
            do += "  # and so for each of them"
        yield draw_step(do, wrap=wrap)


def indent(text: Text, by: int = _INDENT) -> Hanging:
    """Return a text of which each line starts after blanks."""
    return Hanging(Words(" " * by), text)


def shorten_model(card: Card) -> str:
    """Return a card's model, short."""
    return fit_to_show(_short_model(card)) or words.NOT_KNOWN


def _short_model(card: Card) -> str:
    return card.model.removeprefix("NVIDIA ")


def draw_parts(
    seen: Overview,
    width: int,
    *,
    wide: bool = False,
    verbose: bool = False,
    wrap: bool = False,
) -> Iterator[RenderableType]:
    """Return the parts of the screen; ``wrap`` as in ``step``, the rest as in draw."""
    yield from _sum(seen)
    if (wide or verbose) and (text := describe_source(seen.placements)):
        yield Words(f"({text})", _DIM)
    longest = max((cell_len(_label(view)) for view in seen.cards), default=0)
    label = min(max(_LABEL, longest + 1), max(_LABEL, _LABEL + width - _WIDTH))
    if seen.cards:
        head = f"{'memory':<{_MEMORY_BAR}}   units"
        head += f"{'GiB':>13}  " if width >= _NARROW else "  "
        head += "cores" if width >= _WIDTH else f"{'cores':>7}"
        yield Words(f"\n{'':{label}}{head}", _DIM)
    for node in seen.nodes:
        yield from _node(node, label, width, wide=wide)
    if not seen.only:
        yield from _namespaces(seen.namespaces, wide=wide)
        yield from _pending(seen, wide=wide)
        yield from _claiming(seen, wide=wide)
    shown = [trouble for trouble in seen.troubles if seen.only in ("", trouble.about)]
    yield from draw_warnings(shown, wrap=wrap)


def _sum(seen: Overview) -> Iterator[Words]:
    if seen.namespace:
        yield Words(_sum_of_namespace(seen), "bold")
        return
    if not seen.cards and seen.only:
        yield Words(f"{seen.only} shares no cards.", "bold")
        return
    if seen.setup is Setup.ABSENT:
        yield from draw_not_installed(seen.others)
        return
    if not seen.cards:
        others = words.counted(seen.others, "node")
        yield Words(f"No node shares a card; the cluster has {others}.", "bold")
        yield Words("Next: gpusharectl install; it labels the nodes with cards.")
        return
    nodes = words.counted(sum(bool(node.cards) for node in seen.nodes), "node")
    cards = words.counted(len(seen.cards), "card")
    units, allotted = seen.units
    share = round(100 * allotted / units) if units else 0
    yield Words(
        f"{nodes}, {cards}, {words.units(units)} ({words.memory(units)}): "
        f"{allotted} allotted ({share} %)",
        "bold",
    )
    yield Words(_largest(seen.free))


def _sum_of_namespace(seen: Overview) -> str:
    shares = [share for card in seen.cards for share in card.pods]
    shares += [gone.share for node in seen.nodes for gone in node.gone]
    # A pod of unknown card is on each card of its node, and holds one of them.
    unplaced = {share.pod.uid: share for share in shares if share.stay is Stay.UNPLACED}
    placed = [share for share in shares if share.stay is Stay.PLACED]
    held = sum((share.amount for share in (*placed, *unplaced.values())), NOTHING)
    here = {share.pod for share in (*placed, *unplaced.values())}
    if not here:
        return f"No pod of {seen.namespace} holds a part of a card."
    claims = sum(pod.is_resource_claim for pod in here)
    counted = ((len(here) - claims, "pod"), (claims, "claim"))
    holders = " and ".join(words.counted(n, noun) for n, noun in counted if n)
    cards = words.counted(len(seen.cards), "card")
    nodes = words.counted(sum(bool(node.cards) for node in seen.nodes), "node")
    verb = "holds" if len(here) == 1 else "hold"
    return (
        f"{holders} of {seen.namespace} {verb} "
        f"{words.format_amount(held)}, on {cards} of {nodes}."
    )


def _largest(free: FreeUnits) -> str:
    unused = words.units(free.without_cores)
    if free.largest is None:
        if free.without_cores:
            return f"No card has a free core, so no pod can have the {unused} left."
        return "Nothing is free on any open card."
    units = free.largest.free.units
    text = f"Largest free block: {words.units(units)} ({words.memory(units)}) "
    text += f"on {free.largest}."
    if free.without_cores:
        text += f" On cards without a free core {unused} are left."
    return text


def _links(node: NodeView) -> str:
    """Return the lowest and the highest score of the pairs of which it is known."""
    known = [score for score in node.links or () if score]
    if not known:
        return words.NOT_KNOWN
    return " to ".join(map(str, sorted({min(known), max(known)})))


def _node(
    node: NodeView, label: int, width: int, *, wide: bool
) -> Iterator[RenderableType]:
    line = Words(node.name, "bold")
    for state in _states(node):
        line.append(f"  {state}", _WARN)
    if node.isolation not in ("", NO_TIER):
        line.append(f"  isolation {fit_to_show(node.isolation)}", _DIM)
    yield line
    if wide:
        units, cores = rounded(node.offered.units), rounded(node.offered.cores)
        offers = f"  kubelet offers {units} units and {cores} cores"
        tier = fit_to_show(node.isolation) or words.NOT_KNOWN
        plugin = node.device_plugin or words.NOT_KNOWN
        offers += f"; device plugin pod {plugin}; isolation {tier}"
        if len(node.cards) > 1:
            offers += f"; links {_links(node)}"
        yield Words(offers, _DIM)
    parent = ""
    for card in node.cards:
        if card.card.parent not in ("", parent):
            model = fit_to_show(_short_model(card.card).partition(" MIG ")[0])
            yield Words(f"  {model} {card.card.parent}, in MIG mode", _DIM)
        parent = card.card.parent
        line = _numbers(card, width)
        name = fit_column(_label(card), label - 1, 0)
        yield Words(f"{name} ").append_text(line)
        yield from _below(node, card, width, wide=wide)
    for gone in node.gone:
        pod = _named(gone.share, node)
        yield Words(f"  on a card that no longer exists ({gone.card}): {pod}", _WARN)


def _states(node: NodeView) -> Iterator[str]:
    if not node.cards:
        yield "no cards"
    if node.complaint:
        yield "its annotation cannot be read"
    if node.ready is not True:
        yield "not ready" if node.ready is False else "readiness not known"
    if not node.schedulable:
        yield "unschedulable"
    if node.labelled and node.device_plugin not in (PLUGIN_READY, ""):
        yield f"device plugin {node.device_plugin}"


def _label(view: CardView) -> str:
    if view.card.parent and (profile := read_mig_profile(view.card.model)):
        return f"    card {view.card.index}  {fit_to_show(profile)}"
    return f"  card {view.card.index}  {shorten_model(view.card)}"


def _numbers(view: CardView, width: int) -> Words:
    card, allotted = view.card, view.allotted
    pieces = _pieces(view)
    line = Words()
    line.append_text(draw_bar(card.units, [p.units for p in pieces], _MEMORY_BAR))
    line.append(f" {f'{allotted.units}/{card.units}':>7}")
    if width >= _NARROW:
        line.append(f"  {words.format_memory_pair(allotted.units, card.units):>11}")
    line.append("  ")
    if width >= _WIDTH:
        cores = [amount.cores for amount in pieces]
        line.append_text(draw_bar(CORES_PER_CARD, cores, _CORE_BAR)).append(" ")
    line.append(f"{f'{allotted.cores}/{CORES_PER_CARD}':>7}")
    return line


def _pieces(view: CardView) -> Sequence[Amount]:
    """Return the parts of a bar: the largest pods, the other ones, other namespaces."""
    here = [share.amount for share in view.pods if share.stay is not Stay.NOMINATED]
    if rest := sum(here[_MOST:], NOTHING):
        here[_MOST:] = [rest]
    return [*here, view.others] if view.others else here


def _below(
    node: NodeView, view: CardView, width: int, *, wide: bool
) -> Iterator[RenderableType]:
    """Draw what is said of a card below its numbers, and the pods on it."""
    card = view.card
    sick = "sick: no new pod comes here, running pods stay charged"
    cordoned = f"cordoned → gpusharectl uncordon-card {node.name} {card.index}"
    if not card.open:
        closed = compress((sick, cordoned), (not card.healthy, card.cordoned))
        line = Words(f"    {'; '.join(closed)}", _WARN)
        line.no_wrap = True
        yield line
    if not card.healthy and card.reason:
        yield indent(Words(f"because {fit_to_show(card.reason)}", _WARN))
    others = ""
    if view.others:
        others = f"other namespaces {_size(view.others)}"
    if wide:
        yield Words(f"    {card.uuid}  {card.model}", _DIM)
        for number, share in enumerate(view.pods):
            yield _row(number, share, node)
        if others:
            yield Words(f"    {others}")
    elif view.pods:
        yield indent(_legend(view, node, others, width - _INDENT))


def _legend(view: CardView, node: NodeView, others: str, width: int) -> Text:
    items = [
        _sign(number, share).append(f" {_named(share, node)}", "default")
        for number, share in enumerate(view.pods[:_MOST])
    ]
    if more := len(view.pods) - len(items):
        items.append(draw_fill(_MOST).append(f" and {more} more (-o wide)", "default"))
    if others:
        last = len(_pieces(view)) - 1
        items.append(draw_fill(last).append(f" {others}", "default"))
    lines = [Words()]
    for item in items:
        if lines[-1] and lines[-1].cell_len + 2 + item.cell_len > width:
            lines.append(Words())
        lines[-1].append("  " if lines[-1] else "").append_text(item)
    return Text("\n").join(lines)


def _sign(number: int, share: PodShare) -> Words:
    """Return the pod's fill in the bars; a nominated pod is in no bar."""
    return Words("+") if share.stay is Stay.NOMINATED else draw_fill(min(number, _MOST))


def _named(share: PodShare, node: NodeView) -> str:
    size = "whole card" if share.whole else _size(share.amount)
    marks = ", ".join(_marks(share, node))
    return f"{share.pod} {size}{f' ({marks})' if marks else ''}"


def _size(amount: Amount) -> str:
    return str(amount.units) if amount.units else words.cores(amount.cores)


def _marks(share: PodShare, node: NodeView) -> Iterator[str]:
    if share.by_claim:
        yield str(share.by_claim)
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
    text.append(f"  {words.cores(amount.cores)}")
    if not share.by_claim:
        text.append(f"  priority {share.pod.priority}")
    for mark in (*(["whole card"] if share.whole else []), *_marks(share, node)):
        text.append(f"  {mark}", _WARN)
    if share.isolation:
        text.append(f"  isolation {fit_to_show(share.isolation)}", _DIM)
    return text


def _namespaces(seen: Sequence[NamespaceView], *, wide: bool) -> Iterator[Words]:
    """Draw what each namespace's pods hold, and how much of its quotas is used.

    Of several quotas on one resource the one with the least left is shown; ``wide``
    shows all. A resource without any quota has no column.
    """
    if not seen:
        return
    shown = seen if wide else seen[:_MOST_QUOTAS]
    name = max(20, *(len(view.name) for view in shown)) if wide else 20
    columns = {
        resource: max(
            len(resource.removeprefix(f"{names.DOMAIN}/")),
            *(len(_used(_tightest(view, resource))) for view in shown),
        )
        for resource in COUNTED
        if any(_tightest(view, resource) for view in seen)
    }
    over, head = f"{'':{name}}      allotted", f"{'namespace':{name}}  units  cores"
    if seen[0].quotas is None:
        over += f"  quotas {words.NOT_KNOWN}"
    elif columns:
        over += "  used of quota"
    for resource, width in columns.items():
        head += f"  {resource.removeprefix(f'{names.DOMAIN}/'):>{width}}"
    yield Words(f"\n{over}", _DIM)
    yield Words(head, _DIM)
    for view in shown:
        units, cores = view.allotted.units, view.allotted.cores
        line = Words(f"{fit_column(view.name, name, 0)}{units:>7}{cores:>7}")
        for resource, width in columns.items():
            tight = _tightest(view, resource)
            over_it = tight is not None and _left(tight) < 0
            line.append(f"  {_used(tight):>{width}}", _WARN if over_it else None)
        yield line
        for quota in view.quotas or () if wide else ():
            text = f"  quota {quota.name}: {_used(quota)} of {quota.resource}"
            yield Words(text, _DIM)
    if more := len(seen) - len(shown):
        yield Words(f"and {words.counted(more, 'namespace')} more (-o wide)", _DIM)


def _tightest(view: NamespaceView, resource: str) -> Quota | None:
    here = [quota for quota in view.quotas or () if quota.resource == resource]
    return min(here, key=_left, default=None)


def _left(quota: Quota) -> float:
    if quota.hard is None or quota.used is None:
        return float("inf")
    return quota.hard - quota.used


def _used(quota: Quota | None) -> str:
    return f"{rounded(quota.used)}/{rounded(quota.hard)}" if quota else "-"


def _claiming(seen: Overview, *, wide: bool) -> Iterator[RenderableType]:
    """Name the pods that wait with claims; which cards they lack, ``why`` says."""
    if not seen.claiming:
        return
    many = words.counted(len(seen.claiming), "pod")
    yield Words(f"\n{many} with ResourceClaims pending", "bold")
    most = len(seen.claiming) if wide else _MOST_PENDING
    yield indent(Words(words.listed(seen.claiming, most)), 2)
    yield draw_step(f"gpusharectl why {seen.claiming[0]}", 2)


def _pending(seen: Overview, *, wide: bool) -> Iterator[RenderableType]:
    if not seen.pending:
        return
    yield Words(f"\n{words.counted(len(seen.pending), 'pod')} pending", "bold")
    shown = seen.pending if wide else seen.pending[:_MOST_PENDING]
    for waiting in shown:
        asks = words.format_claims(waiting.claims) or words.NOT_KNOWN
        old = f", {format_age(waiting.since, seen.at)} old" if waiting.since else ""
        yield Words(f"  {waiting.pod}  requests {asks}{old}")
        text = waiting.because
        if waiting.nominated:
            text += f"; pods on {waiting.nominated} are being preempted for it"
        if waiting.kube_scheduler and (waiting.room or wide):
            text += f"\nkube-scheduler: {waiting.kube_scheduler}"
        yield indent(Words(text))
    if more := len(seen.pending) - len(shown):
        yield Words(f"  and {more} more (-o wide)", _DIM)
    yield draw_step(f"gpusharectl why {seen.pending[0].pod}", 2)
