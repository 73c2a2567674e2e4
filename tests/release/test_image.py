"""The image of a release, with stand-ins for make and buildah."""

import json
import os
from pathlib import Path

import pytest

from release.commit import Commit, StepFailedError, Tree
from release.image import build_image

BUILDAH = """#!/bin/sh
echo "$1 $2 $3" >> {folder}/asked
case $1 in
push) to=${{4#oci:}}; cp -r {folder}/layout "${{to%%:*}}" || exit 1; exit {code} ;;
esac
"""


def put_programs(folder: Path, code: int) -> None:
    """An image without layers; ``code`` is what the push ends with."""
    blobs = folder / "layout/blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    index = {"manifests": [{"digest": "sha256:1"}]}
    (folder / "layout/index.json").write_text(json.dumps(index))
    (blobs / "1").write_text(json.dumps({"layers": []}))
    (folder / "make").write_text("#!/bin/sh\n")
    (folder / "buildah").write_text(BUILDAH.format(folder=folder, code=code))
    for program in ("make", "buildah"):
        (folder / program).chmod(0o755)


def names_of(folder: Path) -> list[list[str]]:
    """Give the name of the image in each call, by push and rmi."""
    asked = (folder / "asked").read_text().splitlines()
    return [line.removeprefix("push --quiet").split() for line in asked]


def test_two_releases_at_once_have_images_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one would have the other's; none stays behind, also after a failure."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for place, code in (("release-a", 0), ("release-b", 1)):
        tree = Tree(Commit(tmp_path, "abc", 0), tmp_path / place / "tree")
        tree.folder.mkdir(parents=True)
        put_programs(tmp_path, code)
        try:
            build_image(tree, "1", "amd64", tmp_path)
        except StepFailedError:
            assert code == 1
        else:
            assert (tmp_path / "gpushare-image-1-amd64.tar").exists()
    pushed, removed, other, other_removed = names_of(tmp_path)
    assert removed == ["rmi", *pushed]
    assert other_removed == ["rmi", *other]
    assert pushed != other
