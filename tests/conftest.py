"""Fixtures of the test bed, for every test that needs the real thing."""

from pathlib import Path

import pytest

from tests.testbed.binaries import Binaries

pytest_plugins = ["tests.testbed.fixtures", "tests.testbed.kubeadm.fixtures"]


@pytest.fixture(scope="session")
def kubectl(binaries: Binaries) -> Path:
    """The real kubectl, of the control plane's own version."""
    return Path(binaries.path("kubectl"))
