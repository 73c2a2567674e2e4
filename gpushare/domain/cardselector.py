"""Which cards a pod may have at all: those of some models, or some cards by name."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

ANY = "*"
"""First or last in a model's name: whatever stands there."""

_BEGINNING = re.compile(r"(gpu-|mig-)?[0-9a-f]{8}[-0-9a-f]*", re.ASCII)
"""Of a UUID: at least as many digits as a device id has of it."""
_KINDS = ("gpu-", "mig-")
"""What UUIDs begin with, and people leave out."""
_VENDOR = "nvidia "
"""What models begin with, and people leave out."""


class Limit(StrEnum):
    """A list by which a pod limits its cards; its annotation stands in ``kube``."""

    MODELS = "models"
    UUIDS = "uuids"


@dataclass(frozen=True, slots=True)
class _Names:
    """Entries of a list by what they mean, since filter asks of all cards there are."""

    whole: frozenset[str]
    starts: tuple[str, ...]
    ends: tuple[str, ...] = ()
    middles: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        return (
            name in self.whole
            or name.startswith(self.starts)
            or name.endswith(self.ends)
            or any(middle in name for middle in self.middles)
        )


@dataclass(frozen=True)
class CardSelector:
    """The cards that a pod allows itself: each list that is not empty must agree.

    ``of`` makes one of what people write, such that equal wishes are equal values.
    """

    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, models: Collection[str] = (), uuids: Collection[str] = ()
    ) -> "CardSelector":
        """Make one, whatever the case, the blanks and the order.

        >>> CardSelector.of(models=["Tesla  T4", "tesla t4", "A10"]).models
        ('a10', 'tesla t4')
        """
        return cls(_plain_all(models), _plain_all(uuids))

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Which lists there are."""
        lists = ((Limit.MODELS, self.models), (Limit.UUIDS, self.uuids))
        return tuple(limit for limit, entries in lists if entries)

    def against(self, uuid: str, model: str) -> tuple[Limit, ...]:
        """Give the lists that shut a card out; none where the pod may have it.

        A card whose model nobody knows is of no model that a list names.
        """
        found = []
        if self.models and not self._has_model(_plain(model)):
            found.append(Limit.MODELS)
        if self.uuids and not self._has_card(_plain(uuid)):
            found.append(Limit.UUIDS)
        return tuple(found)

    def _has_model(self, model: str) -> bool:
        names = self._models
        return names.has(model) or names.has(model.removeprefix(_VENDOR))

    def _has_card(self, uuid: str) -> bool:
        if self._uuids.has(uuid):
            return True
        return uuid.startswith(_KINDS) and uuid[len(_KINDS[0]) :].startswith(
            self._uuids.starts
        )

    @cached_property
    def _models(self) -> _Names:
        found: dict[tuple[bool, bool], list[str]] = {}
        for entry in self.models:
            stars = (entry.startswith(ANY), entry.endswith(ANY))
            middle = entry.removeprefix(ANY).removesuffix(ANY)
            found.setdefault(stars, []).append(middle)
        return _Names(
            frozenset(_with_and_without_vendor(found.get((False, False), ()))),
            starts=tuple(_with_and_without_vendor(found.get((False, True), ()))),
            ends=tuple(found.get((True, False), ())),
            middles=tuple(found.get((True, True), ())),
        )

    @cached_property
    def _uuids(self) -> _Names:
        starts = (entry for entry in self.uuids if _BEGINNING.fullmatch(entry))
        return _Names(frozenset(self.uuids), tuple(starts))


def _with_and_without_vendor(entries: Iterable[str]) -> Iterator[str]:
    for entry in entries:
        yield entry
        if bare := entry.removeprefix(_VENDOR):
            yield bare


def _plain_all(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({_plain(entry) for entry in entries}))


def _plain(text: str) -> str:
    """Take blanks and case for what they are to people: nothing."""
    return " ".join(text.split()).casefold()
