"""The editor by position: what is not edited stays, byte for byte."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.yaml_edit import (
    NotEditable,
    YamlText,
    child_of,
    items_of,
    load_documents,
    load_yaml,
)

FORMS = {
    "block": "a:\n- x # one\n# end\nb: 1\n",
    "indented": "a:\n  - x\n\n  # end\nb: 1\n",
    "a block text": "a:\n- |\n  x\n\nb: 1\n",
    "no key": "b:\n- c # last\n\n# end\n",
    "no end of the last line": "b: 1",
    "line ends of Windows": "a:\r\n- x\r\nb: 1\r\n",
    "brackets": "a: [x] # one\nb: 1\n",
    "empty brackets": "a: [ ]\n",
    "brackets in braces": '{"a": ["x"], "b": 1}\n',
    "braces without the key": "{b: 1}",
    "a byte order mark": "\ufeffb: 1\n",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("item", ["y", {"y": {"z": 1}}], ids=str)
def test_an_item_there_and_back(text: str, item: Any) -> None:
    """It is the last one; without it the text is what it was."""
    old = YamlText(text)
    old.add_item(old.document, "a", item)
    new = YamlText(old.edited())
    before = load_yaml(text)
    assert load_yaml(new.text) == {**before, "a": [*(before.get("a") or ()), item]}
    new.drop_items(new.document, "a", items_of(child_of(new.document, "a"))[-1:])
    assert new.edited() == text


values = st.recursive(
    st.sampled_from([1, "a", "b: c", "two\nlines\n", None, "# no comment"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.dictionaries(st.sampled_from("abcde"), values, min_size=1)


@given(
    fields=fields,
    gone=st.sets(st.sampled_from("abcde")),
    style=st.sampled_from([None, "|"]),
    flow=st.sampled_from([None, False, True]),
    end=st.sampled_from(["", "\n", "\n# end\n"]),
)
def test_fields_go_and_nothing_else(
    fields: dict[str, Any],
    gone: set[str],
    style: str | None,
    flow: bool | None,
    end: str,
) -> None:
    """Also one whose block ends where the next field begins, and with its key."""
    body = {"a": 1, "in": fields, "z": 2}
    dumped = yaml.safe_dump(
        body, default_flow_style=flow, default_style=style, sort_keys=False
    )
    text = YamlText(dumped.rstrip("\n") + end)
    before = load_yaml(text.text)["in"]
    kept = {name: value for name, value in before.items() if name not in gone}
    text.drop_entries(text.document, "in", gone)
    after = load_yaml(text.edited())
    assert (after.pop("in", {}) or {}) == kept
    assert list(after.values()) in ([1, 2], ["1", "2"])


def test_fields_are_rewritten_in_their_lines() -> None:
    """Comments, quotes and anchors stay; an alias of the mapping is edited once."""
    text = YamlText("a: &all\n  x: &n '1' # one\n  y: |\n    2\n\n  z: 3\nb: *all\n")
    new = {"x": [("v", "5"), ("w", "6")], "y": [("u", "*")], "z": []}
    for key in ("a", "b"):
        text.rewrite_fields(child_of(text.document, key), new)
    assert text.edited() == (
        "a: &all\n  v: &n '5' # one\n  w: '6'\n  u: \"*\"\n\nb: *all\n"
    )
    text = YamlText("{x: 1, y: 2, z: 3}")
    text.rewrite_fields(text.document, {"x": [], "y": [], "z": [("v", "4")]})
    assert text.edited() == "{v: 4}"


def test_an_alias_ends_where_it_stands() -> None:
    """Its node is its anchor's, which is elsewhere."""
    text = YamlText("a: &n 1\nb:\n  x: *n # one\nc: {y: *n, z: *n}\n")
    text.add_item(text.document, "d", "2")
    text.add_entries(text.document, "c", {"w": "3"})
    text.drop_entries(text.document, "b", "x")
    text.drop_entries(text.document, "c", "y")
    assert text.edited() == 'a: &n 1\nc: {z: *n, "w": "3"}\nd:\n- 2\n'


def test_what_is_further_in_comes_first() -> None:
    """Several additions after one line, whatever their order."""
    text = YamlText("a:\n  b:\n    - c\n")
    inner = child_of(text.document, "a")
    text.add_item(text.document, "z", "2")
    text.add_entries(inner, "y", {"k": "1"})
    text.add_item(inner, "b", "d")
    assert text.edited() == 'a:\n  b:\n    - c\n    - d\n  y:\n    k: "1"\nz:\n- 2\n'


def test_two_edits_of_one_place_are_refused() -> None:
    text = YamlText("a: &n 1\nb: *n\n")
    with pytest.raises(NotEditable, match="share one anchor"):
        text.rewrite_fields(text.document, {"a": [("a", "2")], "b": [("b", "3")]})
    text = YamlText("a:\n  b: 1\n")
    text.replace(child_of(text.document, "a", "b"), "2")
    text.drop_entries(text.document, "a", "b")
    with pytest.raises(NotEditable, match="share one anchor"):
        text.edited()
    inline = YamlText("- a: 1\n  b: 2\n")
    with pytest.raises(NotEditable, match="a does not begin its line"):
        inline.rewrite_fields(inline.documents[0].value[0], {"a": []})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [\n", "is not YAML: line 2: expected the node content"),
        ("a:\n\tb: c\n", "is not YAML: line 2 is indented by a tab; write spaces"),
        ("\ufeffa: b\n- c\n", "is not YAML: line 2: expected <block end>"),
        ("[" * 600, "nested too deeply"),
        ("a: 1\n--- \nb: 1\n", "holds 2 documents"),
        ("# none\n", "is empty"),
        ("- a\n", "is not a mapping"),
    ],
)
def test_not_editable(text: str, words: str) -> None:
    """In words that fit behind the name of the file."""
    with pytest.raises(NotEditable, match=words):
        _ = YamlText(text).document


def test_plain_data() -> None:
    """A value that YAML cannot read is refused, too."""
    assert load_documents("a: 1\n---\n# none\n---\n- b\n") == [{"a": 1}, ["b"]]
    for text, words in (
        ("a: 2026-02-30", "is not YAML: day is out of range"),
        ("a: =", "is not YAML: line 1: could not determine a constructor"),
    ):
        with pytest.raises(NotEditable, match=words):
            load_yaml(text)
