"""Which cards a pod may have: cards of some models, or cards by UUID."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

ANY = "*"
"""First or last in a model's name: any text."""
NOT = "!"
"""Before an entry: not these cards."""

_BEGINNING = re.compile(r"(gpu-|mig-)?[0-9a-f]{8}[-0-9a-f]*", re.ASCII)
"""The start of a UUID: at least as many digits as a device id has of it."""
_KINDS = ("gpu-", "mig-")
"""Prefixes of UUIDs that users leave out."""
_VENDOR = "nvidia "
"""A prefix of models that users leave out."""
_PROFILE = re.compile(r".+ MIG (\S+)", re.IGNORECASE)


def read_mig_profile(model: str) -> str:
    """Return the size in the model of a MIG instance; empty for a full card.

    >>> read_mig_profile("NVIDIA A100-SXM4-40GB MIG 2g.10gb")
    '2g.10gb'
    >>> read_mig_profile("Tesla T4")
    ''
    """
    match = _PROFILE.fullmatch(model)
    return match[1] if match else ""


class Limit(StrEnum):
    """A list by which a pod limits its cards; see ``kube.annotations``."""

    MODELS = "models"
    UUIDS = "uuids"


@dataclass(frozen=True, slots=True)
class _Names:
    """Entries of a list, sorted by meaning, because filter tests every card."""

    whole: frozenset[str]
    starts: tuple[str, ...]
    ends: tuple[str, ...] = ()
    middles: tuple[str, ...] = ()

    @classmethod
    def of_models(cls, entries: Iterable[str]) -> "_Names":
        middles: dict[tuple[bool, bool], list[str]] = {}
        for entry in entries:
            stars = (entry.startswith(ANY), entry.endswith(ANY))
            middle = entry.removeprefix(ANY).removesuffix(ANY)
            middles.setdefault(stars, []).append(middle)
        return cls(
            frozenset(_with_and_without_vendor(middles.get((False, False), ()))),
            starts=tuple(_with_and_without_vendor(middles.get((False, True), ()))),
            ends=tuple(middles.get((True, False), ())),
            middles=tuple(middles.get((True, True), ())),
        )

    @classmethod
    def of_uuids(cls, entries: Collection[str]) -> "_Names":
        starts: list[str] = []
        for entry in entries:
            if _BEGINNING.fullmatch(entry):
                known = entry.startswith(_KINDS)
                starts += (entry,) if known else (entry, *(k + entry for k in _KINDS))
        return cls(frozenset(entries), tuple(starts))

    def has(self, name: str) -> bool:
        if name in self.whole or name.startswith(self.starts):
            return True
        if not self.ends and not self.middles:
            return False
        return name.endswith(self.ends) or any(
            middle in name for middle in self.middles
        )

    def has_model(self, model: str) -> bool:
        profile = read_mig_profile(model)
        return (
            self.has(model)
            or self.has(model.removeprefix(_VENDOR))
            or bool(profile and self.has(profile))
        )


class _Remembered(dict[str, bool]):
    """The answers for each name, because there are few models and many cards."""

    def __init__(self, answer: Callable[[str], bool]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, name: str) -> bool:
        answer = self[name] = self._answer(name)
        return answer


@dataclass(frozen=True)
class CardSelector:
    """The cards that a pod may have: every list that is not empty must allow a card.

    A list allows the cards that it names, or all cards if it names none, except those
    that it names with a ``!``. ``of`` normalizes what users write, so that equal
    selections are equal values.
    """

    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, models: Collection[str] = (), uuids: Collection[str] = ()
    ) -> "CardSelector":
        """Create a selector, ignoring case, repeated blanks and order.

        >>> CardSelector.of(models=["Tesla  T4", "tesla t4", "! A10"]).models
        ('!a10', 'tesla t4')
        """
        return cls(_plain_all(models), _plain_all(uuids))

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The lists that are not empty."""
        lists = ((Limit.MODELS, self.models), (Limit.UUIDS, self.uuids))
        return tuple(limit for limit, entries in lists if entries)

    def against(self, uuid: str, model: str) -> tuple[Limit, ...]:
        """Return the lists that exclude a card; empty if the pod may have it.

        A card of unknown model matches no model that a list names, and is excluded by
        every list that denies a model.
        """
        limits = []
        if not self._allowed_models[model]:
            limits.append(Limit.MODELS)
        if self.uuids and not self._allows_card(uuid):
            limits.append(Limit.UUIDS)
        return tuple(limits)

    def allows(self, uuid: str, model: str) -> bool:
        """Return whether the pod may have a card."""
        return self._allowed_models[model] and (
            not self.uuids or self._allows_card(uuid)
        )

    def _allows_model(self, model: str) -> bool:
        wanted, denied = self._models
        plain = _plain(model)
        if denied is not None and (not plain or denied.has_model(plain)):
            return False
        return wanted is None or wanted.has_model(plain)

    def _allows_card(self, uuid: str) -> bool:
        wanted, denied = self._uuids
        plain = uuid.casefold()
        if denied is not None and denied.has(plain):
            return False
        return wanted is None or wanted.has(plain)

    @cached_property
    def _allowed_models(self) -> "_Remembered":
        return _Remembered(self._allows_model)

    @cached_property
    def _models(self) -> list[_Names | None]:
        return [
            _Names.of_models(entries) if entries else None
            for entries in split_denied(self.models)
        ]

    @cached_property
    def _uuids(self) -> list[_Names | None]:
        return [
            _Names.of_uuids(entries) if entries else None
            for entries in split_denied(self.uuids)
        ]


def split_denied(entries: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split a list into wanted entries and denied ones, without their ``!``.

    >>> split_denied(["!p4", "t4"])
    (['t4'], ['p4'])
    """
    wanted: list[str] = []
    denied: list[str] = []
    for entry in entries:
        (denied if entry.startswith(NOT) else wanted).append(entry.removeprefix(NOT))
    return wanted, denied


def _with_and_without_vendor(entries: Iterable[str]) -> Iterator[str]:
    for entry in entries:
        yield entry
        if bare := entry.removeprefix(_VENDOR):
            yield bare


def _plain_all(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({_plain_entry(entry) for entry in entries}))


def _plain_entry(entry: str) -> str:
    plain = _plain(entry)
    if plain.startswith(NOT):
        return NOT + plain.removeprefix(NOT).lstrip()
    return plain


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
