"""What is put into ``dist``, and what is left out."""

from pathlib import Path

from release.__main__ import publish
from release.archives import summed, write_sums
from release.image import cannot_build


def built(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"new {name}")
    write_sums(folder)
    return folder


def test_a_release_replaces_the_one_before(tmp_path: Path) -> None:
    """What is of no release stays, and is named: it is not in the sums."""
    dist = tmp_path / "dist"
    assert publish(built(tmp_path / "first", "a-1", "gpusharectl"), dist) == []
    (dist / "users").write_text("own")
    assert publish(built(tmp_path / "second", "a-2", "gpusharectl"), dist) == ["users"]
    assert list(summed(dist)) == ["a-2", "gpusharectl"]
    assert not (dist / "a-1").exists()
    assert (dist / "users").read_text() == "own"


def test_an_unknown_architecture_is_named_with_the_known_ones() -> None:
    assert cannot_build("riscv64") == "unknown; there are amd64 and arm64"
