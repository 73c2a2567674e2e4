"""Reading YAML that a user wrote, with complaints that name file, line and field. Pure.

``gpushare.kube.json_reader`` does as much for JSON of programs, which has no lines.

Times and amounts in a scenario's fields. Pure.
"""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml

from gpushare.domain.quantity import NotAQuantity
from gpushare.domain.refusal import users_words
from gpusharectl.simulate.scenario import seconds
from gpusharectl.simulate.synthetic import check_amount

T = TypeVar("T")

_NULL = "tag:yaml.org,2002:null"
MOST = 10**9
"""Above any count, amount or second in a scenario."""


class ScenarioError(ValueError):
    """A scenario that cannot be played; the message names file, line and field."""


class Entry:
    """One mapping of the file, and the path and line where it stands.

    Every method raises ``ScenarioError``. A field that is not there, or is null, gives
    the default, or is missed where there is none.
    """

    __slots__ = ("_file", "_keys", "_line", "_path", "_values")

    def __init__(self, node: yaml.Node, file: str, path: str = "") -> None:
        self._file = file
        self._path = path
        self._line = node.start_mark.line + 1
        self._values: dict[str, yaml.Node] = {}
        self._keys: dict[str, int] = {}
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong_here(f"must be fields with values, not {_kind(node)}")
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                problem = f"a field's name is a text, not {_kind(key)}"
                raise ScenarioError(f"{file}:{line}: {problem}")
            name = str(key.value)
            if name in self._keys:
                before = self._keys[name]
                raise self._at(line, name, f"is there twice, first in line {before}")
            self._keys[name] = line
            self._values[name] = value

    @classmethod
    def parse(cls, text: str, file: str) -> "Entry":
        """Read a whole file."""
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise ScenarioError(f"{file}:{_where(error)}: {_problem(error)}") from error
        except RecursionError as error:
            line = _deepest(text)
            raise ScenarioError(
                f"{file}:{line}: this is no YAML: lists or fields too deep in others"
            ) from error
        if node is None:
            raise ScenarioError(f"{file}: is empty; docs/simulator.md has an example")
        return cls(node, file)

    def known(self, *names: str) -> None:
        """Insist that there are no other fields than these."""
        for key in self._keys:
            if key not in names:
                near = difflib.get_close_matches(key, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"known: {_list(names)}"
                raise self.wrong(key, f"there is no such field; {hint}")

    def has(self, key: str) -> bool:
        """Tell whether the field is there and not null."""
        node = self._values.get(key)
        return node is not None and node.tag != _NULL

    def wrong(self, key: str, problem: str) -> ScenarioError:
        """Make a complaint about one field."""
        return self._at(self._keys.get(key, self._line), key, problem)

    def text(self, key: str, default: str | None = None) -> str:
        """Read a string; numbers are taken as they are written."""
        if not self.has(key):
            return self._default(key, default)
        node = self._values[key]
        if not isinstance(node, yaml.ScalarNode) or not str(node.value).strip():
            raise self.wrong(key, f"must be a text, not {_kind(node)}")
        return str(node.value).strip()

    def one_of(self, key: str, allowed: Mapping[str, Any], default: str) -> str:
        """Read a string that must be one of these."""
        found = self.text(key, default)
        if found not in allowed:
            raise self.wrong(key, f'is "{found}"; known are {_list(tuple(allowed))}')
        return found

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """Read a whole number of ``least`` or more."""
        if not self.has(key):
            return self._default(key, default)
        found = self._value(key)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self.wrong(key, f"is {_shown(found)}; it must be a whole number")
        if not least <= found <= MOST:
            raise self.wrong(key, f"is {found}; it must be {least} to {MOST}")
        return found

    def flag(self, key: str, *, default: bool) -> bool:
        """Read true or false."""
        found = self._value(key) if self.has(key) else default
        if not isinstance(found, bool):
            raise self.wrong(key, f"is {_shown(found)}; it must be true or false")
        return found

    def entries(self, key: str) -> list["Entry"]:
        """Read a list of mappings, empty where the field is not there."""
        return [
            Entry(node, self._file, f"{self._field(key)}[{number}]")
            for number, node in enumerate(self._list(key))
        ]

    def entry(self, key: str) -> "Entry":
        """Read one mapping that must be there."""
        if key not in self._values:
            raise self.wrong(key, "is missing")
        return Entry(self._values[key], self._file, self._field(key))

    def texts(self, key: str) -> list[str]:
        """Read a list of strings, or one of them alone; empty where there is none."""
        if isinstance(self._values.get(key), yaml.ScalarNode):
            return [self.text(key)] if self.has(key) else []
        found = []
        for node in self._list(key):
            if not isinstance(node, yaml.ScalarNode):
                raise self.wrong(key, f"must be a list of texts, not of {_kind(node)}")
            found.append(str(node.value).strip())
        return found

    def is_text(self, key: str) -> bool:
        """Tell whether one value stands there, and no list or mapping."""
        return isinstance(self._values.get(key), yaml.ScalarNode)

    def fields(self) -> list[str]:
        """Give the names of the fields, as they stand there."""
        return list(self._keys)

    def plain(self, key: str) -> Any:  # noqa: ANN401
        """Read anything, as YAML has it; null where the field is not there."""
        node = self._values.get(key)
        try:
            return None if node is None else _plain(node)
        except yaml.YAMLError as error:
            raise self.wrong(key, _problem(error)) from error
        except RecursionError as error:
            raise self.wrong(key, "has lists or fields too deep in others") from error
        except ValueError as error:
            # Such as 2026-13-45, or a number of more digits than Python reads.
            problem = users_words(f"holds a value that cannot be read: {error}")
            raise self.wrong(key, problem) from error

    def _value(self, key: str) -> Any:  # noqa: ANN401
        """Read one value, as its text where YAML takes it for what cannot be."""
        node = self._values[key]
        try:
            return _plain(node)
        except (ValueError, RecursionError, yaml.YAMLError):
            return str(node.value)

    def _list(self, key: str) -> list[yaml.Node]:
        if not self.has(key):
            return []
        node = self._values[key]
        if not isinstance(node, yaml.SequenceNode):
            raise self.wrong(key, f"must be a list, not {_kind(node)}")
        return list(node.value)

    def _default(self, key: str, default: T | None) -> T:
        if default is None:
            raise self.wrong(key, "is missing")
        return default

    def _field(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _at(self, line: int, key: str, problem: str) -> ScenarioError:
        return ScenarioError(f"{self._file}:{line}: {self._field(key)}: {problem}")

    def _wrong_here(self, problem: str) -> ScenarioError:
        field = f" {self._path}:" if self._path else ""
        return ScenarioError(f"{self._file}:{self._line}:{field} {problem}")


def _plain(node: yaml.Node) -> Any:  # noqa: ANN401
    return yaml.SafeLoader("").construct_document(node)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "fields with values"
    return _shown(node.value)


def _shown(value: object) -> str:
    text = users_words(str(value))
    return f'"{text}"' if isinstance(value, str) else text


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _where(error: yaml.YAMLError) -> int:
    mark = getattr(error, "problem_mark", None)
    return 1 if mark is None else int(mark.line) + 1


def _deepest(text: str) -> int:
    """Find the line in which most brackets are opened: there it nests too deep."""
    lines = text.splitlines() or [""]
    opened = [line.count("[") + line.count("{") for line in lines]
    return opened.index(max(opened)) + 1


def _problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or str(error)
    return f"this is no YAML: {problem}"


def moment(entry: Entry, key: str, default: float) -> float:
    """Read a stretch of time such as ``90s`` or ``2h``, in seconds."""
    if not entry.has(key):
        return default
    text = entry.text(key)
    found = seconds(text)
    if found is None:
        raise entry.wrong(key, f'is "{text}"; give a time such as 90s, 10m or 1h30m')
    if found > MOST:
        told = users_words(text)
        raise entry.wrong(key, f'is "{told}"; it may be {MOST} s in all')
    return found


def quantity(entry: Entry, key: str) -> str:
    """Read a Kubernetes quantity of CPU or memory; empty where there is none."""
    if not entry.has(key):
        return ""
    text = entry.text(key)
    try:
        check_amount(text)
    except NotAQuantity as error:
        raise entry.wrong(
            key, f'is "{text}"; give a quantity such as 4, 500m or 16Gi'
        ) from error
    return text
