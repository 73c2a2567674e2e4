"""Join what the placements allot with what the exporters of the nodes report. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpushare.domain.model import NOTHING, Card, CardUUID, PodRef, PodUID
from gpushare.domain.node import Node
from gpushare.kube import words
from gpusharectl.output import format_age, format_duration, format_size
from gpusharectl.state.read import CLAIMS, Setup, Trouble
from gpusharectl.state.scrape import (
    MEMORY,
    PROCESSES,
    CardSeen,
    ContainerSeen,
    ExporterAnswer,
    NoAnswer,
    PageSeen,
    Result,
    sum_known,
)
from gpusharectl.state.view import (
    MOST_USERS,
    CardView,
    NodeView,
    Overview,
    PodShare,
    Stay,
)
from gpusharectl.top.rows import (
    CardRow,
    ContainerRow,
    Flag,
    PodRow,
    Sign,
    TopView,
    compute_excess,
    order_rows,
)

IDLE_S = 2 * 3600.0
"""As in the alert VcudaIdleAllocation."""
UNATTRIBUTED_MIB = 512.0
"""As in the alert VcudaUnattributedMemory; the driver itself uses less."""
OLD_S = 60.0
"""The groups of metrics are read every few seconds."""
_NOT_ASKED = NoAnswer("its exporter was not asked", "")
_EXPORTER_TROUBLES = {
    "cards": "finds no card, or the driver does not answer",
    "config": "cannot use its file of fields and keeps the fields that it had before",
    "kubelet": "does not learn from kubelet which devices the pods have",
    "pods": "cannot read the pods of its node",
    "processes": "cannot assign processes to pods",
}
"""By the label ``about`` of vcuda_exporter_trouble."""


def join_exporters(
    seen: Overview, results: Mapping[str, Result], namespace: str = ""
) -> TopView:
    """Join the overview with what the exporters of its nodes have answered.

    The pods of one namespace or of all; pods by memory, cards by node and index.
    """
    nodes: dict[str, str] = {}
    cards: list[CardRow] = []
    pods: list[PodRow] = []
    for view in seen.nodes:
        result = results.get(view.name, _NOT_ASKED)
        page = result.page if isinstance(result, ExporterAnswer) else PageSeen()
        nodes[view.name] = result.because if isinstance(result, NoAnswer) else ""
        cards += [_card(view.name, card, page) for card in view.cards]
        pods += _PodRows(view, seen.placements.node(view.name), page).all()
    of_claims = tuple(t for t in seen.troubles if t.about == CLAIMS)
    top = TopView(
        placements=seen.placements,
        at=seen.at,
        nodes=nodes,
        cards=tuple(cards),
        pods=tuple(row for row in pods if namespace in ("", row.namespace)),
        # The demo has no exporters, and nothing can be installed in it.
        troubles=(
            *of_claims,
            *(
                ()
                if seen.setup is Setup.DEMO
                else _troubles(results, seen.nodes, seen.at)
            ),
        ),
        elsewhere=len(seen.troubles) - len(of_claims),
        setup=seen.setup,
        others=seen.others,
    )
    return order_rows(top, None)


def _card(node: str, view: CardView, page: PageSeen) -> CardRow:
    seen = page.cards.get(view.card.uuid, CardSeen())
    flags = tuple(_card_flags(node, view.card, seen))
    return CardRow(node, view.card, view.allotted, seen, flags)


def _card_flags(node: str, card: Card, seen: CardSeen) -> Iterator[Flag]:
    if not card.healthy:
        text = "sick: no new pod comes here, running pods stay charged"
        text += f"; because {card.reason}" if card.reason else ""
        do = f"gpusharectl clear-card {node} {card.index}, after you have repaired it"
        yield Flag(Sign.SICK, text, do)
    if card.cordoned:
        do = f"gpusharectl uncordon-card {node} {card.index}"
        yield Flag(Sign.CORDONED, "cordoned: no new pod comes here", do)
    look = f"nvidia-smi on {node}"
    if seen.outside_mib:
        text = f"processes outside Kubernetes use {format_size(seen.outside_mib)}"
        yield Flag(Sign.OUTSIDE, text, look)
    hidden_mib = seen.unattributed_mib or 0
    if hidden_mib > UNATTRIBUTED_MIB:
        text = f"{format_size(hidden_mib)} of its memory belong to no known process"
        yield Flag(Sign.UNATTRIBUTED, text, look)


class _PodRows:
    """The rows of one node: by the placements, and as its exporter sees it."""

    def __init__(self, view: NodeView, node: Node | None, page: PageSeen) -> None:
        self._view = view
        self._placements = {} if node is None else node.placements
        self._page = page
        self._indexes = {str(view.card.uuid): view.card.index for view in view.cards}
        self._units = {str(view.card.uuid): view.card.units for view in view.cards}

    def all(self) -> Iterator[PodRow]:
        """Return the pods card by card, and those that use a card without a share."""
        known: set[tuple[str, str]] = set()
        unplaced: dict[str, PodShare] = {}
        on_cards = [
            (view.card.uuid, share) for view in self._view.cards for share in view.pods
        ]
        placed: list[tuple[CardUUID, PodShare]] = []
        for uuid, share in (
            *on_cards,
            *((gone.card, gone.share) for gone in self._view.gone),
        ):
            if share.stay is Stay.UNPLACED:
                unplaced[str(share.pod)] = share
            elif share.stay is Stay.PLACED:
                placed.append((uuid, share))
        for uuid, share, claims in _by_pod(placed):
            if claims or not share.by_claim:
                known.add((uuid, str(share.pod)))
            yield self._placed(uuid, share, claims)
        for name, share in unplaced.items():
            known |= {(uuid, name) for uuid in self._page.cards}
            yield self._unplaced(share)
        yield from self._without_share(known)

    def _placed(self, uuid: str, share: PodShare, claims: Sequence[PodShare]) -> PodRow:
        pod = share.pod
        seen: Sequence[ContainerSeen] = ()
        if claims or not share.by_claim:
            seen = self._page.of_pod(pod.namespace, pod.name, uuid)
        gone = Flag(Sign.GONE, f"its card no longer exists ({uuid})")
        flags = [*(() if uuid in self._indexes else (gone,))]
        flags += [_by_claim(claim, pod.uid) for claim in claims]
        row = self._row((pod.namespace, pod.name, uuid), seen, flags, share)
        if share.by_claim and not claims:
            claims = (share,)
        return replace(row, claims=tuple(claim.pod.name for claim in claims))

    def _unplaced(self, share: PodShare) -> PodRow:
        pod = share.pod
        seen = self._page.of_pod(pod.namespace, pod.name)
        text = "its card is not known; each card of the node is charged for it"
        if on := self._named({use.card for use in seen if use.is_busy}):
            text += f". It uses card {on}"
        flags = (Flag(Sign.UNPLACED, text),)
        return self._row((pod.namespace, pod.name, ""), seen, flags, share)

    def _without_share(self, known: set[tuple[str, str]]) -> Iterator[PodRow]:
        uses_of: dict[tuple[str, str, str], list[ContainerSeen]] = {}
        claimed = {
            str(view.card.uuid)
            for view in self._view.cards
            if any(share.by_claim and share.users is None for share in view.pods)
        }
        for use in self._page.containers:
            has_share = (use.card, f"{use.namespace}/{use.pod}") in known
            if use.pod and use.is_busy and not has_share:
                key = (use.namespace, use.pod, use.card)
                uses_of.setdefault(key, []).append(use)
        for key, seen in uses_of.items():
            text = "has no share of this card"
            if key[2] in claimed:
                text += "; it may use that of a ResourceClaim here"
            pod = f"{key[0]}/{key[1]}"
            if has := self._named(card for card, other in known if other == pod):
                text += f"; its share is on card {has}"
            yield self._row(key, seen, (Flag(Sign.NO_SHARE, text),))

    def _row(
        self,
        key: tuple[str, str, str],
        seen: Sequence[ContainerSeen],
        flags: Iterable[Flag],
        share: PodShare | None = None,
    ) -> PodRow:
        """Return a row; ``key`` is the pod's namespace and name, and the card."""
        namespace, name, uuid = key
        containers = self._containers(share, uuid, seen)
        used = sum_known([container.used_mib for container in seen])
        idle = _idle(self._page, seen)
        of_share = _flags(share, used, idle, containers) if share else ()
        return PodRow(
            namespace=namespace,
            name=name,
            uid=share.pod.uid if share else "",
            node=self._view.name,
            card=uuid,
            index=self._indexes.get(uuid),
            stay=share.stay if share else None,
            whole=share is not None and share.whole,
            allotted=share.amount if share else None,
            used_mib=used,
            sm_percent=sum_known([container.sm_percent for container in seen]),
            idle_s=idle,
            containers=containers,
            flags=(*flags, *of_share),
            card_units=self._units.get(uuid, 0),
        )

    def _containers(
        self, share: PodShare | None, uuid: str, seen: Sequence[ContainerSeen]
    ) -> tuple[ContainerRow, ...]:
        placement = self._placements.get(share.pod.uid) if share else None
        amounts = {
            container.name: container.amount
            for part in (placement.shares if placement else ())
            if part.card == uuid
            for container in part.containers
        }
        reported = {use.name for use in seen}
        silent = [ContainerSeen("", "", "", n) for n in amounts if n not in reported]
        rows = [ContainerRow(c.name, amounts.get(c.name), c) for c in (*seen, *silent)]
        order = {name: number for number, name in enumerate(amounts)}
        rows.sort(key=lambda row: order.get(row.name, len(order)))
        return tuple(rows)

    def _named(self, uuids: Iterable[str]) -> str:
        indexes = {self._indexes[uuid] for uuid in uuids if uuid in self._indexes}
        return ", ".join(map(str, sorted(indexes)))


