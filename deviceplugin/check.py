"""Report what the device plugin would find on this node; nothing is changed.

``gpusharectl check-node`` runs it in a pod with the same access as the device plugin's.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

from deviceplugin.allocation.injection import InjectionChooser
from deviceplugin.cards.devices import colliding_cards, shared_card
from deviceplugin.settings import DevicePluginSettings
from gpushare.cards.combined import CombinedCards
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import CardSource, FoundCard, FoundCards, NoCardsYet
from gpushare.domain.model import Card
from gpushare.kube.annotations import why_too_many
from gpushare.kube.cluster import Json

FIRST_ANSWER_S = 60.0
"""How long a driver without a persistence daemon may take."""
_MOST, _LONGEST = 4, 250
"""How many reasons of a kind an answer has, and their characters."""
_VERSION = re.compile(r"\b\d+\.\d+(\.\d+)?\b")


def report_node(
    settings: DevicePluginSettings, sources: Sequence[CardSource], status: Json
) -> Json:
    """Return the driver, the cards, and how they would be injected, as JSON values.

    ``status`` is the node's, from the API server. ``module`` is the version of the
    loaded driver, "" if it is not known, None without one; ``driver`` is the version by
    which NVML has answered, and ``problem`` says why no card has. ``injection`` is None
    if there is no card of the driver.
    """
    try:
        on_node, problem = CombinedCards(sources).cards(), ""
    except NoCardsYet as error:
        on_node, problem = FoundCards(()), str(error)
    versions = [
        source.driver_version() for source in sources if isinstance(source, NvmlCards)
    ]
    shared = [shared_card(card, settings.reserve_mib) for card in on_node.cards]
    # Because of these the node would share no card at all.
    whole_node = colliding_cards(on_node.cards)
    if excess := why_too_many([card for card in shared if card.units]):
        whole_node.append(f"the node {excess}")
    return {
        "v": 1,
        "module": loaded_module(settings.host_root),
        "driver": "".join(versions),
        "problem": problem,
        "cards": [] if whole_node else _counted(on_node.cards, shared),
        "left_out": _some(
            [
                *whole_node,
                *(f"{card.name}: {card.because}" for card in on_node.left_out),
            ]
        ),
        "injection": _injection(settings, on_node.cards, status),
    }


def _counted(cards: Sequence[FoundCard], shared: Sequence[Card]) -> list[Json]:
    """Return each kind of cards with its number: a node may have 56 instances."""
    kinds = Counter(
        (card.model, card.memory_mib, offered.units)
        for card, offered in zip(cards, shared, strict=True)
    )
    return [
        {"model": model, "memory_mib": memory_mib, "units": units, "count": count}
        for (model, memory_mib, units), count in kinds.items()
    ]


def _some(reasons: Sequence[str]) -> list[str]:
    """Return the first reasons: kubelet keeps 4096 bytes of the answer."""
    more = [f"and {len(reasons) - _MOST} more"] if len(reasons) > _MOST else []
    return [
        *(shorten(reason, _LONGEST, placeholder="…") for reason in reasons[:_MOST]),
        *more,
    ]


def loaded_module(root: Path) -> str | None:
    """Return the version of the driver in the kernel, "" if unknown; None if none."""
    for path in (
        root / "sys/module/nvidia/version",
        root / "proc/driver/nvidia/version",
    ):
        try:
            text = path.read_text()
        except OSError:
            continue
        version = _VERSION.search(text)
        return version[0] if version else ""
    return None


def _injection(
    settings: DevicePluginSettings, cards: Sequence[FoundCard], status: Json
) -> Json | None:
    real = [card for card in cards if card.known_to_driver and not card.simulated]
    if not real:
        return None
    chooser = InjectionChooser(
        settings.inject, settings.cdi_dirs, lambda: status, root=settings.host_root
    )
    chooser.choose_for(card.uuid for card in real)
    return {
        "by": chooser.chosen,
        "because": chooser.because,
        "held": _some(list(chooser.held_back.values())),
    }
