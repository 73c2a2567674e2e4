"""What is put into ``dist/release``, and what is left out."""

import platform
import re
import subprocess
from pathlib import Path

import pytest

from release.__main__ import ROOT, images, publish, tell
from release.commit import Commit, Tree

FIRST = ("a-1", "SHA256SUMS")


def built(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("of a release")
    return folder


def test_a_release_replaces_the_one_before(tmp_path: Path) -> None:
    """With its sums, and nothing else of ``dist``."""
    dist = tmp_path / "dist"
    publish(built(tmp_path / "first", "a-1", "gpusharectl"), dist / "release")
    (dist / "gpusharectl").write_text("by make gpusharectl")
    publish(built(tmp_path / "second", "a-2", "gpusharectl"), dist / "release")
    there = {str(path.relative_to(dist)) for path in dist.rglob("*") if path.is_file()}
    assert there == {
        "gpusharectl",
        *("release/a-2", "release/gpusharectl", "release/SHA256SUMS"),
    }


def test_a_release_that_cannot_be_put_there_leaves_the_one_before(
    tmp_path: Path,
) -> None:
    """As on a full disk."""
    dist = tmp_path / "dist"
    publish(built(tmp_path / "first", "a-1"), dist / "release")
    before = {path.name for path in dist.rglob("*")}
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "nowhere", dist / "release")
    assert {path.name for path in dist.rglob("*")} == before == {"release", *FIRST}


def test_a_release_without_an_image_is_not_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = Commit(tmp_path, "abc", 0)
    folder = built(tmp_path / "first", "a-1")
    assert tell(commit, [], folder) == 0
    assert "of commit abc:\n  a-1\n" in capsys.readouterr().out
    assert tell(commit, ["the image for arm64: why"], folder) == 1
    assert "Left out: the image for arm64: why" in capsys.readouterr().err


def test_an_image_that_cannot_be_built_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its reason; the next one is tried all the same."""
    own = "amd64" if platform.machine() == "x86_64" else "arm64"
    tree = Tree(Commit(tmp_path, "abc", 0), tmp_path)
    wanted = ["riscv64", own]
    monkeypatch.setenv("PATH", str(tmp_path))
    unknown = "the image for riscv64: unknown; there are amd64 and arm64"
    assert images(tree, tmp_path, wanted) == [
        unknown,
        f"the image for {own}: missing: buildah; cure: apt-get install buildah",
    ]
    for program in ("buildah", "make"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    assert images(tree, tmp_path, wanted) == [
        unknown,
        f"the image for {own}: make image failed, see above",
    ]


def test_no_script_of_the_environment_is_called() -> None:
    """pip writes the path of Python into scripts, and a release runs it by a link.

    The link is gone when the next release is built.
    """
    asked = ["make", "-n", "gpusharectl", "-o", "/link/.runtime", "VENV=/link"]
    said = subprocess.check_output(asked, cwd=ROOT, text=True)
    assert set(re.findall(r"/link/bin/(\S+)", said)) == {"python"}
