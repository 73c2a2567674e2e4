"""The files of the public trace, with complaints that name file, line and field."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpusharectl.simulator.openb import WHOLE, Trace, TraceNode, TracePod

if TYPE_CHECKING:
    from _csv import Reader

NODE_FILE = "openb_node_list_gpu_node.csv"
FOLDER_VARIABLE = "GPUSHARE_TRACE_DIR"
"""The environment variable that may name the folder of the files."""
SOURCE = "cluster-trace-gpu-v2023/csv of https://github.com/alibaba/clusterdata has it"
_PODS = "openb_pod_list_"
_NODE_FIELDS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_FIELDS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_MOST = 10**12


class TraceError(ValueError):
    """A trace that cannot be replayed; the message names file, line and field."""


def pod_lists(folder: Path) -> list[str]:
    """Give the names of the pod lists in a folder, such as ``default``, sorted."""
    found = folder.glob(f"{_PODS}*.csv")
    return sorted(path.stem.removeprefix(_PODS) for path in found)


def read_trace(folder: Path, pod_list: str = "default") -> Trace:
    """Read the nodes and one list of pods. Raises ``TraceError``."""
    nodes = read_nodes(folder / NODE_FILE)
    path = folder / f"{_PODS}{pod_list}.csv"
    if not path.is_file() and (known := pod_lists(folder)):
        raise TraceError(
            f'{path}: there is no pod list "{pod_list}"; here are {", ".join(known)}'
        )
    pods = read_pods(path)
    if not any(pod.demand for pod in pods):
        raise TraceError(f"{path}: no pod asks a card, so no load can be reached")
    return Trace(nodes, pods)


def read_nodes(path: Path) -> tuple[TraceNode, ...]:
    """Read the list of nodes, in its order. Raises ``TraceError``."""
    nodes = tuple(_node(row) for row in _rows(path, _NODE_FIELDS, "sn"))
    if not any(node.cards for node in nodes):
        raise TraceError(f"{path}: no node has a card; is this the list of GPU nodes?")
    return nodes


def read_pods(path: Path) -> tuple[TracePod, ...]:
    """Read a list of pods, in its order. Raises ``TraceError``.

    ``gpu_spec`` and the columns after it may be absent, as in some published lists.
    """
    return tuple(_pod(row) for row in _rows(path, _POD_FIELDS, "name"))


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a file, with the place to name in a complaint."""

    path: Path
    line: int
    values: Mapping[str, str]

    def wrong(self, field: str, problem: str) -> TraceError:
        return TraceError(f"{self.path}:{self.line}: {field}: {problem}")

    def text(self, field: str) -> str:
        value = self.values.get(field, "").strip()
        if not value:
            raise self.wrong(field, "is empty")
        return value

    def number(self, field: str) -> int:
        text = self.text(field)
        if not (text.isascii() and text.isdigit() and int(text) <= _MOST):
            raise self.wrong(
                field, f'is "{text}"; it must be a whole number, 0 or more'
            )
        return int(text)


def _node(row: _Row) -> TraceNode:
    return TraceNode(
        row.text("sn"),
        row.number("cpu_milli"),
        row.number("memory_mib"),
        row.number("gpu"),
        row.values["model"].strip(),
    )


def _pod(row: _Row) -> TracePod:
    cards = row.number("num_gpu")
    return TracePod(
        row.text("name"),
        row.number("cpu_milli"),
        row.number("memory_mib"),
        cards,
        _milli(row, cards),
        _models(row),
    )


def _milli(row: _Row, cards: int) -> int:
    milli = row.number("gpu_milli")
    if cards == 0:
        return 0
    if cards > 1:
        # Several cards are whole ones, whatever the column says: so the paper replays.
        return WHOLE
    if not 0 < milli <= WHOLE:
        raise row.wrong("gpu_milli", f"is {milli}; of one card it is 1 to {WHOLE}")
    return milli


def _models(row: _Row) -> frozenset[str] | None:
    text = row.values.get("gpu_spec", "").strip()
    names = [name.strip() for name in text.split("|")] if text else []
    if not all(names):
        raise row.wrong("gpu_spec", f'is "{text}"; models stand as A or A|B')
    return frozenset(names) or None


def _rows(path: Path, needed: tuple[str, ...], key: str) -> Iterator[_Row]:
    reader = csv.reader(io.StringIO(_text(path)), strict=True)
    try:
        heading = next(reader)
        missing = [field for field in needed if field not in heading]
        if missing:
            raise TraceError(
                f"{path}:1: the column {missing[0]} is missing; there must be "
                f"{', '.join(needed)}"
            )
        yield from _checked(path, heading, _numbered(reader), key)
    except csv.Error as error:
        raise TraceError(
            f"{path}:{reader.line_num}: this is no CSV: {error}"
        ) from error


def _numbered(reader: "Reader") -> Iterator[tuple[int, list[str]]]:
    """Give each row with the line at which it begins: a quoted field may have many."""
    line = reader.line_num + 1
    for values in reader:
        yield line, values
        line = reader.line_num + 1


def _checked(
    path: Path,
    heading: list[str],
    rows: Iterator[tuple[int, list[str]]],
    key: str,
) -> Iterator[_Row]:
    first: dict[str, int] = {}
    for line, values in rows:
        if len(values) != len(heading):
            raise TraceError(
                f"{path}:{line}: has {len(values)} of {len(heading)} fields, up to "
                f'"{values[-1] if values else ""}": the line is cut; {SOURCE}'
            )
        row = _Row(path, line, dict(zip(heading, values, strict=True)))
        name = row.text(key)
        if name in first:
            raise row.wrong(key, f"{name} is there twice (first in line {first[name]})")
        first[name] = line
        yield row
    if not first:
        raise TraceError(f"{path}: has a heading and nothing below it; {SOURCE}")


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise TraceError(f"{path}: there is no such file; {SOURCE}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not text.strip():
        raise TraceError(f"{path}: is empty; {SOURCE}")
    if not text.endswith("\n"):
        line = text.count("\n") + 1
        raise TraceError(
            f"{path}:{line}: the last line has no end: the file is cut; {SOURCE}"
        )
    return text
