"""The file of a node's accelerators, and what is read of them."""

from pathlib import Path

import pytest

from gpushare.cards.inventory import InventoryCard, InventoryCards, read_inventory
from gpushare.cards.source import CardReading
from gpushare.domain.model import CardUUID

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
    return [complaint.removeprefix(str(path)).lstrip(":, ") for complaint in found]


def card(**fields: str) -> str:
    """An inventory of one good card but for these fields."""
    lines = {"uuid": "one", "memory_mib": "1024", **fields}
    return "cards:\n- " + "\n  ".join(f"{name}: {lines[name]}" for name in lines)


def test_each_field_is_read(path: Path) -> None:
    third, first, second = read(path, FULL)
    assert [found.card.index for found in (third, first, second)] == [2, 4, 5]
    assert first.card.uuid == "accel-one"
    assert first.card.memory_mib == 24576
    assert first.card.model == "Accelerator X"
    assert first.card.device_nodes == ("/dev/accel0", "/dev/accel0-control")
    assert first.card.variables == {"ACCEL_VISIBLE": "0", "ACCEL_MODE": "yes"}
    assert first.used_mib_file == "/sys/class/accel/accel0/used_mib"
    assert (second.card.device_nodes, second.used_mib_file) == ((), None)
    assert not any(found.card.known_to_driver for found in (first, second, third))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"uuid": "''"}, "2: cards[0].uuid: must be a text; is empty"),
        ({"uuid": "'a b'"}, "2: cards[0].uuid: is 'a b'; use at most"),
        ({"uuid": "'a,b'"}, "2: cards[0].uuid: is 'a,b'; use at most"),
        ({"memory_mib": "0"}, '3: cards[0].memory_mib: is "0"; it must be a whole num'),
        ({"memory_mib": "9" * 4000}, '3: cards[0].memory_mib: is "99'),
        (
            {"memory_mib": "{}"},
            "3: cards[0].memory_mib: is fields with values; it must be a whole",
        ),
        ({"index": "-1"}, '4: cards[0].index: is "-1"; it must be'),
        ({"nodes": "/dev/a"}, "4: cards[0].nodes: must be a list"),
        (
            {"nodes": "[dev/a]"},
            "4: cards[0].nodes[0]: is 'dev/a'; give an absolute path",
        ),
        ({"nodes": "[/dev/../a]"}, "4: cards[0].nodes[0]: is '/dev/../a'; give"),
        ({"nodes": "[/a, /a]"}, "4: cards[0].nodes[1]: is the same as cards[0]"),
        ({"variables": "[A]"}, "4: cards[0].variables: must be fields with values"),
        ({"variables": "{A-B: x}"}, "4: cards[0].variables.A-B: is not the name"),
        ({"variables": "{A: }"}, "4: cards[0].variables.A: must be a text"),
        ({"variables": "{VCUDA_X: 1}"}, "4: cards[0].variables.VCUDA_X: is set"),
        (
            {"variables": "{NVIDIA_VISIBLE_DEVICES: all}"},
            "4: cards[0].variables.NVIDIA_VISIBLE_DEVICES: is set by the device",
        ),
        ({"used_mib_file": "used"}, "4: cards[0].used_mib_file: is 'used'; give"),
        (
            {"memory": "1"},
            "4: cards[0].memory: there is no such field; did you mean memory_mib?",
        ),
        ({"? [a]": "1"}, "4: the name of a field must be a text"),
    ],
)
def test_what_is_wrong_is_named(
    path: Path, fields: dict[str, str], complaint: str
) -> None:
    [found] = complaints(path, card(**fields))
    assert found.startswith(complaint), found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty; list cards under 'cards:'"),
        ("- a", "1: must be fields with values, not a list"),
        ("devices: []", "1: devices: there is no such field; known: cards, shared"),
        ("cards: []\ncards: []", "2: cards: is there twice, first in line 1; keep one"),
        ("cards: [", "1: is not YAML: expected the node content"),
        ("cards: []\n---\ncards: []", "2: is not YAML: but found another document"),
        ("[" * 500, "1: is not YAML: lists or fields are nested too deeply"),
        (b"cards: \xff", "1: is not YAML: "),
        ("#" * 2**20 + "#", "is longer than 1 MiB"),
    ],
)
def test_what_is_no_inventory_is_named(
    path: Path, text: str | bytes, complaint: str
) -> None:
    [found] = complaints(path, text)
    assert found.startswith(complaint), found


def test_all_complaints_come_at_once(path: Path) -> None:
    text = (
        "cards:\n- {uuid: a, index: 1, nodes: [/dev/a]}\n"
        "- {uuid: A, memory_mib: 0, index: 1, nodes: [/dev/a]}\n"
    )
    own = "each needs a value of its own"
    assert [complaint.partition("; it")[0] for complaint in complaints(path, text)] == [
        "2: cards[0].memory_mib: is missing",
        f"3: cards[1].uuid: is the same as cards[0].uuid; {own}",
        '3: cards[1].memory_mib: is "0"',
        f"3: cards[1].index: is the same as cards[0].index; {own}",
        f"3: cards[1].nodes[0]: is the same as cards[0].nodes[0]; {own}",
    ]


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    found = read_inventory(path)
    assert found == [f"{path}: cannot be read (No such file or directory)"]


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
    found = reading(path, card(used_mib_file=str(told)))
    assert found == CardReading(CardUUID("one"), used)


def test_a_missing_file_of_the_use_is_no_failure(path: Path) -> None:
    """The card works without the vendor's daemon; its use is unknown."""
    missing = str(path.with_name("missing"))
    for fields in ({"used_mib_file": missing}, {}):
        found = reading(path, card(**fields))
        assert (found.used_mib, found.failure) == (None, "")


def test_a_missing_device_node_is_a_failure(path: Path) -> None:
    node = path.with_name("accel0")
    text = card(nodes=f"[/dev/null, {node}]")
    assert reading(path, text).failure == f"{node} is missing"
    node.touch()
    assert reading(path, text).failure == ""


def test_nodes_that_go_with_every_card(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text(
        "cards:\n"
        "- {uuid: a, memory_mib: 512, nodes: [/dev/a0]}\n"
        "- {uuid: b, memory_mib: 512}\n"
        "shared_nodes: [/dev/ctl]\n"
    )
    found = read_inventory(path)
    assert isinstance(found, tuple)
    assert [found_card.card.device_nodes for found_card in found] == [
        ("/dev/a0", "/dev/ctl"),
        ("/dev/ctl",),
    ]
    path.write_text(path.read_text().replace("[/dev/ctl]", "[/dev/a0]"))
    assert isinstance(read_inventory(path), list)
