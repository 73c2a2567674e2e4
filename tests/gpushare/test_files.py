"""A file is written as a whole, whatever lies beside it."""

from pathlib import Path

import pytest

from gpushare.files import PART, replace_file


def test_a_file_that_a_kill_has_left_is_replaced(tmp_path: Path) -> None:
    """A link there is not followed."""
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("kept")
    (tmp_path / f".file{PART}").symlink_to(victim)
    replace_file(path, "new")
    assert (path.read_text(), victim.read_text()) == ("new", "kept")
    assert {each.name for each in tmp_path.iterdir()} == {"file", "victim"}


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A folder cannot be replaced by a file."""
    (tmp_path / "file" / "below").mkdir(parents=True)
    with pytest.raises(OSError, match="file"):
        replace_file(tmp_path / "file", "new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
