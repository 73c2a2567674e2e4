"""A file of fields as dcgm-exporter has it: lines of ``field, type, help``. Pure.

```
# Format: DCGM field, Prometheus metric type, help message
DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
DCGM_FI_DRIVER_VERSION, label, Driver version
```
Names of dcgm-exporter 1.x (``dcgm_gpu_temp``) will do as well, and are shown as such.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from deviceplugin.fields import FIELDS, Field, FieldKind

_COLUMNS = 3
_PREFIX = "DCGM_"
_OLD_PREFIX = "dcgm_"
_OLD_WORDS = (
    ("UTILIZATION", "UTIL"),
    ("MEMORY_CLOCK", "MEM_CLOCK"),
    ("VOLATILE", "VOL"),
    ("AGGREGATE", "AGG"),
    ("RETIRED_PAGES", "RETIRED"),
)
"""What names of 1.x have in another way, by dcgm-exporter's 1.x-compatibility list."""
_LABEL = "label"
_KINDS = ("gauge", "counter")
_OTHER_KINDS = ("histogram", "summary", "untyped")
_ALWAYS_LABELS = frozenset({"DCGM_FI_DRIVER_VERSION"})
"""Labels that every metric of a card has anyway."""


class BadFieldFile(Exception):
    """The file will not do; ``str()`` names the line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class FieldFile:
    """What a file asks for.

    ``fields`` have the file's help and kind. ``unknown`` are names of dcgm-exporter's
    that nothing here can read.
    """

    fields: tuple[Field, ...]
    unknown: tuple[str, ...] = ()


def parse(text: str) -> FieldFile:
    """Read a file. ``BadFieldFile`` for one with a line that is malformed or doubled.

    Also for a file without any field that is known here: one that was cut short, or
    meant for something else, must not switch everything off.
    """
    known = {one.name: one for one in FIELDS}
    seen: set[str] = set()
    fields: list[Field] = []
    unknown: list[str] = []
    for where, written, kind, explanation in _rows(text):
        name = _today(written)
        if name in seen:
            raise BadFieldFile(f"{where}: {written} stands there twice; leave one out")
        seen.add(name)
        if name in known and kind in _KINDS:
            own = replace(known[name], kind=cast("FieldKind", kind))
            shown = "" if written == name else written
            own = replace(own, help=explanation or own.help, shown=shown)
            fields.append(own)
        elif name in known:
            fix = f"use one of {', '.join(_KINDS)}"
            raise BadFieldFile(f"{where}: {written} is no {kind}; {fix}")
        elif not (kind == _LABEL and name in _ALWAYS_LABELS):
            unknown.append(written)
    if not fields:
        raise BadFieldFile("it lists no field that is known here")
    return FieldFile(tuple(fields), tuple(unknown))


def _rows(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Give where each row stands, and its three columns.

    Line by line: an open quote must not swallow the lines after it.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"line {number}"
        try:
            (row,) = csv.reader([line], skipinitialspace=True, strict=True)
        except csv.Error as error:
            raise BadFieldFile(f"{where}: {error}") from error
        yield where, *_columns([cell.strip() for cell in row], where)


def _columns(cells: list[str], where: str) -> tuple[str, str, str]:
    if len(cells) != _COLUMNS:
        fix = "write: field, type, help"
        raise BadFieldFile(f"{where}: {len(cells)} columns will not do; {fix}")
    name, kind, explanation = cells
    if not name.startswith((_PREFIX, _OLD_PREFIX)) or not name.isidentifier():
        fix = f"the names of fields begin with {_PREFIX}"
        raise BadFieldFile(f"{where}: {name!r} will not do; {fix}")
    if kind not in (*_KINDS, *_OTHER_KINDS, _LABEL):
        fix = f"use one of {', '.join((*_KINDS, _LABEL))}"
        raise BadFieldFile(f"{where}: {kind!r} will not do; {fix}")
    return name, kind, explanation


def _today(name: str) -> str:
    """Give the present name of a field that has one of 1.x.

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
