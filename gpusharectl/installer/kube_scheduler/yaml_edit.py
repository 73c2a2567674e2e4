"""Edit a YAML text and leave every other byte unchanged. Pure.

Each function takes the text and nodes parsed from this very text, which hold the
positions, and returns the new text. An addition goes to the end of its list or mapping,
on lines of its own (or inside the brackets in flow style), so that removing it restores
the old text.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpusharectl.installer.kube_scheduler.host_files import Obstacle

_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C library is 8 times faster and sets the same marks; its errors quote no line."""
_NOT_YAML = (yaml.YAMLError, ValueError)
"""The second for values such as the date 2026-02-30."""


def document(text: str) -> MappingNode:
    """Parse a text that is one mapping; an ``Obstacle`` says what else it is."""
    nodes = _parsed(yaml.compose_all, text)
    if not nodes:
        raise Obstacle("is empty")
    if len(nodes) > 1:
        raise Obstacle(f"holds {len(nodes)} documents, one is expected")
    if not isinstance(nodes[0], MappingNode):
        raise Obstacle("is not a mapping of keys to values")
    return nodes[0]


def data(text: str) -> Any:  # noqa: ANN401
    """Parse a text as plain data; an ``Obstacle`` says that it is no YAML."""
    try:
        return yaml.load(text, Loader=_FAST)  # noqa: S506
    except _NOT_YAML as error:
        raise Obstacle(f"is not YAML: {' '.join(str(error).split())}") from error


def documents(text: str) -> list[Any]:
    """Parse all documents as plain data; an ``Obstacle`` says that it is no YAML."""
    return _parsed(yaml.load_all, text)


def _parsed(parse: Callable[[str, Any], Iterable[Any]], text: str) -> list[Any]:
    # A byte order mark inside the text shifts the marks of the C library.
    if "\ufeff" not in text:
        with suppress(*_NOT_YAML):
            return list(parse(text, _FAST))
    try:
        return list(parse(text, yaml.SafeLoader))
    except _NOT_YAML as error:
        said = _tab(text, error) or " ".join(str(error).split())
        raise Obstacle(f"is not YAML: {said}") from error


def _tab(text: str, error: Exception) -> str:
    """Return in words that a line is indented by a tab, or "" for another error."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    lines = text.splitlines()
    if mark is None or not lines[mark.line :]:
        return ""
    if not lines[mark.line][mark.column :].startswith("\t"):
        return ""
    return f"line {mark.line + 1} is indented by a tab; write spaces instead"


def child(node: Node | None, key: str) -> Node | None:
    """Return the value under a key; None if there is none."""
    if not isinstance(node, MappingNode):
        return None
    for name, value in node.value:
        if isinstance(name, ScalarNode) and name.value == key:
            return value  # type: ignore[no-any-return]
    return None


def lines_of(parent: MappingNode, key: str) -> Sequence[int]:
    """Return the numbers of the lines in which a key stands, from 1."""
    return [name.start_mark.line + 1 for name, _ in parent.value if name.value == key]


def items(node: Node | None) -> Sequence[Node]:
    """Return the items of a list; empty if it is no list."""
    return node.value if isinstance(node, SequenceNode) else ()


def raw(text: str, node: Node) -> str:
    """Return a node's text."""
    return text[node.start_mark.index : node.end_mark.index]


def add_item(text: str, parent: MappingNode, key: str, item: object) -> str:
    """Add an item to the list under a key, which need not exist."""
    lines = [f"- {item}"]
    if not isinstance(item, str):
        first, *others = yaml.safe_dump(item, sort_keys=False).splitlines()
        lines = [f"- {first}", *(f"  {line}" for line in others)]
    return _add(text, parent, key, lines, json.dumps([item]))


def add_entry(text: str, parent: MappingNode, key: str, name: str, value: str) -> str:
    """Add ``name: value`` to the mapping under a key, which need not exist."""
    flow = json.dumps({name: value})
    line = f"{name}: {json.dumps(value)}"
    return _add(text, parent, key, [line], flow, indent="  ")


def drop_item(text: str, parent: MappingNode, key: str, item: Node) -> str:
    """Remove an item from the list under a key, and the key with the last item."""
    spans = [(each, each) for each in items(child(parent, key))]
    return _drop(text, parent, key, spans, (item, item))


def drop_entry(text: str, parent: MappingNode, key: str, name: str) -> str:
    """Remove an entry from the mapping under a key, and the key with the last one."""
    node = child(parent, key)
    spans: list[Span] = node.value if isinstance(node, MappingNode) else []
    for span in spans:
        if isinstance(span[0], ScalarNode) and span[0].value == name:
            return _drop(text, parent, key, spans, span)
    return text


