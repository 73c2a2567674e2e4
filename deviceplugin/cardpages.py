"""What a page of metrics says of cards: one series a card, no copy for each pod."""

from dataclasses import dataclass

from deviceplugin import ownfields as own
from deviceplugin.cards import FoundCard
from deviceplugin.fields import ALLOTMENT, GROUPS, PROCESSES, XID_ERRORS, Field
from deviceplugin.page import Labels, Page, Scene, card_labels
from deviceplugin.snapshot import ProcessRound, Round, Snapshot
from deviceplugin.usage import CardUse
from gpushare.domain.model import UNIT_MIB, CardUUID

MIB = 1 << 20
KNOWN_XIDS = (13, 31, 43, 45, 68, 109, 48, 63, 64, 74, 79, 94, 95, 119, 120)
"""Those that alerts speak of. They are shown before they happen, as 0: of a series that
begins with 1 Prometheus cannot see that it rose."""
_LATE_S = 15.0
"""So long a round may take beyond its pace: the driver's deadline, and then some."""
_EVERY_S = {group.name: group.every_s for group in GROUPS}


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

    Lately goes by each group's own pace: one that failed counts until it is asked
    again.
    """
    answers = _lately(snapshot, uuid)
    return not any(one.sick for one in answers) if answers else None


@dataclass(frozen=True, slots=True)
class _Answer:
    """How a card answered to one group; ``sick`` where it or its driver is gone."""

    at: float
    sick: bool


def _lately(snapshot: Snapshot, uuid: CardUUID) -> list[_Answer]:
    rounds: dict[str, Round | ProcessRound] = {**snapshot.rounds}
    if snapshot.processes is not None:
        rounds[PROCESSES] = snapshot.processes
    newest = max((one.at for one in rounds.values()), default=0.0)
    found: list[_Answer] = []
    for group, one in rounds.items():
        says = one.cards.get(uuid)
        if one.at < newest - _EVERY_S[group] - _LATE_S or not (says or one.failure):
            continue
        sick = bool(one.failure or (says and says.failure))
        found.append(_Answer(one.at, sick))
    return found


def _lost_at(snapshot: Snapshot, uuid: CardUUID) -> float:
    """Give when a card failed last, of what still counts; before all time if never."""
    failed = (one.at for one in _lately(snapshot, uuid) if one.sick)
    return max(failed, default=float("-inf"))


def _put_field(
    page: Page, scene: Scene, what: Field, labels: dict[CardUUID, Labels]
) -> None:
    snapshot = scene.snapshot
    found = snapshot.rounds.get(what.group)
    for card in scene.found.cards:
        if what.name == XID_ERRORS:
            if (tally := snapshot.xids.get(card.uuid)) is not None:
                code = {"err_code": str(tally.last)}
                page.put(what, labels[card.uuid] | code, tally.last)
            continue
        says = found.cards.get(card.uuid) if found else None
        # A slow group would go on showing a lost card's values of a minute ago.
        old = found and found.at < _lost_at(snapshot, card.uuid) - _LATE_S
        if says is not None and not old:
            page.put(what, labels[card.uuid], says.values.get(what.name))


def _put_health(page: Page, scene: Scene, card: FoundCard, labels: Labels) -> None:
    healthy = is_healthy(scene.snapshot, card.uuid)
    word = "" if healthy is None else str(healthy).lower()
    page.put(own.CARD_INFO, labels | {"healthy": word}, 1)
    page.put(own.CARD_HEALTHY, labels, healthy)


def _put_faults(page: Page, scene: Scene, card: FoundCard, labels: Labels) -> None:
    tally = scene.snapshot.xids.get(card.uuid)
    if tally is None:
        # It reports none of its own, or was not asked yet whether it does.
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
