"""What a test needs from the machine it runs on."""

import os

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
