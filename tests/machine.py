"""What a test needs from the machine it runs on."""

import os
import subprocess
from pathlib import Path

import pytest


def needs(condition: bool, what: str, cure: str) -> None:
    """Skip the test where something is missing, saying what and how to get it.

    With ``REQUIRE_ALL=1`` in the environment it fails instead, so that a run that is
    meant to be complete cannot quietly be less.
    """
    if condition:
        return
    missing = f"missing: {what}; cure: {cure}"
    if os.environ.get("REQUIRE_ALL") == "1":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def sanitizer(runtime: str) -> str:
    """Return the path of a sanitizer's runtime, such as ``libasan.so``, by gcc."""
    words = ["gcc", f"-print-file-name={runtime}"]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    cure = "apt-get install libgcc-12-dev, or that of your gcc"
    needs(Path(found.strip()).is_absolute(), runtime, cure)
    return found.strip()
