"""Turn the text of manifests into a Helm template by edits at positions.

What is not edited keeps every byte, comments included. Only block style is edited, as
``manifests/`` has it. A path is that of a JSON patch: ``/spec/template``, ``/env/-``.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C library is 8 times faster, and sets the same positions."""


class TemplateError(ValueError):
    """A path is not in the manifest, or its place cannot be edited."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a JSON patch; ``value`` as it is written, comments included."""

    op: str
    path: str
    value: Sequence[str]


def steps_of(text: str) -> list[Step]:
    """Return the steps of a patch's text."""
    patch = TemplateText(text)
    (document,) = patch.documents()
    return [
        Step(one["op"], one["path"], document.written(f"/{at}/value"))
        for at, one in enumerate(document.value)
    ]


@dataclass
class TemplateText:
    """The text of a file of manifests, with the edits that make a template of it."""

    text: str
    _added: list[tuple[int, int, Sequence[str]]] = field(default_factory=list)
    """The number of the line before which lines are added, a rank, and the lines."""
    _replaced: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    """A part of a line, by the line's number."""

    def documents(self) -> Iterator["Document"]:
        """Return the documents; edit the text by them."""
        for root in yaml.compose_all(self.text, Loader=_LOADER):
            yield Document(self, root)

    def finished(self) -> str:
        """Return the template's text."""
        added = sorted(self._added, key=lambda one: one[:2])
        found: list[str] = []
        for number, line in enumerate([*self.text.splitlines(), ""]):
            for at, _, lines in added:
                found += lines if at == number else []
            found.append(self._edited(number, line))
        return "\n".join(found)

    def _edited(self, number: int, line: str) -> str:
        start, end, new = self._replaced.get(number, (len(line), len(line), ""))
        # Grafana's and Prometheus' own templates stay what they are.
        before, after = (
            part.replace("{{", '{{ "{{" }}') for part in (line[:start], line[end:])
        )
        return before + new + after

    def add_before(self, line: int, lines: Sequence[str]) -> None:
        """Add lines before a line, after all that ends there."""
        self._added.append((line, 1, lines))

    def add_after(self, line: int, column: int, lines: Sequence[str]) -> None:
        """Add lines after a line; what is further in comes first."""
        self._added.append((line + 1, -column, lines))

    def replace(self, node: Node, new: str) -> None:
        """Replace a word, or what is in brackets, on its line."""
        start, end = node.start_mark, node.end_mark
        if start.line != end.line or start.line in self._replaced:
            raise TemplateError(f"line {start.line + 1} cannot be edited")
        self._replaced[start.line] = (start.column, end.column, new)

    def last_line(self, node: Node) -> int:
        """Return the number of the line with a node's last word."""
        while isinstance(node, CollectionNode) and not node.flow_style:
            last = node.value[-1]
            node = last[1] if isinstance(last, tuple) else last
        end = node.end_mark
        if isinstance(node, ScalarNode) and node.style in {"|", ">"}:
            # Its end mark is after the line breaks that belong to it.
            text = self.text[: end.index]
            return int(end.line) - text[len(text.rstrip()) :].count("\n")
        return int(end.line)


@dataclass(frozen=True, slots=True)
class Document:
    """One object in the text."""

    file: TemplateText
    root: Node

    @property
    def value(self) -> Any:  # noqa: ANN401
        """The object as data."""
        return yaml.load(yaml.serialize(self.root), Loader=_LOADER)  # noqa: S506

    def patch(self, steps: Sequence[Step], condition: str) -> None:
        """Make the steps of a JSON patch under a condition, a pipeline of templates."""
        for (operation, path), group in groupby(steps, lambda one: (one.op, one.path)):
            values = [one.value for one in group]
            if operation == "add":
                added = [line for lines in values for line in _entry(path, lines)]
                opening = f"{{{{- if {condition} }}}}"
                self.add(path, [opening, *added, "{{- end }}"])
            elif operation == "replace":
                new, old = (
                    self._word(path, one) for one in (*values, self.written(path))
                )
                either = f"if {condition} }}}}{new}{{{{ else }}}}{old}{{{{ end"
                self.replace(path, f"{{{{ {either} }}}}")
            elif operation != "test":
                raise TemplateError(f"no template can {operation} {path}")

    def _word(self, path: str, lines: Sequence[str]) -> str:
        if len(lines) != 1:
            raise TemplateError(f"{path} has more than one line")
        return lines[0]

    def add(self, path: str, lines: Sequence[str]) -> None:
        """Add lines to the list or mapping of this path, at its end or index 0."""
        above, _, last = path.rpartition("/")
        parent = self.at(above)
        indented = _indented(lines, parent.start_mark.column)
        if last == "0":
            self.file.add_before(parent.value[0].start_mark.line, indented)
            return
        if isinstance(parent, SequenceNode) != (last == "-"):
            raise TemplateError(f"{path} is no place at the end")
        column = parent.start_mark.column
        self.file.add_after(self.file.last_line(parent), column, indented)

    def replace(self, path: str, new: str) -> None:
        """Replace the word at a path."""
        self.file.replace(self.at(path), new)

    def instead(self, path: str, condition: str, lines: Sequence[str]) -> None:
        """Write other lines under a condition; a block text with its key.

        ``condition`` has its ``if`` or ``with``.
        """
        node = self.at(path)
        column = self.column(path)
        before = [f"{{{{- {condition} }}}}", *lines, "{{- else }}"]
        self.file.add_before(node.start_mark.line, _indented(before, column))
        last = self.file.last_line(node)
        self.file.add_after(last, column, _indented(["{{- end }}"], column))

    def column(self, path: str) -> int:
        """Return where the lines of a value begin, those of a block text at its key."""
        node = self.at(path)
        if isinstance(node, ScalarNode):
            above, _, last = path.rpartition("/")
            node = next(key for key, _ in self.at(above).value if key.value == last)
        return int(node.start_mark.column)

    def written(self, path: str) -> list[str]:
        """Return a value's lines as if it began the text."""
        node = self.at(path)
        start, end, text = node.start_mark, node.end_mark, self.file.text
        if isinstance(node, CollectionNode) and not node.flow_style:
            lines = text.splitlines()[start.line : self.file.last_line(node) + 1]
            return [line[start.column :] for line in lines]
        if start.line != end.line:
            raise TemplateError(f"{path} has more than one line")
        return [text[start.index : end.index]]

    def at(self, path: str) -> Node:
        """Return the node at a path."""
        node = self.root
        for part in path.split("/")[1:]:
            found = _child(node, part.replace("~1", "/").replace("~0", "~"))
            if found is None:
                raise TemplateError(f"there is no {path}")
            node = found
        return node


def _child(node: Node, part: str) -> Node | None:
    found: list[Node] = []
    if isinstance(node, MappingNode):
        found = [value for key, value in node.value if key.value == part]
    elif isinstance(node, SequenceNode) and part.isdigit():
        found = node.value[int(part) :]
    return next(iter(found), None)


def _entry(path: str, value: Sequence[str]) -> list[str]:
    """Return a value's lines as an item of a list or under the last key of a path."""
    last = path.rpartition("/")[2]
    if last == "-" or last.isdigit():
        first, *others = value
        return [f"- {first}", *_indented(others, 2)]
    if len(value) == 1 and not re.match(r"[\w./-]+:( |$)", value[0]):
        return [f"{last}: {value[0]}"]
    return [f"{last}:", *_indented(value, 2)]


def _indented(lines: Sequence[str], column: int) -> list[str]:
    return [f"{' ' * column}{line}" if line else line for line in lines]
