"""How well the cards of a node are joined: their NVLinks, and what of PCIe they share.

None of this was read from a real card yet (``docs/isolation.md, On hardware``).
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from types import MappingProxyType

import pynvml

from gpushare.cards import nvml
from gpushare.cards.deadline import DeadlineCalls
from gpushare.cards.source import FoundCard
from gpushare.domain.links import NVLINK
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

_PCIE: Mapping[int, int] = MappingProxyType(
    {
        pynvml.NVML_TOPOLOGY_SYSTEM: 10,
        pynvml.NVML_TOPOLOGY_NODE: 20,
        pynvml.NVML_TOPOLOGY_HOSTBRIDGE: 30,
        pynvml.NVML_TOPOLOGY_MULTIPLE: 40,
        pynvml.NVML_TOPOLOGY_SINGLE: 50,
        pynvml.NVML_TOPOLOGY_INTERNAL: 60,
    }
)
"""The score of a pair by the nearest part of the node that both are under: from two
processors, over one processor, to a common board."""
_NO_SUCH_LINK = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT}
)
_SWITCH = "NVSwitch"

_Links = Counter[str]
"""A card's active NVLinks by the bus address of the other end, or ``NVSwitch``."""
_Answer = int | _Links | None
"""The score of what a pair shares of PCIe, or a card's NVLinks; None if not known."""
_Question = tuple[str, ...]
"""What is asked, and the UUIDs of the one or two cards that it is about."""


class CardLinks:
    """The pair scores of one driver's cards, each read once.

    A call that fails is logged once and made again at each look. What a driver does not
    support is not asked again, and the pair is not known.
    """

    def __init__(self, calls: DeadlineCalls) -> None:
        self._calls = calls
        self._known: dict[_Question, _Answer] = {}
        self._noted = ("", "")

    def joined(
        self, cards: Sequence[FoundCard], handles: Mapping[CardUUID, nvml.Handle]
    ) -> tuple[FoundCard, ...]:
        """Return the cards, the full ones with the scores of the pairs that are known.

        MIG instances have none, because NVLinks cannot be used between them.
        """
        full = [card for card in cards if card.instance is None]
        self._ask([card for card in full if card.uuid in handles], handles)
        scores: dict[CardUUID, dict[CardUUID, int]] = {}
        for a, b in combinations(full, 2):
            if (score := self._score(a, b)) is not None:
                scores.setdefault(a.uuid, {})[b.uuid] = score
                scores.setdefault(b.uuid, {})[a.uuid] = score
        return tuple(replace(c, links=scores.get(c.uuid, {})) for c in cards)

    def _ask(
        self, cards: Sequence[FoundCard], handles: Mapping[CardUUID, nvml.Handle]
    ) -> None:
        """Read what is not known yet, each call with its deadline.

        Only cards that told their NVLinks are asked for pairs, so that one that hangs
        holds up a single call.
        """
        if len(cards) < 2:  # noqa: PLR2004
            return
        links = {card.uuid: partial(_nvlinks, handles[card.uuid]) for card in cards}
        failed = self._run({_of_card(uuid): call for uuid, call in links.items()})
        known = [
            card for card in cards if self._known.get(_of_card(card.uuid)) is not None
        ]
        failed |= self._run(
            {
                _path(a, b): partial(_pcie, handles[a.uuid], handles[b.uuid])
                for a, b in combinations(known, 2)
            }
        )
        self._note(failed)

    def _run(
        self, calls: Mapping[_Question, Callable[[], _Answer]]
    ) -> dict[_Question, Exception]:
        failed: dict[_Question, Exception] = {}
        new = {name: call for name, call in calls.items() if name not in self._known}
        for name, answer in self._calls.make_all(new).items():
            if isinstance(answer, Exception):
                failed[name] = answer
            else:
                self._known[name] = answer
        return failed

    def _note(self, failed: Mapping[_Question, Exception]) -> None:
        """Log what is not read, once until it changes."""
        cards = ", ".join(sorted({uuid for name in failed for uuid in name[1:]}))
        because = "; ".join(sorted({str(error) for error in failed.values()}))
        if failed and (cards, because) != self._noted:
            facts = {"cards": cards, "because": because}
            logger.warning("links between cards not read yet", extra=facts)
        self._noted = (cards, because)

    def _score(self, a: FoundCard, b: FoundCard) -> int | None:
        path = self._known.get(_path(a, b))
        of_a = self._known.get(_of_card(a.uuid))
        of_b = self._known.get(_of_card(b.uuid))
        if (
            not isinstance(path, int)
            or not isinstance(of_a, Counter)
            or not isinstance(of_b, Counter)
        ):
            return None
        # A link that only one end reports is not used, so the fewer count.
        direct = min(of_a[b.bus or ""], of_b[a.bus or ""])
        # All cards on the NVSwitches of a node reach each other by all their links.
        return path + NVLINK * (direct + min(of_a[_SWITCH], of_b[_SWITCH]))


def _of_card(uuid: CardUUID) -> _Question:
    return ("links", uuid)


def _path(a: FoundCard, b: FoundCard) -> _Question:
    return ("path", *sorted((a.uuid, b.uuid)))


def _pcie(a: nvml.Handle, b: nvml.Handle) -> int | None:
    """Return the score of what two cards share of PCIe; None if it is not known."""
    level = nvml.query(lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(a, b))
    return None if level is None else _PCIE.get(level)


def _nvlinks(handle: nvml.Handle) -> _Links | None:
    """Return a card's active NVLinks; None if the driver cannot tell all of them."""
    return nvml.query(lambda: _active(handle))


def _active(handle: nvml.Handle) -> _Links:
    links = _Links()
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, number)
        except pynvml.NVMLError as error:
            if error.value in _NO_SUCH_LINK:
                continue
            raise
        if active:
            links[_other_end(handle, number)] += 1
    return links


def _other_end(handle: nvml.Handle, number: int) -> str:
    with suppress(pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return _SWITCH
    return str(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId)
