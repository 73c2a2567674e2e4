"""Fixtures of the test bed, for every test that needs the real thing."""

from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from gpushare import listening
from tests.ports import Ports
from tests.testbed.binaries import Binaries

# Before anything else takes it by its name.
listening.free_address = Ports.of_this_process()

pytest_plugins = [
    "tests.testbed.fixtures",
    "tests.testbed.kubeadm.fixtures",
    "tests.testbed.monitoring",
    "tests.testbed.browsing",
]

# A busy machine is late itself: that says nothing about what is tested.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def kubectl(binaries: Binaries) -> Path:
    """The real kubectl, of the control plane's own version."""
    return Path(binaries.path("kubectl"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Say which tests run in one process, where the run has several."""
    return Together(config, log)


class Together(LoadScopeScheduling):
    """Tests that share a cluster or a control plane stay together, and each file does.

    Those on a cluster mostly wait, so that others can run meanwhile.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        for folder in ("tests/cluster/", "tests/controlplane/"):
            if path.startswith(folder):
                return folder
        return path
