"""The file of a node's accelerators, and what is read of them."""

from pathlib import Path

import pytest

from deviceplugin.cards.inventory import InventoryCard, InventoryCards, read_inventory
from deviceplugin.cards.source import CardReading

FULL = """
cards:
- uuid: accel-one
  memory_mib: 24576
  model: Accelerator X
  index: 4
  nodes: [/dev/accel0, /dev/accel0-control]
  variables: {ACCEL_VISIBLE: 0, ACCEL_MODE: yes}
  used_mib_file: /sys/class/accel/accel0/used_mib
- {uuid: accel-two, memory_mib: 8192}
- {uuid: accel-three, memory_mib: 8192, index: 2}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inventory.yaml"


def read(path: Path, text: str | bytes) -> tuple[InventoryCard, ...]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = read_inventory(path)
    assert isinstance(found, tuple), found
    return found


def complaints(path: Path, text: str | bytes) -> list[str]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = read_inventory(path)
    assert isinstance(found, list), found
    return [one.removeprefix(str(path)).lstrip(":, ") for one in found]


def card(**fields: str) -> str:
    """An inventory of one good card but for these fields."""
    lines = {"uuid": "one", "memory_mib": "1024", **fields}
    return "cards:\n- " + "\n  ".join(f"{name}: {lines[name]}" for name in lines)


def test_each_field_is_read(path: Path) -> None:
    """Texts are taken as they are written; a card without an index follows the rest."""
    third, first, second = read(path, FULL)
    assert [one.card.index for one in (third, first, second)] == [2, 4, 5]
    assert first.card.uuid == "accel-one"
    assert first.card.memory_mib == 24576
    assert first.card.model == "Accelerator X"
    assert first.card.nodes == ("/dev/accel0", "/dev/accel0-control")
    assert first.card.variables == {"ACCEL_VISIBLE": "0", "ACCEL_MODE": "yes"}
    assert first.used_mib_file == "/sys/class/accel/accel0/used_mib"
    assert (second.card.nodes, second.used_mib_file) == ((), None)
    assert not any(one.card.known_to_driver for one in (first, second, third))


def test_an_inventory_may_be_of_no_cards(path: Path) -> None:
    """A node of the pool without accelerators."""
    assert read(path, "cards: []") == ()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"uuid": "''"}, "line 2: cards[0].uuid: must be a text and not empty"),
        ({"uuid": "'a b'"}, "line 2: cards[0].uuid: 'a b' will not do; use at most"),
        ({"uuid": "'a,b'"}, "line 2: cards[0].uuid: 'a,b' will not do; use at most"),
        ({"uuid": "[a]"}, "line 2: cards[0].uuid: must be a text"),
        ({"memory_mib": "0"}, "line 3: cards[0].memory_mib: '0' will not do; give a"),
        ({"memory_mib": "-1"}, "line 3: cards[0].memory_mib: '-1' will not do"),
        ({"memory_mib": "1e5"}, "line 3: cards[0].memory_mib: '1e5' will not do"),
        ({"memory_mib": "9" * 4000}, "line 3: cards[0].memory_mib: '99"),
        ({"memory_mib": "{}"}, "line 3: cards[0].memory_mib: give a whole number"),
        ({"index": "-1"}, "line 4: cards[0].index: '-1' will not do"),
        ({"nodes": "/dev/a"}, "line 4: cards[0].nodes: must be a list"),
        ({"nodes": "[dev/a]"}, "line 4: cards[0].nodes[0]: 'dev/a' will not do; give"),
        ({"nodes": "[/dev/../a]"}, "line 4: cards[0].nodes[0]: '/dev/../a' will not"),
        ({"nodes": "[/a, /a]"}, "line 4: cards[0].nodes[1]: is the same as cards[0]"),
        ({"variables": "[A]"}, "line 4: cards[0].variables: must be a mapping"),
        ({"variables": "{A-B: x}"}, "line 4: cards[0].variables.A-B: is no name"),
        ({"variables": "{A: }"}, "line 4: cards[0].variables.A: must be a text"),
        ({"variables": "{VCUDA_X: 1}"}, "line 4: cards[0].variables.VCUDA_X: is set"),
        (
            {"variables": "{NVIDIA_VISIBLE_DEVICES: all}"},
            "line 4: cards[0].variables.NVIDIA_VISIBLE_DEVICES: is set by the device",
        ),
        ({"used_mib_file": "used"}, "line 4: cards[0].used_mib_file: 'used' will not"),
        (
            {"memory": "1"},
            "line 4: cards[0].memory: is not known; use uuid, memory_mib",
        ),
        ({"? [a]": "1"}, "line 4: cards[0].?: is not known"),
    ],
)
def test_what_is_wrong_is_named(
    path: Path, fields: dict[str, str], complaint: str
) -> None:
    """By line and field, with the fix."""
    [found] = complaints(path, card(**fields))
    assert found.startswith(complaint), found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty; list cards under 'cards:'"),
        ("- a", "line 1: must be a mapping"),
        ("cards:", "line 1: cards: must be a list"),
        ("cards: [a]", "line 1: cards[0]: must be a mapping"),
        ("devices: []", "line 1: devices: is not known; use only 'cards'"),
        ("cards: []\ncards: []", "line 2: cards: stands here a second time; keep one"),
        ("cards: [", "is not YAML (while parsing"),
        ("cards: []\n---\ncards: []", "is not YAML (expected a single document"),
        ("[" * 500, "is not YAML (maximum recursion"),
        (b"cards: \xff", "is not YAML ("),
        (b"cards: \x00", "is not YAML ("),
        ("#" * 2**20 + "#", "is longer than 1 MiB"),
    ],
)
def test_what_is_no_inventory_is_named(
    path: Path, text: str | bytes, complaint: str
) -> None:
    """Whatever the file holds, a sentence tells what to mend."""
    [found] = complaints(path, text)
    assert found.startswith(complaint), found


def test_all_complaints_come_at_once(path: Path) -> None:
    """One round of mending is enough."""
    text = (
        "cards:\n- {uuid: a, index: 1, nodes: [/dev/a]}\n"
        "- {uuid: A, memory_mib: 0, index: 1, nodes: [/dev/a]}\n"
    )
    own = "give each its own"
    assert [one.partition(" will")[0] for one in complaints(path, text)] == [
        "line 2: cards[0].memory_mib: is missing",
        f"line 3: cards[1].uuid: is the same as cards[0].uuid; {own}",
        "line 3: cards[1].memory_mib: '0'",
        f"line 3: cards[1].index: is the same as cards[0].index; {own}",
        f"line 3: cards[1].nodes[0]: is the same as cards[0].nodes[0]; {own}",
    ]


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    """With the system's own words."""
    found = read_inventory(path)
    assert found == [
        f"{path}: cannot be read (No such file or directory); give a file of cards"
    ]


