"""Fixtures of the test bed, for every test that needs the real thing."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from gpushare import addresses
from tests.ports import Ports
from tests.testbed import kubernetes
from tests.testbed.binaries import Binaries
from tests.testbed.toolchain import BinariesUnavailableError

# Before anything else takes it by its name.
addresses.find_free_address = Ports.of_this_process()

pytest_plugins = ["tests.testbed.fixtures"]

CLUSTERS = {
    "knows nothing of us": ("install", "scheduler_config"),
    "knows nothing of us either": ("install_by_image", "ui", "upgrade", "webhook"),
    "has all of us": (
        *("health", "hpa", "image", "inventory", "kubelet_defects", "mig", "preload"),
        *("restarts", "two_nodes"),
    ),
    "makes its own": ("two_control_planes",),
}
"""Which of ``tests/cluster`` share a cluster; all others have one more with all of us.

Each cluster takes half a minute and costs a fifth of a processor, and what is on one
runs in turn: about as long on each.
"""
CLUSTER_OF = {
    f"tests/cluster/test_{name}.py": f"a cluster that {kind}"
    for kind, files in CLUSTERS.items()
    for name in files
}

LONGEST = (
    "tests/cluster/test_two_control_planes.py",
    "tests/test_executable.py",
    "tests/gpusharectl/installer/test_interrupted.py",
    "tests/testbed_tests/test_kept_cluster.py",
    "tests/gpusharectl/demo/test_command.py",
    "tests/deviceplugin/allocation/test_isolation_law.py",
    "tests/isolation/test_sanitized.py",
    "tests/monitoring/test_alerts.py",
    "tests/contract/test_cluster.py",
    "tests/webhook/test_gunicorn_conf.py",
    "tests/extender/server/test_page.py",
    "tests/deviceplugin/test_serve.py",
    "tests/extender/test_gunicorn_conf.py",
)
"""Files of ten seconds and more begin first, the longest of them before the others,
since one process has a whole file."""

NEEDED_BY_FIXTURE = {
    "binaries": "controlplane",
    "browser_program": "browser",
    "cert_manager_program": "certmanager",
    "helm_program": "helm",
    "monitoring_programs": "prometheus",
}
"""The mark of each test that has the fixture, itself or by another one."""

NEEDS = {
    *("controlplane", "cluster", "gpu", "prometheus", "browser", "helm", "processes"),
    "certmanager",
}
"""Marks that say what a test needs; one that has none of them is a unit test."""

# A busy machine is late itself: that says nothing about what is tested.
hypothesis.settings.register_profile("patient", deadline=None)
# `make unit` loads it: see `fewer_examples`.
hypothesis.settings.register_profile("unit", deadline=None)
# The gate tries the same examples each time; runs by hand search for new ones.
hypothesis.settings.register_profile(
    "gate", deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile(
    "gate" if os.environ.get("REQUIRE_ALL") == "1" else "patient"
)


@pytest.fixture(scope="session")
def kubectl(binaries: Binaries) -> Path:
    """The real kubectl, of the control plane's own version."""
    return Path(binaries.path("kubectl"))


def pytest_configure() -> None:
    """Refuse a Kubernetes that is not listed before anything is collected."""
    try:
        kubernetes.chosen(os.environ)
    except BinariesUnavailableError as error:
        raise pytest.UsageError(str(error)) from error


# Before pytest selects by marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what each test needs, and count no lines in tests by hypothesis.

    Those repeat the same lines for hundreds of examples, which coverage makes far
    slower; plainer tests cover the same lines.
    """
    for item in items:
        if "tests/cluster/" in item.nodeid:
            item.add_marker(pytest.mark.cluster)
        fixtures = NEEDED_BY_FIXTURE.keys() & getattr(item, "fixturenames", ())
        needed = {NEEDED_BY_FIXTURE[fixture] for fixture in fixtures}
        # Asked for by its own mark alone, whatever else it needs.
        for mark in needed & {"certmanager"} or needed:
            item.add_marker(mark)
        if NEEDS.isdisjoint(mark.name for mark in item.iter_markers()):
            item.add_marker(pytest.mark.unit)
        if since := item.get_closest_marker("since"):
            skip_before(item, *since.args)
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.no_cover)
            if hypothesis.settings.get_current_profile_name() == "unit":
                fewer_examples(item)
    first = {item.path for item in items if _waits(item)}
    items.sort(key=lambda item: (_turn(item), item.path not in first))


def pytest_collection_finish() -> None:
    """Keep what is collected out of garbage collections: it stays to the end."""
    gc.freeze()


def skip_before(item: pytest.Item, version: str, what: str) -> None:
    """Skip the test on an older Kubernetes: what it asks of does not exist there."""
    if kubernetes.lacks(kubernetes.chosen(os.environ), version):
        reason = f"Kubernetes {version} is the first with {what}"
        item.add_marker(pytest.mark.skip(reason=reason))


def _turn(item: pytest.Item) -> int:
    """Give a place in the order: what runs for minutes in one process has to be first.

    Then come the longest files, and after them all others.
    """
    path = item.nodeid.partition("::")[0]
    if path in LONGEST:
        return LONGEST.index(path)
    on_one_plane = path.startswith(("tests/cluster/", "tests/controlplane/"))
    return -1 if on_one_plane else len(LONGEST)


def _waits(item: pytest.Item) -> bool:
    return item.get_closest_marker("unit") is None


def fewer_examples(item: pytest.Item) -> None:
    """Let a test by hypothesis try a tenth of its examples, but 10 at least.

    All of them are tried by ``make test``. Decorators win over profiles, so that a
    profile alone does not reach the tests that say how many they want.
    """
    function = getattr(item.obj, "__func__", item.obj)  # type: ignore[attr-defined]
    found = getattr(function, "_hypothesis_internal_use_settings", None)
    if found is not None:
        few = min(found.max_examples, max(10, found.max_examples // 10))
        function._hypothesis_internal_use_settings = hypothesis.settings(
            found, max_examples=few
        )


@pytest.fixture
def sampled() -> Callable[[list[int]], list[int]]:
    """Choose which numbers of a long list to try: ``make unit`` tries each fifth.

    All of them are tried by ``make test``, as with a test by hypothesis.
    """
    few = hypothesis.settings.get_current_profile_name() == "unit"
    return lambda numbers: numbers[:: 5 if few else 1]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Say which tests run in one process, where the run has several."""
    return Together(config, log)


class Together(LoadScopeScheduling):
    """Tests that share a cluster or a control plane stay together, and each file does.

    Those on a cluster mostly wait, so that others can run meanwhile.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in CLUSTER_OF:
            return CLUSTER_OF[path]
        for folder in ("tests/cluster/", "tests/controlplane/"):
            if path.startswith(folder):
                return folder
        return path