def _flags(
    share: PodShare,
    used: float | None,
    idle: float | None,
    containers: Sequence[ContainerRow],
) -> Iterator[Flag]:
    # A whole card cannot be exceeded.
    if not share.whole and any(row.seen.over for row in containers):
        yield from (Flag(Sign.OVER, text) for text in _over(share, used, containers))
    if not_held := [row.name for row in containers if row.seen.held == 0]:
        text = f"not held to its share by its tier: container {', '.join(not_held)}"
        pod = share.pod
        do = f"kubectl describe pod -n {pod.namespace} {pod.name}"
        yield Flag(Sign.NOT_HELD, text, do)
    if idle is not None and idle >= IDLE_S:
        yield Flag(Sign.IDLE, f"idle for {format_duration(idle)}")
    if share.leaving:
        yield Flag(Sign.LEAVING, "terminating")
    if share.waits:
        yield Flag(Sign.NOT_STARTED, "not started")
    if share.by_claim and share.pod.is_resource_claim:
        yield Flag(Sign.CLAIM, str(share.by_claim))


def _by_pod(
    placed: Iterable[tuple[CardUUID, PodShare]],
) -> Iterator[tuple[CardUUID, PodShare, Sequence[PodShare]]]:
    """Return what each pod has of each card, and the claims by which it has it.

    A claim without a known pod is returned as if it were a pod.
    """
    shares_of: dict[tuple[CardUUID, PodUID], tuple[PodRef, list[PodShare]]] = {}
    for uuid, share in placed:
        holder = share.pod
        users = share.users or ()
        pods = [PodRef(user.uid, holder.namespace, user.name) for user in users]
        for pod in pods or [holder]:
            shares_of.setdefault((uuid, pod.uid), (pod, []))[1].append(share)
    for (uuid, _), (pod, shares) in shares_of.items():
        amount = sum((share.amount for share in shares), NOTHING)
        whole = any(share.whole for share in shares)
        claims = [s for s in shares if s.by_claim and s.pod.uid != pod.uid]
        yield uuid, replace(shares[0], pod=pod, amount=amount, whole=whole), claims


