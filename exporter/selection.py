"""Which groups and fields are on: by default, by flags, by a file of fields. Pure.

The file has dcgm-exporter's format, lines of ``field, type, help``:

```
# Format: DCGM field, Prometheus metric type, help message
DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
DCGM_FI_DRIVER_VERSION, label, Driver version
```
Names of dcgm-exporter 1.x (``dcgm_gpu_temp``) are accepted, and shown unchanged.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from exporter.telemetry.fields import (
    FB_TOTAL,
    FB_USED,
    FIELDS,
    GPU_UTIL,
    GROUPS,
    MEMORY,
    PROCESSES,
    UTILIZATION,
    Field,
    FieldKind,
)


@dataclass(frozen=True, slots=True)
class Flags:
    """The groups that the command line switches on and off; no group is in both."""

    on: frozenset[str] = frozenset()
    off: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is on.

    ``groups`` are those that are on, ``fields`` those that are shown, in the order of
    the documentation. ``read`` is what each group reads from every card: the fields
    shown, and those that other values are computed from.
    """

    groups: frozenset[str] = frozenset()
    fields: tuple[Field, ...] = ()
    read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def choose(flags: Flags, listed: Iterable[Field] | None = None) -> Chosen:
    """Decide what is on; ``listed`` are the fields of a file, None without a file.

    A file selects the fields of cards: those it lists are on, however slow, and no
    others. Flags win over it: a group switched on shows all its fields, one switched
    off none. Groups without fields of their own follow the defaults and flags.
    """
    groups = {group.name for group in GROUPS if group.by_default}
    wanted = {field.name: field for field in FIELDS if field.group in groups}
    if listed is not None:
        groups -= {field.group for field in FIELDS}
        wanted = {field.name: field for field in listed}
    wanted |= {
        field.name: wanted.get(field.name, field)
        for field in FIELDS
        if field.group in flags.on
    }
    groups = (
        groups | flags.on | {field.group for field in wanted.values()}
    ) - flags.off
    in_order = (wanted[field.name] for field in FIELDS if field.name in wanted)
    shown = tuple(field for field in in_order if field.group in groups)
    read: dict[str, tuple[str, ...]] = {}
    # /v1/collect needs the memory in use. If the driver does not tell the processes'
    # work, the card's own utilization serves for a container that is alone on it.
    needed = [(MEMORY, FB_USED), (MEMORY, FB_TOTAL)]
    needed += [(UTILIZATION, GPU_UTIL)] if PROCESSES in groups else []
    for group, name in [
        *((shown_field.group, shown_field.name) for shown_field in shown),
        *needed,
    ]:
        if group not in flags.off and name not in read.get(group, ()):
            read[group] = (*read.get(group, ()), name)
    return Chosen(frozenset(groups | read.keys()), shown, read)


_PREFIX = "DCGM_"
_OLD_PREFIX = "dcgm_"
_OLD_WORDS = (
    ("UTILIZATION", "UTIL"),
    ("MEMORY_CLOCK", "MEM_CLOCK"),
    ("VOLATILE", "VOL"),
    ("AGGREGATE", "AGG"),
    ("RETIRED_PAGES", "RETIRED"),
)
"""How names of 1.x differ, by dcgm-exporter's 1.x-compatibility list."""
_LABEL = "label"
_KINDS = ("gauge", "counter")
_OTHER_KINDS = ("histogram", "summary", "untyped")
_ALWAYS_LABELS = frozenset({"DCGM_FI_DRIVER_VERSION"})
"""Labels that every metric of a card has anyway."""


class BadFieldFile(Exception):
    """The file is not valid; ``str()`` names the line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class FieldFile:
    """What a file asks for.

    ``fields`` have the file's help and kind. ``unknown`` are names of dcgm-exporter
    that cannot be read here, ``repeated`` those of lines that say the same again.
    """

    fields: tuple[Field, ...]
    unknown: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()


def parse(text: str) -> FieldFile:
    """Parse a file. ``BadFieldFile`` if a line is malformed or lines contradict.

    Also if no field is known, because a file that was cut short must not switch
    everything off. A field that is listed again with the same spelling and type has the
    first line's help: dcgm-exporter's own list of the names of 1.x has such lines.
    """
    known = {field.name: field for field in FIELDS}
    seen: dict[str, tuple[str, str]] = {}
    repeated: list[str] = []
    fields: list[Field] = []
    unknown: list[str] = []
    for where, written, kind, explanation in _rows(text):
        name = _today(written)
        if name in seen:
            if seen[name] != (written, kind):
                was = f"first as {', '.join(seen[name])}; leave one out"
                raise BadFieldFile(f"{where}: {written} is listed twice, {was}")
            repeated.append(written)
            continue
        seen[name] = (written, kind)
        if name in known and kind in _KINDS:
            field, shown = known[name], "" if written == name else written
            known_kind, what = cast("FieldKind", kind), explanation or field.help
            fields.append(replace(field, kind=known_kind, help=what, shown=shown))
        elif name in known:
            fix = f"use one of {', '.join(_KINDS)}"
            raise BadFieldFile(f"{where}: {written} is not a {kind}; {fix}")
        elif not (kind == _LABEL and name in _ALWAYS_LABELS):
            unknown.append(written)
    if not fields:
        raise BadFieldFile("it lists no field that is known here")
    return FieldFile(tuple(fields), tuple(unknown), tuple(repeated))


def _rows(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield place and columns: by line, so that an open quote ends with its line."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"line {number}"
        try:
            (row,) = csv.reader([line], skipinitialspace=True, strict=True)
            name, kind, explanation = (cell.strip() for cell in row)
        except csv.Error as error:
            raise BadFieldFile(f"{where}: {error}") from error
        except ValueError as error:
            fix = f"{len(row)} columns are not valid; write: field, type, help"
            raise BadFieldFile(f"{where}: {fix}") from error
        if not name.startswith((_PREFIX, _OLD_PREFIX)) or not name.isidentifier():
            fix = f"the names of fields begin with {_PREFIX}"
            raise BadFieldFile(f"{where}: {name!r} is not valid; {fix}")
        if kind not in (*_KINDS, *_OTHER_KINDS, _LABEL):
            fix = f"use one of {', '.join((*_KINDS, _LABEL))}"
            raise BadFieldFile(f"{where}: {kind!r} is not valid; {fix}")
        yield where, name, kind, explanation


def _today(name: str) -> str:
    """Return the present name of a field of 1.x.

    >>> _today("dcgm_ecc_sbe_volatile_total"), _today("dcgm_fi_prof_sm_active")
    ('DCGM_FI_DEV_ECC_SBE_VOL_TOTAL', 'DCGM_FI_PROF_SM_ACTIVE')
    """
    if not name.startswith(_OLD_PREFIX):
        return name
    upper = name.upper()
    if upper.startswith("DCGM_FI_"):
        return upper
    for old, new in _OLD_WORDS:
        upper = upper.replace(old, new)
    return upper.replace("DCGM_", "DCGM_FI_DEV_", 1)
