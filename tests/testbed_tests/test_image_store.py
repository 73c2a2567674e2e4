"""A node gets unpacked images by links, and its own databases."""

from pathlib import Path

import pytest

from tests.testbed.binaries import KEPT
from tests.testbed.kubeadm import image_store

LAYER, DATABASE = "snapshots/1/file", "bolt/meta.db"


class Nodes:
    """Nodes that take the same image, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.cache, self._folder = folder / "cache", folder
        self.archive = folder / "image.tar"
        self.archive.touch()
        self.unpacked: list[str] = []

    def take(self, name: str) -> Path:
        node = self._folder / name
        node.mkdir()
        folder = node.stat().st_ino

        def unpack() -> None:
            assert [*node.iterdir()] == []
            self.unpacked.append(name)
            for path in (LAYER, DATABASE):
                (node / path).parent.mkdir(parents=True)
                (node / path).write_text("unpacked")

        image_store.fill(node, [self.archive], self.cache, unpack, "containerd-1")
        assert node.stat().st_ino == folder
        return node


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_only_the_first_unpacks(nodes: Nodes) -> None:
    """What one writes into its database, no other has."""
    first, second = nodes.take("a"), nodes.take("b")
    assert nodes.unpacked == ["a"]
    assert (first / LAYER).samefile(second / LAYER)
    for node in (first, second):
        (node / DATABASE).write_text(f"of {node.name}")
    assert (first / DATABASE).read_text() == "of a"
    assert (nodes.take("c") / DATABASE).read_text() == "unpacked"


def test_another_image_is_unpacked(nodes: Nodes) -> None:
    nodes.take("a")
    nodes.archive.write_text("another")
    nodes.take("b")
    assert nodes.unpacked == ["a", "b"]
    for number in range(KEPT):
        nodes.archive.write_text("another" * (number + 2))
        nodes.take(f"later-{number}")
    assert len([*nodes.cache.glob("store-*")]) == KEPT


def test_where_nothing_can_be_linked_each_unpacks(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own folder, which is mounted by then, without what was linked of it."""
    nodes.take("a")
    cp = tmp_path / "bin/cp"
    cp.parent.mkdir()
    cp.write_text('#!/bin/sh\n/bin/mkdir "$3/a part"\nexit 1\n')
    cp.chmod(0o755)
    monkeypatch.setenv("PATH", str(cp.parent))
    node = nodes.take("b")
    assert nodes.unpacked == ["a", "b"]
    assert (node / LAYER).read_text() == "unpacked"
