"""Fixtures of the test bed, for every test that needs the real thing."""

from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from gpushare import addresses
from tests.ports import Ports
from tests.testbed.binaries import Binaries

# Before anything else takes it by its name.
addresses.free_address = Ports.of_this_process()

pytest_plugins = [
    "tests.testbed.fixtures",
    "tests.testbed.kubeadm.fixtures",
    "tests.testbed.monitoring",
    "tests.testbed.browsing",
]

FROM_NOTHING = {
    f"tests/cluster/test_{name}.py"
    for name in ("install", "scheduler_config", "ui", "webhook")
}
"""They share a cluster of their own, on which nothing of ours runs in between."""

# A busy machine is late itself: that says nothing about what is tested.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def kubectl(binaries: Binaries) -> Path:
    """The real kubectl, of the control plane's own version."""
    return Path(binaries.path("kubectl"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count no lines while a law is tried on hundreds of invented cases.

    They go over the same lines again and again, which counting makes far slower; and
    plainer tests go over those too.
    """
    for item in items:
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.no_cover)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Say which tests run in one process, where the run has several."""
    return Together(config, log)


class Together(LoadScopeScheduling):
    """Tests that share a cluster or a control plane stay together, and each file does.

    Those on a cluster mostly wait, so that others can run meanwhile.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in FROM_NOTHING:
            return "a cluster that knows nothing of us"
        for folder in ("tests/cluster/", "tests/controlplane/"):
            if path.startswith(folder):
                return folder
        return path
