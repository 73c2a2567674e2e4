"""What is put into ``dist/release``, and what is left out."""

from pathlib import Path

from release.__main__ import publish
from release.image import cannot_build


def built(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("of a release")
    return folder


def test_a_release_replaces_the_one_before(tmp_path: Path) -> None:
    """And nothing else of ``dist``."""
    dist = tmp_path / "dist"
    publish(built(tmp_path / "first", "a-1", "gpusharectl"), dist / "release")
    (dist / "gpusharectl").write_text("by make gpusharectl")
    publish(built(tmp_path / "second", "a-2", "gpusharectl"), dist / "release")
    there = {str(path.relative_to(dist)) for path in dist.rglob("*") if path.is_file()}
    assert there == {"gpusharectl", "release/a-2", "release/gpusharectl"}


def test_an_unknown_architecture_is_named_with_the_known_ones() -> None:
    assert cannot_build("riscv64") == "unknown; there are amd64 and arm64"
