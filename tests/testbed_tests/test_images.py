"""The images that every cluster starts with: how they come into the cache."""

import fcntl
from pathlib import Path

import pytest

from tests.testbed.binaries import Binaries
from tests.testbed.kubeadm import imageset


def test_one_process_builds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever builds something else removes what it takes for interrupted builds."""
    held = []

    def build(cache: Path, *_: object) -> None:
        with (cache / "lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(cache)

    monkeypatch.setattr(imageset, "image_names", lambda _: {"pause": "pause:1"})
    monkeypatch.setattr(imageset, "_build", build)
    program = tmp_path / "program"
    program.touch()
    imageset.ensure_images(tmp_path, Binaries(tmp_path), Binaries(tmp_path), program)
    assert held == [tmp_path]
