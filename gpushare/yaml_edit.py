"""Edit YAML texts by position and leave every other byte unchanged. Pure.

``YamlText`` parses a text once. Edits are taken down as what to write in place of which
characters, and applied together; so comments, quotes, anchors and line ends stay. What
is added goes to the end of its list or mapping, on lines of its own (or inside the
brackets in flow style), so that dropping it restores the old text.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeGuard

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from gpushare.domain.model import clean_text

_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C library is 8 times faster and sets the same marks."""
_BYTE_ORDER_MARK = "\ufeff"
_MOST_NESTED = 500
"""The C library nests as deeply as the text does, until the process is killed."""
_SHARED = "two fields that change share one anchor"
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""The second for values such as the date 2026-02-30."""
_ALIAS = re.compile(r"\*[^\s,\]}]+")

Entry = tuple[ScalarNode, Node]
"""A field of a mapping: its name and its value."""
Field = tuple[str, str]
"""A new field: its name and its value, without quotes."""
_Span = tuple[Node, Node]
"""The first and the last node of an item or of a field."""


class NotEditable(ValueError):
    """The text is not YAML, or its form does not allow an edit; says why."""


def load_yaml(text: str) -> Any:  # noqa: ANN401
    """Parse a text of one document as plain data; ``NotEditable`` if it is no YAML."""
    return _parse(text, yaml.load)


def load_documents(text: str) -> list[Any]:
    """Parse the documents that are not empty; ``NotEditable`` if it is no YAML."""
    documents: list[Any] = _parse(text, lambda *of: list(yaml.load_all(*of)))
    return [document for document in documents if document is not None]


class YamlText:
    """One text with its documents, and the edits to it.

    Nodes are those of ``documents``: they hold the positions.
    """

    def __init__(self, text: str) -> None:
        """Parse a text; ``NotEditable`` if it is not YAML."""
        self.text = text
        self.documents: Sequence[Node] = _parse(text, _compose)
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._replaced: dict[tuple[int, int], str] = {}
        self._added: list[tuple[int, int, str]] = []
        """A position, a rank among those at this position, and the text."""
        self._dropped: list[tuple[int, int]] = []
        self._rewritten: dict[int, Mapping[str, Sequence[Field]]] = {}

    @property
    def document(self) -> MappingNode:
        """The only document, a mapping; ``NotEditable`` says what else the text is."""
        if not self.documents:
            raise NotEditable("is empty")
        if len(self.documents) > 1:
            count = len(self.documents)
            raise NotEditable(f"holds {count} documents, one is expected")
        if not isinstance(self.documents[0], MappingNode):
            raise NotEditable("is not a mapping of keys to values")
        return self.documents[0]

    def edited(self, kept: Callable[[str], str] = str) -> str:
        """Return the text with all edits; ``NotEditable`` if two are at one place.

        ``kept`` is applied to each part that no edit has made.
        """
        edits = [
            *((at, at, rank, new) for at, rank, new in self._added),
            *((start, end, 1, new) for (start, end), new in self._replaced.items()),
            *((start, end, 1, "") for start, end in _joined(self._dropped)),
        ]
        parts, at = [], 0
        # Those of one place and rank stay in the order in which they were made.
        for start, end, _, new in sorted(edits, key=lambda edit: edit[:3]):
            if start < at:
                raise NotEditable(_SHARED)
            parts += [kept(self.text[at:start]), new]
            at = end
        return "".join([*parts, kept(self.text[at:])])

    def raw(self, node: Node) -> str:
        """Return a node's text."""
        start, end = self._place(node)
        return self.text[start:end]

    def raw_value(self, mapping: MappingNode, key: str) -> str:
        """Return the text of the value under a key, such as ``*own`` of an alias."""
        start, end = self._value_place(mapping, key)
        return self.text[start:end]

    def block_lines(self, node: Node) -> list[str]:
        """Return the lines of a block as if it began the text."""
        start, column = node.start_mark.index, node.start_mark.column
        lines = self.text[start - column : self._line_end(node)].splitlines()
        return [line[column:] for line in lines]

    def replace(self, node: Node, new: str) -> None:
        """Replace a node's text."""
        self._replace(self._place(node), new)

    def replace_value(self, mapping: MappingNode, key: str, new: str) -> None:
        """Write another value under a key, which has a word, an alias or brackets."""
        self._replace(self._value_place(mapping, key), new)

    def add_before(self, node: Node, column: int, lines: Sequence[str]) -> None:
        """Add lines before the one in which a node begins."""
        at = node.start_mark.index - node.start_mark.column
        new = "".join(f"{line}{self._newline}" for line in indented(lines, column))
        self._added.append((at, 0, new))

    def add_after(self, node: Node, column: int, lines: Sequence[str]) -> None:
        """Add lines after a node's; at one place what is further in comes first."""
        self._add_lines(self._line_end(node), column, lines)

    def _add_lines(self, at: int, column: int, lines: Sequence[str]) -> None:
        new = "".join(f"{self._newline}{line}" for line in indented(lines, column))
        self._added.append((at, -column, new))

    def add_item(self, parent: MappingNode, key: str, item: object) -> None:
        """Add an item to the list under a key, which need not exist."""
        written = [f"{item}"]
        if not isinstance(item, str):
            written = yaml.safe_dump(item, sort_keys=False).splitlines()
        self._add(parent, key, item_lines(written), json.dumps([item]))

    def add_entries(
        self, parent: MappingNode, key: str, entries: Mapping[str, str]
    ) -> None:
        """Add fields to the mapping under a key, which need not exist."""
        lines = [f"{name}: {json.dumps(value)}" for name, value in entries.items()]
        self._add(parent, key, lines, json.dumps(entries), indent=2)

    def drop_items(
        self, parent: MappingNode, key: str, items: Collection[Node]
    ) -> None:
        """Remove items from the list under a key, and the key with the last item."""
        self._drop(parent, key, lambda item: item in items)

    def drop_entries(
        self, parent: MappingNode, key: str, names: Collection[str]
    ) -> None:
        """Remove fields of the mapping under a key, and the key with the last one."""
        self._drop(parent, key, lambda name: text_of(name) in names)

    def rewrite_fields(
        self, mapping: MappingNode, new: Mapping[str, Sequence[Field]]
    ) -> None:
        """Replace fields of a mapping by others, in their lines.

        ``new`` has the fields for each old name; an empty list removes the field.
        """
        if self._rewritten.get(id(mapping)) == new:
            # An alias: the edits at its anchor are the same.
            return
        self._rewritten[id(mapping)] = new
        flow = bool(mapping.flow_style)
        for name, value in entries_of(mapping):
            if fields := new.get(name.value, ()):
                self._rewrite(name, value, fields, flow=flow)
        spans = _spans_of(mapping)
        gone = [span for span in spans if not new.get(text_of(span[0]), True)]
        self._drop_spans(spans, gone, flow=flow)

    def _rewrite(
        self, name: ScalarNode, value: Node, fields: Sequence[Field], *, flow: bool
    ) -> None:
        (key, new), *more = fields
        after = name.end_mark.index
        self.replace(name, _anchor(self.raw(name)) + _quoted(name, key))
        self.replace(value, _anchor(self.raw(value)) + _quoted(value, new))
        added = [f"{_quoted(name, key)}: {_quoted(value, new)}" for key, new in more]
        if flow:
            _, at = self._place(value, after)
            self._added.append((at, 0, "".join(f", {field}" for field in added)))
        else:
            self._add_lines(self._line_end(value, after), name.start_mark.column, added)

    def _replace(self, place: tuple[int, int], new: str) -> None:
        if self._replaced.setdefault(place, new) != new:
            raise NotEditable(_SHARED)

    def _add(
        self,
        parent: MappingNode,
        key: str,
        lines: Sequence[str],
        flow: str,
        indent: int = 0,
    ) -> None:
        """Write lines below a key, or inside brackets; also the key, if need be.

        ``flow`` is the addition with its brackets; ``indent`` is that of the lines
        below a key without a value.
        """
        node, column = child_of(parent, key), parent.start_mark.column
        if node is not None and node.start_mark.index != node.end_mark.index:
            if _is_block(node):
                self.add_after(node, node.start_mark.column, lines)
            else:
                self._add_inside(node, flow[1:-1])
        elif parent.flow_style:
            # No block can stand inside braces.
            self._add_inside(parent, f"{json.dumps(key)}: {flow}")
        elif node is not None:
            # A key without a value has an empty node.
            self.add_after(node, column, indented(lines, indent))
        else:
            self.add_after(parent, column, [f"{key}:", *indented(lines, indent)])

    def _add_inside(self, node: Node, written: str) -> None:
        at, before = node.start_mark.index + 1, ""
        if spans := _spans_of(node):
            at, before = self._span_end(spans[-1]), ", "
        self._added.append((at, 0, before + written))

    def _drop(
        self, parent: MappingNode, key: str, is_gone: Callable[[Node], bool]
    ) -> None:
        value = child_of(parent, key)
        spans, flow = _spans_of(value), not _is_block(value)
        gone = [span for span in spans if is_gone(span[0])]
        if gone and len(gone) == len(spans) and (parent.flow_style or not flow):
            # The key goes, too. Empty brackets may have been there before.
            spans, flow = _spans_of(parent), bool(parent.flow_style)
            gone = [span for span in spans if text_of(span[0]) == key]
        self._drop_spans(spans, gone, flow=flow)

    def _drop_spans(
        self, spans: Sequence[_Span], gone: Collection[_Span], *, flow: bool
    ) -> None:
        if not flow:
            self._dropped += [self._lines_of(*span) for span in gone]
            return
        at = 0
        for is_gone, run in groupby(spans, lambda span: span in gone):
            group = list(run)
            after = at + len(group)
            if is_gone:
                start, end = group[0][0].start_mark.index, self._span_end(group[-1])
                if at:
                    start = self._span_end(spans[at - 1])
                elif after < len(spans):
                    end = spans[after][0].start_mark.index
                self._dropped.append((start, end))
            at = after

    def _lines_of(self, first: Node, last: Node) -> tuple[int, int]:
        """Return where whole lines begin and end, with one line break."""
        start = self.text.rfind("\n", 0, first.start_mark.index) + 1
        before = self.text[start : first.start_mark.index].strip()
        if before != ("-" if first is last else ""):
            raise NotEditable(f"{self.raw(first)} does not begin its line")
        end = self.text.find("\n", self._line_end(last, _key_end(first, last))) + 1
        if end:
            return start, end
        # At the end of the text the line break before it goes.
        kept = self.text[:start].removesuffix("\n").removesuffix("\r")
        return len(kept), len(self.text)

    def _span_end(self, span: _Span) -> int:
        return self._place(span[1], _key_end(*span))[1]

    def _value_place(self, mapping: MappingNode, key: str) -> tuple[int, int]:
        entries = entries_of(mapping)
        name, value = next(entry for entry in entries if entry[0].value == key)
        return self._place(value, name.end_mark.index)

    def _place(self, node: Node, after: int = 0) -> tuple[int, int]:
        """Return where a node begins and ends, without line breaks that belong to it.

        The node of an alias is its anchor's. The alias is the first one behind
        ``after``, the end of its key.
        """
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        if start < after:
            alias = _ALIAS.search(self.text, after)
            return alias.span() if alias else (after, after)
        if isinstance(node, ScalarNode) and node.style in {"|", ">"}:
            end = len(self.text[:end].rstrip())
        return start, end

    def _line_end(self, node: Node, after: int = 0) -> int:
        """Return the end of the line with the node's last word."""
        # The end mark of a block is after the comments that follow it.
        while _is_block(node) and node.start_mark.index >= after:
            *_, last = node.value
            after = node.start_mark.index
            if isinstance(last, tuple):
                after, last = last[0].end_mark.index, last[1]
            node = last
        end = self.text.find("\n", self._place(node, after)[1])
        if end < 0:
            return len(self.text)
        return end - 1 if self.text[end - 1] == "\r" else end