def reading(path: Path, text: str) -> CardReading:
    [found] = InventoryCards(read(path, text)).readings()
    return found


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("512\n", 512),
        ("0", 0),
        ("1024", 1024),
        ("1025", None),
        ("", None),
        ("some", None),
        ("-1", None),
        ("9" * 5000, None),
        ("\u0663", None),
    ],
)
def test_the_memory_in_use_is_read_from_a_file(
    path: Path, text: str, used: int | None
) -> None:
    """What is no number of MiB up to the card's memory is no use known, not a zero."""
    told = path.with_name("used")
    told.write_text(text)
    assert reading(path, card(used_mib_file=str(told))) == CardReading(
        read(path, card())[0].card.uuid, used
    )


def test_a_missing_file_of_the_use_is_no_failure(path: Path) -> None:
    """The card works without the vendor's daemon; its use is unknown."""
    missing = str(path.with_name("missing"))
    for fields in ({"used_mib_file": missing}, {}):
        found = reading(path, card(**fields))
        assert (found.used_mib, found.failure) == (None, "")


def test_a_missing_device_node_is_a_failure(path: Path) -> None:
    """No container could open the card; it is well again when the node is back."""
    node = path.with_name("accel0")
    text = card(nodes=f"[/dev/null, {node}]")
    assert reading(path, text).failure == f"{node} is missing"
    node.touch()
    assert reading(path, text).failure == ""


def test_nodes_that_go_with_every_card(tmp_path: Path) -> None:
    """Beside each card's own; a path may stand in one place only."""
    path = tmp_path / "cards.yaml"
    path.write_text(
        "cards:\n"
        "- {uuid: a, memory_mib: 512, nodes: [/dev/a0]}\n"
        "- {uuid: b, memory_mib: 512}\n"
        "shared_nodes: [/dev/ctl]\n"
    )
    found = read_inventory(path)
    assert isinstance(found, tuple)
    assert [one.card.nodes for one in found] == [("/dev/a0", "/dev/ctl"), ("/dev/ctl",)]
    path.write_text(path.read_text().replace("[/dev/ctl]", "[/dev/a0]"))
    assert isinstance(read_inventory(path), list)
