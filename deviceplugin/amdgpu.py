"""Telemetry of AMD's cards, under the same names as NVIDIA's, from plain files."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from deviceplugin import amdcards, amdvalues
from deviceplugin.amdcards import AmdCard
from deviceplugin.amdfiles import NotThere
from deviceplugin.asking import Asking, Late
from deviceplugin.cards import Found, LeftOut, NoCardsYet, XidEvent
from deviceplugin.telemetry import CardSays, ProcessesSay, SmSource
from gpushare.domain.model import CardUUID

DEADLINE_S = 5.0


class AmdTelemetry:
    """A ``Telemetry`` over amdgpu's files.

    ``root`` is where the host's ``/sys`` is found. ``deadline_s`` is how long one card
    may take over one group, or over being found: reading its files asks the card, which
    may hang.
    """

    def __init__(
        self, root: Path = Path("/"), *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._root = root
        self._asking = Asking(deadline_s)
        self._knowing = threading.Lock()
        self._known: dict[CardUUID, AmdCard] = {}
        self._closed = threading.Event()

    def cards(self) -> Found:
        """Look at the node: a card known once stays listed under its index.

        ``NoCardsYet`` where amdgpu drives none now, or its list of them hangs.
        """
        folder = self._root / amdcards.CARDS
        try:
            places = self._asking.ask_one(
                "places", partial(amdcards.places, self._root)
            )
        except Late as error:
            raise NoCardsYet(f"{folder}: {error}") from error
        if not places:
            raise NoCardsYet(f"{folder} shows no card of the amdgpu driver")
        found = amdcards.found(
            self._asking.ask(
                {place: partial(amdcards.described, place) for place in places}
            )
        )
        with self._knowing:
            for one in found:
                if isinstance(one, AmdCard):
                    self._remember(one)
            cards = [one.card for one in self._known.values()]
        known = {card.bus for card in cards}
        left_out = tuple(
            one for one in found if isinstance(one, LeftOut) and one.name not in known
        )
        return Found(tuple(sorted(cards, key=lambda card: card.index)), left_out)

    def driver_version(self) -> str:
        """Give amdgpu's version; empty where it came with the kernel, or hangs."""
        version = partial(amdcards.driver_version, self._root)
        try:
            return self._asking.ask_one("version", version)
        except Late:
            return ""

    def read(self, group: str, fields: Collection[str]) -> Mapping[CardUUID, CardSays]:
        """Read the files of each card."""
        wanted = sorted(fields)
        answers = self._asking.ask(
            {
                (group, uuid): partial(_says, one, wanted)
                for uuid, one in self._all_known().items()
            }
        )
        return {
            uuid: CardSays(failure=_why(answer))
            if isinstance(answer, Exception)
            else answer
            for (_, uuid), answer in answers.items()
        }

    def processes(self) -> Mapping[CardUUID, ProcessesSay]:
        """List the compute processes; amdkfd tells their memory and nothing else."""
        answers = self._asking.ask(
            {
                ("processes", uuid): partial(_processes_say, self._root, one)
                for uuid, one in self._all_known().items()
            }
        )
        return {
            uuid: ProcessesSay(known=False, failure=_why(answer))
            if isinstance(answer, Exception)
            else answer
            for (_, uuid), answer in answers.items()
        }

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait in vain: XIDs are NVIDIA's."""
        self._closed.wait(timeout_s)
        return None

    def close(self) -> None:
        """Wake whoever waits for an event."""
        self._closed.set()

    def _all_known(self) -> Mapping[CardUUID, AmdCard]:
        with self._knowing:
            known = dict(self._known)
        if not known:
            self.cards()
            with self._knowing:
                known = dict(self._known)
        return known

    def _remember(self, one: AmdCard) -> None:
        known = self._known.get(one.card.uuid)
        taken = {other.card.index for other in self._known.values()}
        index = one.card.index
        if known is not None:
            index = known.card.index
        elif index in taken:
            index = max(taken) + 1
        self._known[one.card.uuid] = replace(one, card=replace(one.card, index=index))


class _Gone(Exception):
    """The card is not in its place any more."""


def _find(one: AmdCard) -> None:
    if not amdcards.is_there(one):
        raise _Gone(f"{one.card.bus} is not there any more")


def _says(one: AmdCard, wanted: Collection[str]) -> CardSays:
    """Read each field; one that cannot be told now is missing, no more than that."""
    _find(one)
    values: dict[str, float] = {}
    unsupported: set[str] = set()
    why = ""
    for name in wanted:
        try:
            values[name] = amdvalues.value(one.device, name)
        except NotThere:
            unsupported.add(name)
        except OSError as error:
            why = _why(error)
    if why and not values:
        return CardSays(failure=why)
    return CardSays(values, frozenset(unsupported))


def _processes_say(root: Path, one: AmdCard) -> ProcessesSay:
    _find(one)
    try:
        listed = amdcards.processes(root, one)
    except NotThere:
        return ProcessesSay(known=False, sm_source=SmSource.CARD)
    return ProcessesSay(listed, SmSource.CARD)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
