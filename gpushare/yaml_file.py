"""Read a YAML file that a person wrote, and report all mistakes by line and field.

The fields of a file are pydantic models that derive from ``YamlValue``. A scalar is
taken as it is written: ``yes`` and ``007`` stay texts unless the model wants something
else.
"""

import difflib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from gpushare.domain.model import clean_text
from gpushare.domain.quantity import is_plain_number

M = TypeVar("M", bound=BaseModel)
Location = tuple[str | int, ...]
"""Where a value stands, such as ``("pods", 0, "units")``."""

_NULL = "tag:yaml.org,2002:null"
_TYPES = {
    "missing": "is missing",
    "list_type": "must be a list, not {found}",
    "tuple_type": "must be a list, not {found}",
    "dict_type": "must be fields with values, not {found}",
    "model_type": "must be fields with values, not {found}",
    "string_type": "must be a text, not {found}",
}


class YamlError(ValueError):
    """A file that cannot be used; the text has one complaint on each line."""

    def __init__(self, *complaints: str) -> None:
        super().__init__("\n".join(complaints))
        self.complaints = complaints


class YamlValue(BaseModel):
    """Fields of a file; a field that is not declared is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Text(str):
    node: yaml.Node
    __slots__ = ("node",)


class _Items(list[Any]):
    node: yaml.Node
    __slots__ = ("node",)


class _Fields(dict[str, Any]):
    node: yaml.Node
    keys_: dict[str, yaml.Node]
    __slots__ = ("keys_", "node")


def bounded_number(least: int, most: int) -> BeforeValidator:
    """Return a validator for a whole number from ``least`` to ``most``."""

    def read(value: object) -> int:
        text = value if isinstance(value, str) else ""
        plain = is_plain_number(text.removeprefix("-"))
        if plain and least <= int(text) <= most:
            return int(text)
        raise ValueError(
            f"is {_shown(value)}; it must be a whole number from {least} to {most}"
        )

    return BeforeValidator(read)


def _text(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise ValueError(
        f"must be a text, not {_shown(value)}" if value else "must be a text; is empty"
    )


Text = typing.Annotated[str, BeforeValidator(_text)]
"""A text that is not empty."""

_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")


def _flag(value: object) -> bool:
    word = value.lower() if isinstance(value, str) else ""
    if word not in (*_TRUE, *_FALSE):
        raise ValueError(f"is {_shown(value)}; it must be true or false")
    return word in _TRUE


Flag = typing.Annotated[bool, BeforeValidator(_flag)]
"""True or false in the words of YAML; pydantic alone would take 1 and y, too."""


def simplify_yaml(value: object) -> object:
    """Return a value as YAML understands it, with numbers, flags and dates.

    Raises ``ValueError`` if YAML cannot read it.
    """
    node = getattr(value, "node", None)
    try:
        return None if node is None else yaml.SafeLoader("").construct_document(node)
    except RecursionError as error:
        raise ValueError("has lists or fields nested too deeply") from error
    except (ValueError, yaml.YAMLError) as error:
        # Such as 2026-13-45, or a number of more digits than Python reads.
        problem = getattr(error, "problem", None) or error
        raise ValueError(
            clean_text(f"holds a value that cannot be read: {problem}")
        ) from error


def read_bytes(path: Path, most_mib: int) -> bytes:
    """Return the bytes of a file; ``YamlError`` if it cannot be read or is longer."""
    try:
        with path.open("rb") as opened:
            text = opened.read((most_mib << 20) + 1)
    except OSError as error:
        raise YamlError(f"{path}: cannot be read ({error.strerror})") from error
    if len(text) > most_mib << 20:
        raise YamlError(f"{path}: is longer than {most_mib} MiB")
    return text


class YamlFile:
    """One YAML document and the complaints about it.

    ``root`` is the document: dictionaries, lists, texts and None.
    """

    def __init__(self, text: str | bytes, name: str, *, example: str) -> None:
        """Parse ``text``; ``YamlError`` if it is not one YAML document.

        ``example`` tells the user of an empty file what to write.
        """
        self._name = name
        self._mistakes: list[tuple[int, str]] = []
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            self.root = None if node is None else self._tree(node, (), {})
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = 1 if mark is None else mark.line + 1
            problem = getattr(error, "problem", None) or str(error)
            problem = " ".join(str(problem).split())
            raise YamlError(f"{name}:{line}: is not YAML: {problem}") from error
        except RecursionError as error:
            raise YamlError(
                f"{name}:{_deepest(text)}: is not YAML: lists or fields are nested too "
                "deeply"
            ) from error
        if node is None:
            raise YamlError(f"{name}: is empty; {example}")

    def read(self, model: type[M]) -> M:
        """Return the document as ``model``; ``YamlError`` with all complaints."""
        value = self.part(model, self.root)
        self.check()
        if value is None:
            raise AssertionError(model)
        return value

    def part(self, model: type[M], value: object, at: Location = ()) -> M | None:
        """Return the value at a location as ``model``; None and complaints if wrong.

        The caller goes on with the other parts, so that one ``check`` tells all.
        """
        try:
            return model.model_validate(value)
        except ValidationError as error:
            for mistake in error.errors():
                location = tuple(part for part in mistake["loc"] if part != "[key]")
                problem = self._problem(model, location, dict(mistake))
                self.complain((*at, *location), problem)
        return None

    def complain(self, location: Location, problem: str) -> None:
        """Take down what is wrong with a value; ``check`` raises it."""
        node = self._node(location)
        mark = node.start_mark
        place = f" {format_path(location)}:" if location else ""
        complaint = f"{self._name}:{mark.line + 1}:{place} {problem}"
        self._mistakes.append((mark.index, complaint))

    def check(self) -> None:
        """Raise ``YamlError`` with all complaints so far, in the file's order."""
        if self._mistakes:
            complaints = sorted(self._mistakes, key=lambda one: one[0])
            raise YamlError(*dict.fromkeys(complaint for _, complaint in complaints))

    def _tree(self, node: yaml.Node, location: Location, seen: dict[int, Any]) -> Any:  # noqa: ANN401
        if id(node) in seen:
            # An alias. It may even stand inside its own anchor.
            return seen[id(node)]
        tree: Any
        if isinstance(node, yaml.SequenceNode):
            tree = seen[id(node)] = _Items()
            tree.node = node
            for number, item in enumerate(node.value):
                tree.append(self._tree(item, (*location, number), seen))
        elif isinstance(node, yaml.MappingNode):
            tree = seen[id(node)] = _Fields()
            tree.node, tree.keys_ = node, {}
            for key, value in node.value:
                if self._is_field(tree, location, key):
                    here = (*location, key.value)
                    tree[key.value] = self._tree(value, here, seen)
        elif node.tag == _NULL:
            tree = None
        else:
            tree = _Text(node.value)
            tree.node = node
        return tree

    def _is_field(self, tree: _Fields, location: Location, key: yaml.Node) -> bool:
        mark = key.start_mark
        place = f"{self._name}:{mark.line + 1}:"
        if not isinstance(key, yaml.ScalarNode):
            problem = "the name of a field must be a text"
            self._mistakes.append((mark.index, f"{place} {problem}"))
            return False
        if key.value in tree:
            before = tree.keys_[key.value].start_mark.line + 1
            where = format_path((*location, key.value))
            problem = f"is there twice, first in line {before}; keep one"
            self._mistakes.append((mark.index, f"{place} {where}: {problem}"))
        tree.keys_[key.value] = key
        return True

    def _node(self, location: Location) -> yaml.Node:
        """Find where a field or item begins; its parent if it is not there."""
        tree: Any = self.root
        node = getattr(tree, "node", None)
        for part in location:
            if isinstance(tree, _Fields) and part in tree:
                node = tree.keys_[str(part)]
            elif isinstance(tree, _Items):
                node = getattr(tree[int(part)], "node", tree.node)
            else:
                break
            tree = tree[part]
        return node or yaml.ScalarNode("", "", yaml.Mark(self._name, 0, 0, 0, "", 0))

    def _problem(
        self, model: type[BaseModel], location: Location, error: dict[str, Any]
    ) -> str:
        kind = error["type"]
        if kind == "value_error":
            return str(error["ctx"]["error"])
        if kind == "extra_forbidden":
            known = _fields_at(model, location[:-1])
            near = difflib.get_close_matches(str(location[-1]), known, 1, 0.7)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            return f"there is no such field; {hint}"
        if kind in _TYPES:
            return _TYPES[kind].format(found=_shown(error["input"]))
        return clean_text(str(error["msg"]))


def format_path(location: Location) -> str:
    """Write a location as a person does: ``pods[0].units``.

    >>> format_path(("pods", 0, "units"))
    'pods[0].units'
    """
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)
    return "".join(parts).removeprefix(".")


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    for part in location:
        if isinstance(part, str):
            models = _models(model.model_fields[part].annotation)
            model = next(models)
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models(inner)


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "fields with values"
    return f'"{clean_text(str(value))}"'


def _deepest(text: str | bytes) -> int:
    """Find the line in which most brackets are opened: there it nests too deeply."""
    lines = (text if isinstance(text, bytes) else text.encode()).splitlines() or [b""]
    opened = [line.count(b"[") + line.count(b"{") for line in lines]
    return opened.index(max(opened)) + 1