def _by_claim(claim: PodShare, pod: PodUID) -> Flag:
    """Say by which claim a pod has its share, and which other pods share it."""
    text = f"by claim {claim.pod.name}"
    if claim.by_claim and claim.by_claim.claim != "allocated":
        text += f", {claim.by_claim.claim}"
    others = [user.name for user in claim.users or () if user.uid != pod]
    if others:
        text += f", shared with {words.listed(others, MOST_USERS)}"
    return Flag(Sign.CLAIM, text)


def _over(
    share: PodShare, used: float | None, containers: Sequence[ContainerRow]
) -> Sequence[str]:
    """Say by how much the pod, or which of its containers, exceeds its share."""
    texts = []
    # What each container has of a claim is not known here.
    for row in containers if len(containers) > 1 and not share.by_claim else ():
        used_mib = row.seen.used_mib
        if not row.seen.over:
            continue
        if row.allotted is None and used_mib:
            uses = f"container {row.name} uses {format_size(used_mib)}"
            texts.append(f"{uses}, but requested none")
        elif over := compute_excess(row.allotted, used_mib):
            texts.append(
                f"container {row.name} uses {format_size(over)} more than its share"
            )
    if not texts and (over := compute_excess(share.amount, used)):
        return [f"uses {format_size(over)} more than its share"]
    return texts or ["its exporter reports that it exceeds its share"]


