"""How the image of ours is kept and packed, as far as it can be told without one."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.testbed.kubeadm.appimage import (
    KEPT,
    ROOT,
    app_image_name,
    drop_all_but_newest,
    fingerprint,
    sent,
)
from tests.testbed.kubeadm.ociarchive import read_manifest, write_oci_archive

SOURCES = {
    "Dockerfile": "FROM scratch",
    ".dockerignore": "# Only these.\n*\n!setup.cfg\n!ours\n**/*.pyc\n",
    "setup.cfg": "[metadata]\nversion = 1.2.3\n",
    "ours/a.py": "a = 1",
    "ours/deep/b.yaml": "b: 1",
}
NOT_SENT = ("ours/__pycache__/a.cpython-311.pyc", "notes.md", "other/c.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {**SOURCES, **dict.fromkeys(NOT_SENT, "")}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_what_is_sent(checkout: Path) -> None:
    """What ``.dockerignore`` lets through, and nothing that Python left behind."""
    names = [str(path.relative_to(checkout)) for path in sent(checkout)]
    assert names == ["ours/a.py", "ours/deep/b.yaml", "setup.cfg"]


def test_all_packages_are_sent() -> None:
    """A package that ``.dockerignore`` forgot would be missed only in the cluster."""
    names = {path.relative_to(ROOT).parts[0] for path in sent(ROOT)}
    packages = {"gpushare", "extender", "deviceplugin", "gpusharectl", "manifests"}
    rest = {"setup.cfg", "pyproject.toml", "requirements", "README.md"}
    assert names == packages | rest


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_changed_source_is_another_image(checkout: Path, name: str) -> None:
    before = fingerprint(checkout)
    with (checkout / name).open("a") as file:
        file.write("\n")
    assert fingerprint(checkout) != before


@pytest.mark.parametrize("name", NOT_SENT)
def test_other_files_make_no_other_image(checkout: Path, name: str) -> None:
    before = fingerprint(checkout)
    (checkout / name).write_text("changed")
    assert fingerprint(checkout) == before


def test_a_renamed_source_is_another_image(checkout: Path) -> None:
    before = fingerprint(checkout)
    (checkout / "ours/a.py").rename(checkout / "ours/deep/a.py")
    assert fingerprint(checkout) != before


def test_kubelet_finds_it_by_its_short_name(checkout: Path) -> None:
    """``gpushare:1.2.3`` is this to containerd."""
    assert app_image_name(checkout) == "docker.io/library/gpushare:1.2.3"


def test_archives_that_were_of_use_stay(tmp_path: Path) -> None:
    """The oldest go, by when they were last asked for; other files are not ours."""
    for age, name in enumerate(("app-a", "app-b", "app-c", "app-d", "debian-a")):
        (tmp_path / f"{name}.tar").touch()
        os.utime(tmp_path / f"{name}.tar", (0, 1000 - age))
    drop_all_but_newest(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"app-a.tar", "app-b.tar", "app-c.tar", "debian-a.tar"}
    assert len(left) == KEPT + 1


def test_an_archive_holds_every_part_once(tmp_path: Path) -> None:
    """Two layers alike are one file; the name is where containerd looks for it."""
    parts = tmp_path / "parts"
    parts.mkdir()
    described = [_part(parts, blob) for blob in (b"{}", b"base", b"ours", b"ours")]
    manifest = {"config": described[0], "layers": described[1:]}
    (parts / "manifest.json").write_text(json.dumps(manifest))
    write_oci_archive(parts, "docker.io/a/b:1", tmp_path / "image.tar")
    assert read_manifest(tmp_path / "image.tar") == manifest
    listed = subprocess.check_output(
        ["tar", "--list", "--file", tmp_path / "image.tar"], text=True
    ).split()
    assert len(listed) == len(set(listed)) == 6


def _part(folder: Path, blob: bytes) -> dict[str, object]:
    digest = hashlib.sha256(blob).hexdigest()
    (folder / digest).write_bytes(blob)
    return {"digest": f"sha256:{digest}", "size": len(blob)}