def replace(text: str, node: Node, new: str) -> str:
    """Replace a node's text."""
    return _put(text, node.start_mark.index, node.end_mark.index, new)


def value_of(text: str, parent: MappingNode, key: str) -> str:
    """Return the text of the value under a key, such as ``*own`` of an alias."""
    start, end = _place(text, parent, key)
    return text[start:end]


def with_value(text: str, parent: MappingNode, key: str, new: str) -> str:
    """Write another value under a key, which has a word, an alias or brackets."""
    return _put(text, *_place(text, parent, key), new)


Span = tuple[Node, Node]
"""The first and the last node of an entry."""
_ALIAS = re.compile(r"\*[^\s,\]}]+")


def _pair(parent: MappingNode, key: str) -> Span:
    pairs: Sequence[Span] = parent.value
    return next(pair for pair in pairs if pair[0].value == key)


def _place(text: str, parent: MappingNode, key: str) -> tuple[int, int]:
    """Return where the value under a key begins and ends."""
    name, node = _pair(parent, key)
    if node.start_mark.index < name.start_mark.index:
        # The node of an alias is its anchor's, which comes before the key.
        alias = _ALIAS.search(text, name.end_mark.index)
        return alias.span() if alias else (0, 0)
    return node.start_mark.index, _word_end(text, node)


def _put(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def _drop(
    text: str, parent: MappingNode, key: str, spans: Sequence[Span], span: Span
) -> str:
    node = child(parent, key)
    if isinstance(node, SequenceNode | MappingNode) and node.flow_style:
        if len(spans) == 1 and parent.flow_style:
            spans, span = parent.value, _pair(parent, key)
        return _drop_flow(text, spans, span)
    if len(spans) == 1:
        span = _pair(parent, key)[0], span[1]
    start = text.rfind("\n", 0, span[0].start_mark.index)
    if text[start - 1 : start] == "\r":
        start -= 1
    return _put(text, max(start, 0), _line_end(text, span[1]), "")


def _drop_flow(text: str, spans: Sequence[Span], span: Span) -> str:
    at = spans.index(span)
    start, end = span[0].start_mark.index, span[1].end_mark.index
    if at:
        start = spans[at - 1][1].end_mark.index
    elif len(spans) > 1:
        end = spans[1][0].start_mark.index
    return _put(text, start, end, "")


def _add(
    text: str,
    parent: MappingNode,
    key: str,
    lines: Sequence[str],
    flow: str,
    indent: str = "",
) -> str:
    """Write lines below a key, or inside brackets; also the key, if it is not there.

    ``flow`` is the addition with its brackets; ``indent`` is that of the lines below a
    key without a value.
    """
    node = child(parent, key)
    # A key without a value has an empty node.
    if node is not None and node.start_mark.index != node.end_mark.index:
        if isinstance(node, SequenceNode | MappingNode) and not node.flow_style:
            return _after(text, node, node.start_mark.column, lines)
        return _inside(text, node, flow[1:-1])
    if parent.flow_style:
        # No block can stand inside braces.
        return _inside(text, parent, f"{json.dumps(key)}: {flow}")
    lines = [f"{indent}{line}" for line in lines]
    column = parent.start_mark.column
    if node is not None:
        return _after(text, node, column, lines)
    return _after(text, parent, column, [f"{key}:", *lines])


def _after(text: str, node: Node, column: int, lines: Sequence[str]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    added = "".join(f"{newline}{' ' * column}{line}" for line in lines)
    at = _line_end(text, node)
    return _put(text, at, at, added)


def _inside(text: str, node: Node, written: str) -> str:
    if isinstance(node, SequenceNode | MappingNode) and node.value:
        last = node.value[-1]
        at = (last[1] if isinstance(last, tuple) else last).end_mark.index
        return _put(text, at, at, f", {written}")
    at = node.start_mark.index + 1
    return _put(text, at, at, written)


def _line_end(text: str, node: Node) -> int:
    """Return the end of the line with the node's last word."""
    line_end = text.find("\n", _word_end(text, _last(node)))
    if line_end < 0:
        return len(text)
    return line_end - 1 if text[line_end - 1] == "\r" else line_end


def _word_end(text: str, node: Node) -> int:
    """Return the end of a node's text, without the line breaks that belong to it."""
    end = int(node.end_mark.index)
    if isinstance(node, ScalarNode) and node.style in {"|", ">"}:
        return len(text[:end].rstrip())
    return end


def _last(node: Node) -> Node:
    """Return the last word of a block, whose own end mark is after its comments."""
    while isinstance(node, SequenceNode | MappingNode) and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node