def _idle(page: PageSeen, containers: Sequence[ContainerSeen]) -> float | None:
    """Return the time since the last use, both by that node's clock."""
    now = page.times.get(PROCESSES)
    busy = [use.last_busy for use in containers if use.last_busy]
    return None if now is None or not busy else max(0.0, now - max(busy))


def _troubles(
    results: Mapping[str, Result], views: Sequence[NodeView], now: datetime
) -> Iterator[Trouble]:
    """Report nodes of which nothing is known, then those of which less is known."""
    indexes = {
        view.name: {str(view.card.uuid): view.card.index for view in view.cards}
        for view in views
    }
    silent: dict[tuple[str, str], list[str]] = {}
    for name, result in results.items():
        if isinstance(result, NoAnswer):
            silent.setdefault((result.because, result.do), []).append(name)
    for (because, do), names in silent.items():
        yield Trouble(words.listed(names, 3), because, do)
    for name, result in results.items():
        if isinstance(result, ExporterAnswer):
            for what in _of_page(result.page, now):
                yield Trouble(name, what, result.log)
            if cards := _without_sm(result.page, indexes.get(name, {})):
                what = f"the driver does not report SM use by process on card {cards}"
                yield Trouble(name, what, "gpusharectl top --by card shows its total")


def _of_page(page: PageSeen, now: datetime) -> Iterator[str]:
    for about in page.troubles:
        yield f"its exporter {_EXPORTER_TROUBLES.get(about, f'reports: {about}')}"
    if page.failed:
        groups = ", ".join(page.failed)
        yield f"its exporter could not read these groups of every card: {groups}"
    newest = max(page.times.values(), default=None)
    if newest is None:
        yield "its exporter has read nothing yet"
        return
    if PROCESSES not in page.times:
        yield "its exporter reads no processes; it may run with --disable-processes"
    for group in (MEMORY, PROCESSES):
        behind = newest - page.times.get(group, newest)
        if behind > OLD_S:
            yield f"its values of {group} are {format_duration(behind)} old"
    if now.timestamp() - newest > OLD_S:
        when = datetime.fromtimestamp(newest, now.tzinfo).isoformat()
        yield (
            f"its newest values are {format_age(when, now)} old by this computer's "
            "clock: the exporter hangs, or the clocks differ"
        )


def _without_sm(page: PageSeen, indexes: Mapping[str, int]) -> str:
    """Return the cards whose pods use memory while their SM use is not known.

    ``indexes`` are those of the other rows; the page has only the number of the card
    that a MIG instance is a part of.
    """
    unknown = {
        str(indexes.get(use.card, page.cards[use.card].index))
        for use in page.containers
        if use.used_mib and use.sm_percent is None and use.card in page.cards
        if page.cards[use.card].sm_source == "none" and use.pod
    }
    return ", ".join(sorted(unknown, key=lambda index: (len(index), index)))
