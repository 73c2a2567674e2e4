"""From a picture to what inspect shows. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpushare.cache.shortage import largest_block, shortage
from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.kube import codec, facts, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord
from gpushare.kube.json_reader import Malformed
from gpusharectl.state.read import Picture
from gpusharectl.state.troubles import troubles
from gpusharectl.state.view import (
    CardView,
    NodeView,
    Stay,
    Survey,
    Tenant,
    Waiting,
    namespaces,
)

NO_PLUGIN = "missing"
PLUGIN_NOT_READY = "not ready"
PLUGIN_READY = "ready"


def survey(picture: Picture, only: str = "") -> Survey:
    """Give all nodes that share cards or should, or only the one of this name."""
    pages = {str(page.name): page for page in picture.books.pages}
    known = {facts.name_of(node): node for node in picture.nodes}
    shown = sorted(name for name in {*pages, *known} if _shares(name, pages, known))
    others = len(known.keys() - set(shown))
    if only:
        shown, others = [only], 0
    views = tuple(_node(picture, name, pages.get(name)) for name in shown)
    seen = [pages[name] for name in shown if name in pages]
    return Survey(
        picture.books,
        picture.now,
        views,
        others,
        tuple(_pending(picture)),
        largest_block(seen),
        tuple(troubles(picture)),
        namespaces(picture),
    )


def _shares(name: str, pages: dict[str, Node], known: dict[str, Json]) -> bool:
    page = pages.get(name)
    if page and (page.cards or page.placements or page.unplaced):
        return True
    node = known.get(name)
    return node is not None and (
        facts.is_labelled(node) or bool(facts.annotation(node, names.CARDS))
    )


def _node(picture: Picture, name: str, page: Node | None) -> NodeView:
    node = picture.node(name)
    shown = page or Node(NodeName(name))
    here = {card.uuid for card in shown.cards}
    return NodeView(
        name=name,
        ready=None if node is None else facts.holds(node, "Ready"),
        schedulable=node is not None and not facts.is_unschedulable(node),
        labelled=node is not None and facts.is_labelled(node),
        plugin=plugin_on(picture, name),
        offered_units=facts.allocatable(node, names.MEMORY) if node else None,
        offered_cores=facts.allocatable(node, names.CORE) if node else None,
        cards=tuple(_card(picture, shown, card) for card in shown.cards),
        gone=tuple(one for one in _shares_of(picture, shown) if one[0] not in here),
        complaint=_complaint(node),
    )


def plugin_on(picture: Picture, name: str) -> str:
    """Say how the device plugin's pod on a node is; a mere process is ``missing``."""
    ready = picture.plugins.get(name)
    if ready is None:
        return NO_PLUGIN
    return PLUGIN_READY if ready else PLUGIN_NOT_READY


def _complaint(node: Json | None) -> str:
    if node is None:
        return "the API server knows no such node"
    try:
        codec.cards(node)
    except Malformed as error:
        return str(error)
    return ""


def _card(picture: Picture, page: Node, card: Card) -> CardView:
    cores, units = replace(page, nominations={}).charged.get(card.uuid, (0, 0))
    tenants = [one for uuid, one in _shares_of(picture, page) if uuid == card.uuid]
    tenants += _unplaced(picture, page, card)
    tenants.sort(key=_largest_first)
    return CardView(
        card,
        Amount(cores, units) + page.unknown[card.uuid],
        page.free.get(card.uuid),
        tuple(tenants),
    )


def _largest_first(tenant: Tenant) -> tuple[bool, int, int, str, str]:
    amount, pod = tenant.amount, tenant.pod
    coming = tenant.stay is Stay.NOMINATED
    return (coming, -amount.units, -amount.cores, pod.namespace, pod.name)


def _shares_of(picture: Picture, page: Node) -> Iterator[tuple[CardUUID, Tenant]]:
    yield from _held(picture, page.placements.values(), Stay.PLACED)
    kept = [
        placement
        for uid, placement in page.nominations.items()
        if uid not in page.placements and uid not in page.unplaced
    ]
    yield from _held(picture, kept, Stay.NOMINATED)


def _held(
    picture: Picture, placements: Iterable[Placement], stay: Stay
) -> Iterator[tuple[CardUUID, Tenant]]:
    for placement in placements:
        record, pod = picture.read.get(placement.pod.uid, (None, None))
        for share in placement.shares:
            tenant = Tenant(
                placement.pod,
                share.amount,
                stay,
                whole=share.amount.cores >= CORES_PER_CARD,
                planned=planned_elsewhere(record, placement),
                leaving=record is not None and record.terminating,
                waits="" if pod is None else facts.waits_because(pod),
            )
            yield share.card, tenant


def planned_elsewhere(
    record: PodRecord | None, held: Placement
) -> tuple[CardUUID, ...]:
    """Give the cards that were planned, where they are not those that it has."""
    if record is None or record.plan is None:
        return ()
    planned = record.plan.cards()
    return () if set(planned) == set(held.cards()) else planned


def _unplaced(picture: Picture, page: Node, card: Card) -> Iterator[Tenant]:
    for uid, asked in page.unplaced.items():
        whole = any(claim.whole_cards for claim in asked.claims)
        amount = sum((claim.amount for claim in asked.claims), NOTHING)
        pod = _object(picture, uid)
        yield Tenant(
            asked.pod,
            card.capacity if whole else amount,
            Stay.UNPLACED,
            whole=whole,
            leaving=pod is not None and facts.is_leaving(pod),
            waits="" if pod is None else facts.waits_because(pod),
        )


def _object(picture: Picture, uid: PodUID) -> Json | None:
    found = picture.read.get(uid)
    return None if found is None else found[1]


def _pending(picture: Picture) -> Iterator[Waiting]:
    reserved = {uid for page in picture.books.pages for uid in page.placements}
    waiting = [
        (record, pod)
        for record, pod in picture.read.values()
        if not record.node and record.pod.uid not in reserved and _asks(record)
    ]
    for record, pod in sorted(waiting, key=lambda one: _order(one[0].pod)):
        yield _waiting(picture, record, pod)


def _asks(record: PodRecord) -> bool:
    return record.asks or not isinstance(record.request, PodRequest)


def _order(pod: PodRef) -> tuple[int, str, str]:
    return (-pod.priority, pod.namespace, pod.name)


def _waiting(picture: Picture, record: PodRecord, pod: Json) -> Waiting:
    request = record.request
    claims = request.claims if isinstance(request, PodRequest) else ()
    told = facts.condition(pod, "PodScheduled")
    found = shortage(record, picture.books.pages, picture.books.choice)
    return Waiting(
        record.pod,
        words.claims(claims) or words.NOT_KNOWN,
        tuple(claim.amount for claim in claims),
        request.policy if isinstance(request, PodRequest) else None,
        facts.created(pod),
        found.because,
        bool(found.fits),
        str(told.get("message") or ""),
        str(record.nominated),
    )
