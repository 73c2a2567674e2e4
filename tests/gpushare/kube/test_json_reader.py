"""Foreign JSON, with complaints that name the field."""

from collections.abc import Callable

import pytest

from gpushare.kube.json_reader import Malformed, Reader

THING = {
    "text": "x",
    "empty": "",
    "number": 3,
    "minus": -3,
    "yes": True,
    "null": None,
    "inner": {"deep": {"text": 7}},
    "list": [{"a": "x"}, {"a": 1}],
    "mixed": [{}, 3],
    "b/x": "1",
    "b/y": "2",
}


def reader() -> Reader:
    return Reader(THING)


def test_what_is_there_is_read() -> None:
    assert reader().optional_integer("minus") == -3
    assert reader().object("inner").object("deep").integer("text") == 7
    assert [one.raw for one in reader().objects("list")] == THING["list"]
    assert reader().texts("b/") == {"b/x": "1", "b/y": "2"}


@pytest.mark.parametrize("key", ["null", "absent"])
def test_missing_and_null_are_the_empty_value(key: str) -> None:
    assert reader().optional_text(key) == ""
    assert reader().optional_integer(key) == 0
    assert reader().optional_boolean(key, default=True) is True
    assert reader().optional_object(key).raw == {}
    assert reader().optional_objects(key) == []


@pytest.mark.parametrize(
    ("read", "field", "problem"),
    [
        (lambda r: r.text("absent"), "absent", "missing or empty"),
        (lambda r: r.text("empty"), "empty", "missing or empty"),
        (lambda r: r.text("number"), "number", "must be a string"),
        (lambda r: r.optional_text("yes"), "yes", "must be a string"),
        (lambda r: r.texts(""), "number", "must be a string"),
        (lambda r: r.integer("absent"), "absent", "whole number of 0 or more"),
        (lambda r: r.integer("minus"), "minus", "whole number of 0 or more"),
        (lambda r: r.integer("yes"), "yes", "whole number of 0 or more"),
        (lambda r: r.integer("text"), "text", "whole number of 0 or more"),
        (lambda r: r.optional_integer("yes"), "yes", "whole number"),
        (lambda r: r.optional_integer("text"), "text", "whole number"),
        (lambda r: r.optional_boolean("text", default=True), "text", "true or false"),
        (lambda r: r.optional_boolean("number", default=True), "number", "true or"),
        (lambda r: r.object("absent"), "absent", "is missing"),
        (lambda r: r.object("null"), "null", "is missing"),
        (lambda r: r.object("text"), "text", "must be an object"),
        (lambda r: r.object("list"), "list", "must be an object"),
        (lambda r: r.optional_object("text"), "text", "must be an object"),
        (lambda r: r.optional_object("empty"), "empty", "must be an object"),
        (lambda r: r.objects("absent"), "absent", "is missing"),
        (lambda r: r.objects("text"), "text", "must be a list"),
        (lambda r: r.objects("inner"), "inner", "must be a list"),
        (lambda r: r.optional_objects("number"), "number", "must be a list"),
        (lambda r: r.optional_objects("mixed"), "mixed[1]", "must be an object"),
        (lambda r: r.object("inner").text("deep"), "inner.deep", "must be a string"),
        (lambda r: r.objects("list")[1].text("a"), "list[1].a", "must be a string"),
    ],
)
def test_what_is_wrong_is_named(
    read: Callable[[Reader], object], field: str, problem: str
) -> None:
    """The path to the field, and what it must be."""
    with pytest.raises(Malformed) as caught:
        read(reader())
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert str(caught.value) == f"{field}: {caught.value.problem}"


@pytest.mark.parametrize("wrong", ["", 0, False, {}], ids=repr)
def test_an_empty_value_of_another_type_is_no_empty_list(wrong: object) -> None:
    with pytest.raises(Malformed, match="list: must be a list"):
        Reader({"list": wrong}).optional_objects("list")


@pytest.mark.parametrize(
    "text", ["", "{", "nope", "{'a': 1}", "[" * 5000, "\ud800", b"\xff"], ids=ascii
)
def test_text_that_is_no_json(text: str | bytes) -> None:
    with pytest.raises(Malformed, match=r"note: is not JSON \("):
        Reader.parse(text, "note")


def test_paths_begin_where_the_text_stands() -> None:
    with pytest.raises(Malformed, match=r"note\.a\.b: is missing"):
        Reader.parse('{"a": {}}', "note").object("a").object("b")
    for body in (None, [], "x", 3):
        with pytest.raises(Malformed, match="body: must be an object"):
            Reader(body)


def test_another_version_is_refused() -> None:
    Reader.parse('{"v": 1}', "note").version(1)
    with pytest.raises(Malformed, match=r"note\.v: is 2; this program knows 1"):
        Reader.parse('{"v": 2}', "note").version(1)
    with pytest.raises(Malformed, match=r"note\.v: must be a whole number"):
        Reader.parse("{}", "note").version(1)