def indented(lines: Iterable[str], column: int) -> list[str]:
    """Return lines that begin in a column; an empty one stays empty."""
    return [f"{' ' * column}{line}" if line else line for line in lines]


def item_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of a value as an item of a list."""
    first, *others = lines
    return [f"- {first}", *indented(others, 2)]


def entries_of(node: Node | None) -> list[Entry]:
    """Return the fields of a mapping; empty if it is none."""
    if not isinstance(node, MappingNode):
        return []
    return [(key, value) for key, value in node.value if isinstance(key, ScalarNode)]


def items_of(node: Node | None) -> Sequence[Node]:
    """Return the items of a list; empty if it is none."""
    return node.value if isinstance(node, SequenceNode) else ()


def child_of(node: Node | None, *path: str) -> Node | None:
    """Return the value under a path of names; None if there is none."""
    for name in path:
        values = [value for key, value in entries_of(node) if key.value == name]
        node = values[-1] if values else None
    return node


def text_of(node: Node | None) -> str:
    """Return the text of a scalar; empty if it is none."""
    return str(node.value) if isinstance(node, ScalarNode) else ""


def _compose(text: str, loader: Any) -> list[Node]:  # noqa: ANN401
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_NESTED:
            raise NotEditable("lists or fields are nested too deeply")
    return [node for node in yaml.compose_all(text, loader) if node is not None]


def _parse(text: str, parse: Callable[[str, Any], Any]) -> Any:  # noqa: ANN401
    # A byte order mark shifts the marks of the C library, and it refuses more tabs.
    if _BYTE_ORDER_MARK not in text:
        with suppress(*_NOT_YAML):
            return parse(text, _FAST)
    try:
        return parse(text, yaml.SafeLoader)
    except _NOT_YAML as error:
        raise NotEditable(f"is not YAML: {_problem(text, error)}") from error


def _problem(text: str, error: Exception) -> str:
    """Return what is wrong with a text, and in which line."""
    mark = getattr(error, "problem_mark", None)
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    if mark is None:
        return clean_text(problem)
    line = "".join(text.splitlines()[mark.line : mark.line + 1])
    if line[mark.column :].startswith("\t"):
        return f"line {mark.line + 1} is indented by a tab; write spaces instead"
    return f"line {mark.line + 1}: {clean_text(problem)}"


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return places without those that begin in another one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


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


def _spans_of(node: Node | None) -> list[_Span]:
    return [*entries_of(node), *((item, item) for item in items_of(node))]


def _is_block(node: Node | None) -> TypeGuard[CollectionNode]:
    return isinstance(node, CollectionNode) and not node.flow_style


def _key_end(first: Node, last: Node) -> int:
    """Return where the name of a field ends; 0 for an item, which has none."""
    return 0 if first is last else int(first.end_mark.index)
