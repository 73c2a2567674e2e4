"""Edit a YAML text by position, all documents at once, and keep every other byte. Pure.

The text is parsed once. Edits are taken down as what to write in place of which
characters, and applied together; so comments, quotes, anchors and line ends stay.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpushare.domain.refusal import clean_text

_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C library is 8 times faster and sets the same marks; its errors quote no line."""
_BYTE_ORDER_MARK = "\ufeff"
_MOST_NESTED = 500
"""The C library nests as deeply as the text does, until the process is killed."""

Entry = tuple[ScalarNode, Node]
"""A field of a mapping: its name and its value."""
Pair = tuple[str, str]
"""A new field: its name and its value, without quotes."""


class NotEditable(ValueError):
    """The text is not YAML, or its form does not allow an edit; says why."""


class YamlText:
    """One text with its documents, and the edits to it."""

    def __init__(self, text: str) -> None:
        """Parse a text; ``NotEditable`` if it is not YAML."""
        self.text = text
        self.documents = _parsed(text)
        self._edits: dict[tuple[int, int], str] = {}
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def edited(self) -> str:
        """Return the text with all edits; ``NotEditable`` if two are at one place."""
        parts, at = [], 0
        for (start, end), new in sorted(self._edits.items()):
            if start < at:
                raise NotEditable("two fields that change share one anchor")
            parts += [self.text[at:start], new]
            at = end
        return "".join([*parts, self.text[at:]])

    def replace(self, mapping: MappingNode, new: Mapping[str, Sequence[Pair]]) -> None:
        """Replace fields of a mapping by others, in their lines.

        ``new`` has the pairs for each old name; an empty list removes the field, with
        its line.
        """
        entries = entries_of(mapping)
        for name, value in entries:
            if pairs := new.get(name.value, ()):
                self._put(name, value, pairs, flow=bool(mapping.flow_style))
        gone = {name for name, pairs in new.items() if not pairs}
        if mapping.flow_style:
            self._drop_flow(entries, gone)
        else:
            self._drop_lines(entry for entry in entries if entry[0].value in gone)

    def _put(
        self, name: ScalarNode, value: Node, pairs: Sequence[Pair], *, flow: bool
    ) -> None:
        (first, text), *more = pairs
        self._write(name, _anchor(self._raw(name)) + _quoted(name, first))
        self._write(value, _anchor(self._raw(value)) + _quoted(value, text))
        added = [f"{_quoted(name, key)}: {_quoted(value, one)}" for key, one in more]
        if not added:
            return
        if flow:
            at, before = value.end_mark.index, ", "
        else:
            at = self._line_end(value.end_mark.index)
            before = self._newline + " " * name.start_mark.column
        self._edits[at, at] = "".join(before + one for one in added)

    def _drop_lines(self, entries: Iterator[Entry]) -> None:
        for name, value in entries:
            start = name.start_mark.index - name.start_mark.column
            if self.text[start : name.start_mark.index].strip():
                raise NotEditable(f"{name.value} does not begin its line")
            after = self.text.find("\n", value.end_mark.index) + 1
            self._edits[start, after or len(self.text)] = ""

    def _drop_flow(self, entries: Sequence[Entry], gone: Collection[str]) -> None:
        at = 0
        for is_gone, group in itertools.groupby(entries, lambda e: e[0].value in gone):
            run = list(group)
            after = at + len(run)
            if is_gone:
                start, end = run[0][0].start_mark.index, run[-1][1].end_mark.index
                if at:
                    start = entries[at - 1][1].end_mark.index
                elif after < len(entries):
                    end = entries[after][0].start_mark.index
                self._edits[start, end] = ""
            at = after

    def _write(self, node: Node, new: str) -> None:
        place = node.start_mark.index, node.end_mark.index
        if self._edits.setdefault(place, new) != new:
            raise NotEditable("two fields that change share one anchor")

    def _raw(self, node: Node) -> str:
        return self.text[node.start_mark.index : node.end_mark.index]

    def _line_end(self, index: int) -> int:
        found = self.text.find("\n", index)
        if found < 0:
            return len(self.text)
        return found - 1 if self.text[found - 1] == "\r" else found


def _parsed(text: str) -> list[Node]:
    # A byte order mark shifts the marks of the C library.
    loader = yaml.SafeLoader if _BYTE_ORDER_MARK in text else _FAST
    try:
        _check_depth(yaml.parse(text, loader))
        return [node for node in yaml.compose_all(text, loader) if node is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise NotEditable(f"{line}is not YAML: {clean_text(problem)}") from error


def _check_depth(events: Iterable[yaml.Event]) -> None:
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_NESTED:
            raise NotEditable("lists or fields are nested too deeply")


def _anchor(raw: str) -> str:
    """Return the anchor before a value, which others may refer to."""
    return f"{raw.split(maxsplit=1)[0]} " if raw.startswith("&") else ""


def _quoted(old: Node, new: str) -> str:
    """Write a text in the quotes of the old one."""
    style = getattr(old, "style", None)
    quote = style if style in ("'", '"') else ""
    # A list of cards may begin with what has a meaning in YAML.
    if not quote and new[:1] in ("*", "!"):
        quote = '"'
    return f"{quote}{new}{quote}"


def entries_of(node: Node | None) -> list[Entry]:
    """Return the fields of a mapping; empty if it is none."""
    if not isinstance(node, MappingNode):
        return []
    return [(key, value) for key, value in node.value if isinstance(key, ScalarNode)]


def items_of(node: Node | None) -> Sequence[Node]:
    """Return the items of a list; empty if it is none."""
    return node.value if isinstance(node, SequenceNode) else ()


def child(node: Node | None, *path: str) -> Node | None:
    """Return the value under a path of names; None if there is none."""
    for name in path:
        found = [value for key, value in entries_of(node) if key.value == name]
        node = found[-1] if found else None
    return node


def text_of(node: Node | None) -> str:
    """Return the text of a scalar; empty if it is none."""
    return str(node.value) if isinstance(node, ScalarNode) else ""
