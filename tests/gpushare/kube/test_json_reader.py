"""Foreign JSON, with complaints that name the field."""

import gc
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
    assert [item.raw for item in reader().objects("list")] == THING["list"]
    assert reader().texts("b/") == {"b/x": "1", "b/y": "2"}


@pytest.mark.parametrize("key", ["null", "absent"])
def test_missing_and_null_are_the_empty_value(key: str) -> None:
    assert reader().optional_text(key) == ""
    assert reader().optional_integer(key) == 0
    assert reader().optional_boolean(key, default=True) is True
    assert reader().optional_object(key).raw == {}
    assert reader().optional_objects(key) == []


@pytest.mark.parametrize(
    ("read", "fields", "problem"),
    [
        (lambda r, k: r.text(k), "absent empty", "missing or empty"),
        (lambda r, k: r.text(k), "number", "must be a string"),
        (lambda r, k: r.optional_text(k), "yes", "must be a string"),
        (lambda r, _: r.texts(""), "number", "must be a string"),
        (lambda r, k: r.integer(k), "absent minus yes text", "number of 0 or more"),
        (lambda r, k: r.optional_integer(k), "yes text", "whole number"),
        (lambda r, k: r.optional_boolean(k, default=True), "text number", "true or fa"),
        (lambda r, k: r.object(k), "absent null", "is missing"),
        (lambda r, k: r.object(k), "text list", "must be an object"),
        (lambda r, k: r.optional_object(k), "text empty", "must be an object"),
        (lambda r, k: r.objects(k), "absent", "is missing"),
        (lambda r, k: r.objects(k), "text inner", "must be a list"),
        (lambda r, k: r.optional_objects(k), "number", "must be a list"),
        (lambda r, _: r.optional_objects("mixed"), "mixed[1]", "must be an object"),
        (lambda r, _: r.object("inner").text("deep"), "inner.deep", "must be a string"),
        (lambda r, _: r.objects("list")[1].text("a"), "list[1].a", "must be a string"),
    ],
)
def test_what_is_wrong_is_named(
    read: Callable[[Reader, str], object], fields: str, problem: str
) -> None:
    """The path to the field, and what it must be."""
    for field in fields.split():
        with pytest.raises(Malformed) as caught:
            read(reader(), field)
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


@pytest.mark.parametrize("end", [b"]}", b"]"], ids=["whole", "cut off"])
def test_a_large_text_is_read_without_the_collector(end: bytes) -> None:
    """It looks at new objects again and again; afterwards it may look once."""
    seen: list[str] = []

    def note(phase: str, _info: dict[str, int]) -> None:
        seen.append(phase)

    gc.callbacks.append(note)
    try:
        Reader.parse(b'{"a":[' + b"[]," * 100_000 + b"[]" + end, "body")
    except Malformed:
        assert end == b"]"
    finally:
        gc.callbacks.remove(note)
    assert seen.count("start") <= 1
    assert gc.isenabled()


def test_paths_begin_where_the_text_stands() -> None:
    with pytest.raises(Malformed, match=r"note\.a\.b: is missing"):
        Reader.parse('{"a": {}}', "note").object("a").object("b")
    for body in (None, [], "x", 3):
        with pytest.raises(Malformed, match="body: must be an object"):
            Reader(body)
