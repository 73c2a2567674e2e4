"""What a page of metrics says of cards: one series a card, no copy for each pod."""

from deviceplugin import ownfields as own
from deviceplugin.cards import FoundCard
from deviceplugin.fields import ALLOTMENT, FAULTS, PROCESSES, XID_ERRORS, Field
from deviceplugin.page import Labels, Page, Scene, card_labels
from deviceplugin.snapshot import ProcessRound, Round, Snapshot, XidTally
from deviceplugin.usage import CardUse
from gpushare.domain.model import UNIT_MIB, CardUUID

MIB = 1 << 20
KNOWN_XIDS = (13, 31, 43, 45, 68, 109, 48, 63, 64, 74, 79, 94, 95, 119, 120)
"""Those that alerts speak of. They are shown before they happen, as 0: of a series that
begins with 1 Prometheus cannot see that it rose."""
_LATELY_S = 15.0


def put_cards(page: Page, scene: Scene) -> None:
    """Put all series of all cards."""
    labels = card_labels(scene)
    for what in scene.snapshot.fields:
        if scene.on(what.group):
            _put_field(page, scene, what, labels)
    for card in scene.found.cards:
        its = labels[card.uuid]
        _put_health(page, scene, card, its)
        _put_faults(page, scene, card, its)
        use = scene.usage.cards.get(card.uuid, CardUse())
        if scene.on(ALLOTMENT):
            _put_allotment(page, card, use, its)
        if scene.on(PROCESSES) and scene.snapshot.processes is not None:
            page.put(own.SM_SOURCE, its | {"source": use.sm_source}, 1)
            unattributed = use.unattributed_mib
            known = None if unattributed is None else unattributed * MIB
            page.put(own.CARD_UNATTRIBUTED, its, known)


def is_healthy(snapshot: Snapshot, uuid: CardUUID) -> bool | None:
    """Tell whether a card answered to all that it was asked lately; None: not asked.

    What a slow group was told a minute ago says nothing of now.
    """
    rounds: list[Round | ProcessRound] = list(snapshot.rounds.values())
    if snapshot.processes is not None:
        rounds.append(snapshot.processes)
    newest = max((one.at for one in rounds), default=0.0)
    asked = False
    for one in rounds:
        says = one.cards.get(uuid)
        if one.at < newest - _LATELY_S or not (says or one.failure):
            continue
        if one.failure or (says and says.failure):
            return False
        asked = True
    return True if asked else None


def _put_field(
    page: Page, scene: Scene, what: Field, labels: dict[CardUUID, Labels]
) -> None:
    snapshot = scene.snapshot
    found = snapshot.rounds.get(what.group)
    for card in scene.found.cards:
        if what.name == XID_ERRORS:
            tally = _tally(snapshot, card)
            page.put(what, labels[card.uuid], tally.last if tally else None)
            continue
        says = found.cards.get(card.uuid) if found else None
        if says is not None:
            page.put(what, labels[card.uuid], says.values.get(what.name))


def _tally(snapshot: Snapshot, card: FoundCard) -> XidTally | None:
    """Give a card's faults; None for one that reports none of its own."""
    known = snapshot.xids.get(card.uuid)
    if known is not None:
        return known
    round_ = snapshot.rounds.get(FAULTS)
    says = round_.cards.get(card.uuid) if round_ else None
    mute = says is not None and XID_ERRORS in says.unsupported
    return XidTally() if card.known_to_driver and not mute else None


def _put_health(page: Page, scene: Scene, card: FoundCard, labels: Labels) -> None:
    healthy = is_healthy(scene.snapshot, card.uuid)
    word = "" if healthy is None else str(healthy).lower()
    page.put(own.CARD_INFO, labels | {"healthy": word}, 1)
    page.put(own.CARD_HEALTHY, labels, healthy)


def _put_faults(page: Page, scene: Scene, card: FoundCard, labels: Labels) -> None:
    tally = _tally(scene.snapshot, card)
    if tally is None:
        return
    counts = dict.fromkeys(KNOWN_XIDS, 0) | dict(tally.counts)
    for xid, count in sorted(counts.items()):
        page.put(own.XIDS, labels | {"xid": str(xid)}, count)


def _put_allotment(page: Page, card: FoundCard, use: CardUse, labels: Labels) -> None:
    page.put(own.DEV_FB_TOTAL, labels, card.memory_mib)
    units = use.allotted_units
    if units is None:
        return
    share = units * UNIT_MIB / card.memory_mib if card.memory_mib else None
    page.put(own.FB_ALLOCATED, labels, share)
    mode = 1 if use.exclusive else 2
    page.put(own.ALLOCATE_MODE, labels, mode if units or use.exclusive else 0)
    page.put(own.CARD_ALLOCATED, labels, units * UNIT_MIB * MIB)
