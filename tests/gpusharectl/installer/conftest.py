"""What all stories of installing have in common."""

import os
from pathlib import Path

import pytest

from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.gpusharectl.installer.installed_cluster import InstalledCluster


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files are written, and none of these tests cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def objects() -> FakeObjects:
    return FakeObjects()


@pytest.fixture
def world(objects: FakeObjects, tmp_path: Path) -> InstalledCluster:
    """A cluster of two nodes that knows nothing of us."""
    return InstalledCluster(objects, tmp_path).populate()
