"""What all stories of installing have in common."""

import os

import pytest


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files are written, and none of these tests cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
