"""Made-up cards, from a specification or a file."""

from pathlib import Path

import pytest

from gpushare.cards.simulated import MODEL, parse_spec
from gpushare.cards.source import FoundCard


def cards(spec: str, node: str = "node") -> tuple[FoundCard, ...]:
    found = parse_spec(spec, node)
    assert isinstance(found, tuple), found
    return found


def complaints(spec: str) -> list[str]:
    found = parse_spec(spec, "node")
    assert isinstance(found, list), found
    return found


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("4x24GiB", [24576] * 4),
        (" 1x1GiB , 2x256MiB ", [1024, 256, 256]),
        ("64x80GiB", [81920] * 64),
    ],
)
def test_a_specification_gives_cards_in_order(spec: str, sizes: list[int]) -> None:
    found = cards(spec)
    assert [card.memory_mib for card in found] == sizes
    assert [card.index for card in found] == list(range(len(sizes)))
    assert {card.model for card in found} == {MODEL}
    assert all(card.known_to_driver and card.minor is None for card in found)


def test_uuids_are_the_same_at_each_start_and_others_on_each_node() -> None:
    """They depend on the node's name and the place alone, not on sizes."""
    first = [card.uuid for card in cards("2x8GiB", "one")]
    assert first == [card.uuid for card in cards("1x24GiB,1x8GiB", "one")]
    assert first == [card.uuid for card in cards("3x8GiB", "one")][:2]
    assert not set(first) & {card.uuid for card in cards("2x8GiB", "other")}
    assert first[0] == "GPU-eec52a0b-118e-56d9-a7cf-d35a98b07ae7"


@pytest.mark.parametrize(
    ("spec", "fixes"),
    [
        ("", ["term 1: '' is not valid; write COUNTxSIZE"]),
        ("4x24GB", ["term 1: '4x24GB' is not valid; write COUNTxSIZE"]),
        ("65x8GiB", ["term 1: 65 cards are not possible; give 1 to 64 cards"]),
        ("40x8GiB,40x8GiB", ["80 cards are not possible; give 1 to 64"]),
        ("1x255MiB", ["term 1: 255MiB is not valid; give each card 256MiB to"]),
        ("1x99999GiB", ["term 1: 102398976MiB is not valid"]),
        ("1x8GiB,,-1x8GiB,0x1MiB", ["term 2", "term 3", "term 4: 0", "term 4: 1MiB"]),
    ],
)
def test_all_complaints_come_at_once(spec: str, fixes: list[str]) -> None:
    found = complaints(spec)
    assert len(found) == len(fixes)
    assert all(fix in complaint for fix, complaint in zip(fixes, found, strict=True))


def test_a_file_gives_cards(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text(
        "cards:\n"
        "- {memory_mib: 8192}\n"
        "- {memory_mib: 7611, uuid: GPU-own, model: Tesla P4, index: 0}\n"
    )
    first, second = cards(str(path))
    assert (first.uuid, first.index, first.model) == ("GPU-own", 0, "Tesla P4")
    assert (second.index, second.memory_mib, second.model) == (1, 8192, MODEL)
    assert second.uuid == cards("1x8GiB")[0].uuid


def test_a_file_of_no_cards_will_not_do(tmp_path: Path) -> None:
    path = tmp_path / "cards.yml"
    path.write_text("cards: []\n")
    assert complaints(str(path)) == [f"{path}: 0 cards are not possible; give 1 to 64"]
    assert "cannot be read" in complaints(str(tmp_path / "other.yaml"))[0]


def test_a_file_says_how_cards_are_joined(tmp_path: Path) -> None:
    """By a topology's name, or a row for each card in the file's order."""
    path = tmp_path / "cards.yaml"
    sizes = "cards: [{memory_mib: 8192}, {memory_mib: 8192, index: 0}]\n"
    path.write_text(f"{sizes}links: [[0, 250], [250, 0]]\n")
    first, second = cards(str(path))
    assert (first.links, second.links) == ({second.uuid: 250}, {first.uuid: 250})
    path.write_text(f"{sizes}links: pcie\n")
    assert cards(str(path))[0].links == {second.uuid: 50}
    path.write_text(f"{sizes}links: dgx-1\n")
    told = 'links: is "dgx-1", which has 8 cards; here are 2'
    assert complaints(str(path)) == [f"{path}: {told}"]
    path.write_text(sizes)
    assert cards(str(path))[0].links == {}
