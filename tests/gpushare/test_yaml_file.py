"""What the readers of scenarios and of cards have in common."""

from typing import Annotated

import pytest
from pydantic import Field

from gpushare.yaml_file import Text, YamlError, YamlFile, YamlValue, bounded_number


class Item(YamlValue):
    name: Text
    size: Annotated[int, bounded_number(1, 9)] = 1


class Top(YamlValue):
    items: tuple[Item, ...] = ()
    labels: dict[str, Text] = Field(default_factory=dict)


def read(text: str) -> Top:
    return YamlFile(text, "f.yaml", example="write items").read(Top)


def test_all_mistakes_come_at_once_in_the_order_of_the_file() -> None:
    text = "itms: []\nitems:\n- {name: a, size: x}\n- size: 10\nlabels: 3\n"
    with pytest.raises(YamlError) as caught:
        read(text)
    assert [one.partition(";")[0] for one in caught.value.complaints] == [
        "f.yaml:1: itms: there is no such field",
        'f.yaml:3: items[0].size: is "x"',
        "f.yaml:4: items[1].name: is missing",
        'f.yaml:4: items[1].size: is "10"',
        'f.yaml:5: labels: must be fields with values, not "3"',
    ]
    assert str(caught.value).splitlines() == list(caught.value.complaints)


def test_texts_are_taken_as_they_are_written() -> None:
    found = read("items: [{name: 007}]\nlabels: {a: yes, b: 1.0}")
    assert found.items[0].name == "007"
    assert found.labels == {"a": "yes", "b": "1.0"}


def test_an_alias_stands_for_its_anchor() -> None:
    found = read("items:\n- &one {name: a, size: 2}\n- *one\n")
    assert found.items[0] == found.items[1]


def test_an_alias_in_its_own_anchor_is_a_mistake() -> None:
    with pytest.raises(YamlError, match=r"items\[0\]: must be fields with values"):
        read("items: &all [*all]")
