"""Which commit is released, and the tree of its files."""

import os
import subprocess
from pathlib import Path

import pytest

from release.commit import Commit, StepFailedError, checked_out

EPOCH = 1_700_000_000
OWN = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "core.hooksPath=no")


def git(root: Path, *words: str) -> None:
    when = {f"GIT_{who}_DATE": f"{EPOCH} +0900" for who in ("AUTHOR", "COMMITTER")}
    subprocess.run(
        ["git", "-C", root, *OWN, *words],
        check=True,
        capture_output=True,
        env={**os.environ, **when},
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """One with a program, a text, and a file that git ignores."""
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("ignored\n")
    (root / "text").write_text("a\nb\n")
    (root / "ignored").write_text("x")
    (root / "program").write_text("#!/bin/sh\n")
    (root / "program").chmod(0o700)
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    return root


def made(root: Path) -> Commit:
    found = checked_out(root)
    assert isinstance(found, Commit), found
    return found


def test_the_tree_has_the_commits_files_whatever_the_users_settings(
    clone: Path, tmp_path: Path
) -> None:
    """A umask and settings of git that would change modes and line ends."""
    git(clone, "config", "tar.umask", "0077")
    git(clone, "config", "core.autocrlf", "true")
    before = os.umask(0o077)
    try:
        tree = made(clone).export(tmp_path / "tree")
    finally:
        os.umask(before)
    files = {path.name: path for path in tree.folder.iterdir()}
    assert set(files) == {".gitignore", "text", "program"}
    assert files["text"].read_bytes() == b"a\nb\n"
    assert files["text"].stat().st_mode & 0o777 == 0o644
    assert files["program"].stat().st_mode & 0o777 == 0o755
    assert files["text"].stat().st_mtime == EPOCH


def test_programs_see_the_commits_time_and_no_other_make(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", "--jobserver-auth=3,4")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tree = made(clone).export(tmp_path / "tree")
    tree.run("sh", "-c", "echo $SOURCE_DATE_EPOCH $TZ $MAKEFLAGS > told")
    assert (tree.folder / "told").read_text() == f"{EPOCH} UTC\n"
    with pytest.raises(StepFailedError, match="sh -c failed"):
        tree.run("sh", "-c", "exit 3")


@pytest.mark.parametrize("name", ["text", "new"])
def test_a_changed_or_new_file_is_named(clone: Path, name: str) -> None:
    (clone / name).write_text("changed")
    told = checked_out(clone)
    assert isinstance(told, str)
    assert "commit or stash" in told
    assert told.endswith(name)


def test_a_folder_that_is_no_clone_is_refused(clone: Path, tmp_path: Path) -> None:
    """Also one inside of a clone, such as an sdist unpacked there."""
    inner = clone / "ignored-too"
    inner.mkdir()
    for folder in (tmp_path, inner):
        told = checked_out(folder)
        assert isinstance(told, str)
        assert "in a clone of the repository" in told


def test_git_says_what_to_do_with_a_clone_of_another_user(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert "git config --global --add safe.directory" in str(checked_out(clone))
