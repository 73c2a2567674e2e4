"""What a page of metrics says of containers: one series for a container on a card.

Summed over its processes: a series for each would let an idle one dilute an average.
0 while it is idle, none while nobody knows, none once its pod has gone.
"""

from deviceplugin import ownfields as own
from deviceplugin.fields import ALLOTMENT, PROCESSES
from deviceplugin.page import Labels, Page, Scene, card_labels, container_labels
from deviceplugin.usage import ContainerUse
from deviceplugin.watchdog import is_over
from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB


def put_containers(page: Page, scene: Scene) -> None:
    """Put all series of all containers, and of what runs outside Kubernetes."""
    cards = card_labels(scene)
    labelled = [
        (use, container_labels(cards[use.card], use))
        for use in scene.usage.containers
        if use.card in cards
    ]
    if scene.on(PROCESSES):
        for use, labels in labelled:
            _put_use(page, use, labels)
    if scene.on(ALLOTMENT):
        for use, labels in labelled:
            _put_allotment(page, use, labels)
    if scene.on(PROCESSES) and scene.on(ALLOTMENT):
        for use, labels in labelled:
            _put_both(page, use, labels)


def _put_use(page: Page, use: ContainerUse, labels: Labels) -> None:
    page.put(own.SM_UTIL, labels, use.sm)
    page.put(own.MEM_COPY, labels, use.memory_copy)
    page.put(own.ENCODE, labels, use.encoder)
    page.put(own.DECODE, labels, use.decoder)
    page.put(own.MEM_USED, labels, use.memory_mib)
    if use.uid:
        page.put(own.LAST_BUSY, labels, use.last_busy)


def _put_allotment(page: Page, use: ContainerUse, labels: Labels) -> None:
    if use.allotted is None:
        return
    ratio = use.allotted.cores / CORES_PER_CARD
    # Of cores alone nobody said how much memory: by 0 everything would be too much.
    page.put(own.MEM_ALLOCATED, labels, use.allotted.units * UNIT_MIB or None)
    page.put(own.CP_ALLOCATED, labels, ratio)
    page.put(own.CORE_LIMIT, labels, ratio or None)


def _put_both(page: Page, use: ContainerUse, labels: Labels) -> None:
    """Put what use is beside the allotment; a limit of 0 cores is none."""
    over = is_over(use)
    page.put(own.OVER_SHARE, labels, None if over is None else int(over))
    if use.allotted is not None and use.allotted.cores and use.sm is not None:
        # A percent of the whole card, and a hundredth of it, are the same.
        page.put(own.CORE_USE, labels, use.sm / use.allotted.cores)
