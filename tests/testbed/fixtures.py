"""pytest fixtures: binaries, one control plane for the whole run, clean namespaces."""

import os
from collections.abc import Iterator

import pytest

from tests.machine import needs
from tests.testbed.binaries import Binaries, cache_folder, ensure_binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.sweep import new_namespace, sweep
from tests.testbed.toolchain import BinariesUnavailableError


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Binaries:
    """The real Kubernetes binaries, built on first use (minutes, then cached)."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            return ensure_binaries(cache_folder(os.environ))
        except BinariesUnavailableError as error:
            needs(False, error.reason, error.cure)
            raise


@pytest.fixture(scope="session")
def control_plane(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver; tests start schedulers and kubelets of their own."""
    with ControlPlane(binaries, tmp_path_factory.mktemp("controlplane")) as plane:
        yield plane


@pytest.fixture
def clean_plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane; a test's pods, nodes and Deployments vanish afterwards."""
    yield control_plane
    sweep(control_plane.rest)


@pytest.fixture
def namespace(clean_plane: ControlPlane) -> str:
    """A namespace of the test's own, which vanishes with all that is in it."""
    return new_namespace(clean_plane.rest)
