"""The annotations by which a pod says which cards it may have. Pure."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpushare.domain.cardselector import ANY, NOT, CardSelector, Limit
from gpushare.domain.summary import Refusal, invalid, users_words
from gpushare.kube import names

LIMITS: Mapping[Limit, str] = MappingProxyType(
    {Limit.MODELS: names.MODELS, Limit.UUIDS: names.UUIDS}
)
"""The annotation of each list."""

MOST_ENTRIES = 32
"""Entries of a list: filter looks them up for every card of the cluster."""
_EXAMPLES = {Limit.MODELS: "Tesla T4", Limit.UUIDS: "GPU-9f12f917"}
_UUID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,99}", re.ASCII)


def card_selector(annotations: Mapping[str, str]) -> CardSelector | Refusal | None:
    """Read a pod's own lists; None where it has none, and may have every card.

    An entry with a ``!`` before it says which cards it may not have. Refused: an
    annotation without an entry, which would shut out every card or none, and an entry
    that can be the name of no card.
    """
    lists: dict[Limit, tuple[str, ...]] = {}
    for limit, key in LIMITS.items():
        text = annotations.get(key)
        if text is None:
            continue
        entries = tuple(one.strip() for one in text.split(",") if one.strip())
        wrong = _wrong(limit, entries)
        if wrong:
            return invalid(f"{key} {wrong}")
        lists[limit] = entries
    if not lists:
        return None
    models, uuids = (lists.get(limit, ()) for limit in LIMITS)
    return CardSelector.of(models, uuids)


def _wrong(limit: Limit, entries: tuple[str, ...]) -> str:
    if not entries:
        example = _EXAMPLES[limit]
        return (
            f'names nothing; name some, as in "{example}" or "{NOT}{example}", with '
            "the quotes in YAML, or leave it out"
        )
    if len(entries) > MOST_ENTRIES:
        return f"names {len(entries)} things; it may name {MOST_ENTRIES}"
    check = _wrong_model if limit is Limit.MODELS else _wrong_uuid
    return next(filter(None, (_wrong_entry(entry, check) for entry in entries)), "")


def _wrong_entry(entry: str, check: Callable[[str], str]) -> str:
    name = entry.removeprefix(NOT).strip()
    if not name or name.startswith(NOT):
        return f'has "{users_words(entry)}"; after one {NOT} comes what is not allowed'
    return check(name)


def _wrong_model(entry: str) -> str:
    if ANY not in entry.removeprefix(ANY).removesuffix(ANY):
        return ""
    return f'has "{users_words(entry)}"; a {ANY} may stand first or last only'


def _wrong_uuid(entry: str) -> str:
    if _UUID.fullmatch(entry):
        return ""
    return (
        f'has "{users_words(entry)}"; give a UUID as gpusharectl inspect shows it, '
        "or GPU- and its first 8 digits or more"
    )
