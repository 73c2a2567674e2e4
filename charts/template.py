"""Turn the text of manifests into a Helm template by edits at positions.

What is not edited keeps every byte, comments included. Only block style is edited, as
``manifests/`` has it. A path is that of a JSON patch: ``/spec/template``, ``/env/-``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml
from yaml.nodes import CollectionNode, Node, ScalarNode, SequenceNode

from gpushare.yaml_edit import (
    NotEditable,
    YamlText,
    entries_of,
    indented,
    item_lines,
    items_of,
    load_yaml,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a JSON patch; ``value`` as it is written, comments included."""

    op: str
    path: str
    value: Sequence[str]


def steps_of(text: str) -> list[Step]:
    """Return the steps of a patch's text."""
    patch = YamlText(text)
    document = Document(patch, patch.documents[0])
    return [
        Step(step["op"], step["path"], document.written(f"/{index}/value"))
        for index, step in enumerate(document.value)
    ]


def finished(file: YamlText) -> str:
    """Return the template's text after all edits."""
    # Grafana's and Prometheus' own templates stay what they are.
    return file.edited(kept=lambda text: text.replace("{{", '{{ "{{" }}'))


@dataclass(frozen=True, slots=True)
class Document:
    """One object in the text of a file of manifests."""

    file: YamlText
    root: Node

    @property
    def value(self) -> Any:  # noqa: ANN401
        """The object as data."""
        return load_yaml(yaml.serialize(self.root))

    def patch(self, steps: Sequence[Step], condition: str) -> None:
        """Make the steps of a JSON patch under a condition, a pipeline of templates."""
        for (operation, path), group in groupby(
            steps, lambda step: (step.op, step.path)
        ):
            values = [step.value for step in group]
            if operation == "add":
                added = [line for lines in values for line in _entry(path, lines)]
                opening = f"{{{{- if {condition} }}}}"
                self.add(path, [opening, *added, "{{- end }}"])
            elif operation == "replace":
                new, old = (
                    _word(path, lines) for lines in (*values, self.written(path))
                )
                either = f"if {condition} }}}}{new}{{{{ else }}}}{old}{{{{ end"
                self.replace(path, f"{{{{ {either} }}}}")
            elif operation != "test":
                raise NotEditable(f"no template can {operation} {path}")

    def add(self, path: str, lines: Sequence[str]) -> None:
        """Add lines to the list or mapping of this path, at its end or index 0."""
        above, _, last = path.rpartition("/")
        parent = self.at(above)
        column = parent.start_mark.column
        if last == "0":
            self.file.add_before(parent.value[0], column, lines)
            return
        if isinstance(parent, SequenceNode) != (last == "-"):
            raise NotEditable(f"{path} is no place at the end")
        self.file.add_after(parent, column, lines)

    def replace(self, path: str, new: str) -> None:
        """Replace the word at a path."""
        self.file.replace(self.at(path), new)

    def instead(self, path: str, condition: str, lines: Sequence[str]) -> None:
        """Write other lines under a condition; a block text with its key.

        ``condition`` has its ``if`` or ``with``.
        """
        node, column = self.at(path), self.column(path)
        before = [f"{{{{- {condition} }}}}", *lines, "{{- else }}"]
        self.file.add_before(node, column, before)
        self.file.add_after(node, column, ["{{- end }}"])

    def column(self, path: str) -> int:
        """Return where the lines of a value begin, those of a block text at its key."""
        node = self.at(path)
        if isinstance(node, ScalarNode):
            above, _, last = path.rpartition("/")
            node = next(
                key for key, _ in entries_of(self.at(above)) if key.value == last
            )
        return int(node.start_mark.column)

    def written(self, path: str) -> list[str]:
        """Return a value's lines as if it began the text."""
        node = self.at(path)
        if isinstance(node, CollectionNode) and not node.flow_style:
            return self.file.block_lines(node)
        return [_word(path, self.file.raw(node).splitlines())]

    def at(self, path: str) -> Node:
        """Return the node at a path."""
        node = self.root
        for part in path.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            values = [value for key, value in entries_of(node) if key.value == name]
            if part.isdigit():
                values += items_of(node)[int(part) :]
            if not values:
                raise NotEditable(f"there is no {path}")
            node = values[0]
        return node


def _word(path: str, lines: Sequence[str]) -> str:
    if len(lines) != 1:
        raise NotEditable(f"{path} has more than one line")
    return lines[0]


def _entry(path: str, value: Sequence[str]) -> list[str]:
    """Return a value's lines as an item of a list or under the last key of a path."""
    last = path.rpartition("/")[2]
    if last == "-" or last.isdigit():
        return item_lines(value)
    if len(value) == 1 and not re.match(r"[\w./-]+:( |$)", value[0]):
        return [f"{last}: {value[0]}"]
    return [f"{last}:", *indented(value, 2)]
