"""Which groups and fields are on: by default, by flags, by a file of fields. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deviceplugin.fields import (
    FB_TOTAL,
    FB_USED,
    FIELDS,
    GPU_UTIL,
    GROUPS,
    MEMORY,
    PROCESSES,
    UTILIZATION,
    Field,
)


@dataclass(frozen=True, slots=True)
class Flags:
    """The groups that the command line switches on and off; no group is in both."""

    on: frozenset[str] = frozenset()
    off: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is on.

    ``groups`` are those that work, ``fields`` those that are shown, in the order of the
    documents. ``read`` is what each group asks of every card: the fields shown, and
    those that something else is reckoned from. A group without any is not read.
    """

    groups: frozenset[str] = frozenset()
    fields: tuple[Field, ...] = ()
    read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def choose(flags: Flags, listed: Iterable[Field] | None = None) -> Chosen:
    """Decide what is on; ``listed`` are the fields of a file, None without a file.

    A file governs the fields of cards: those it lists are on, however slow, and no
    others. Flags win over it: a group switched on shows all its fields, one switched
    off none. Groups that have no fields of their own keep to the defaults and flags.
    """
    wanted = None if listed is None else {one.name: one for one in listed}
    groups = (_groups(wanted) | flags.on) - flags.off
    shown = tuple(
        one if wanted is None else wanted.get(one.name, one)
        for one in FIELDS
        if one.group in groups
        and (wanted is None or one.name in wanted or one.group in flags.on)
    )
    read: dict[str, list[str]] = {}
    for one in shown:
        read.setdefault(one.group, []).append(one.name)
    for group, name in _needed(groups):
        if group not in flags.off and name not in read.get(group, ()):
            read.setdefault(group, []).append(name)
    asking = {group: tuple(names) for group, names in read.items()}
    return Chosen(groups | asking.keys(), shown, asking)


def _groups(wanted: Mapping[str, Field] | None) -> frozenset[str]:
    if wanted is None:
        return frozenset(group.name for group in GROUPS if group.by_default)
    with_fields = {one.group for one in FIELDS}
    others = {
        group.name
        for group in GROUPS
        if group.by_default and group.name not in with_fields
    }
    return frozenset(others | {one.group for one in wanted.values()})


def _needed(groups: frozenset[str]) -> list[tuple[str, str]]:
    """Name what is read though nobody shows it.

    ``/v1/collect`` is of memory in use. A driver that tells nothing of processes leaves
    a lone tenant the card's own utilization.
    """
    needed = [(MEMORY, FB_USED), (MEMORY, FB_TOTAL)]
    if PROCESSES in groups:
        needed.append((UTILIZATION, GPU_UTIL))
    return needed
