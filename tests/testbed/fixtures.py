"""pytest fixtures of real things: control plane, clusters, Prometheus, a browser."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from tests.machine import needs
from tests.testbed.binaries import Binaries, cache_folder
from tests.testbed.browser import Browser, BrowserProgram, ensure_browser
from tests.testbed.certmanager import CertManager, ensure_cert_manager
from tests.testbed.controlplane import ControlPlane
from tests.testbed.goextender import ensure_go_extender
from tests.testbed.helm import ensure_helm, ensure_helm_4
from tests.testbed.kubeadm.appimage import ensure_app_image
from tests.testbed.kubeadm.programs import Programs, ensure_programs
from tests.testbed.kubernetes import ensure_kubernetes
from tests.testbed.objects import new_namespace, sweep
from tests.testbed.prometheus import (
    Alertmanager,
    Amtool,
    MonitoringPrograms,
    Prometheus,
    Promtool,
    ensure_monitoring,
    ensure_prometheus_3,
)
from tests.testbed.toolchain import BinariesUnavailableError

Built = TypeVar("Built")


class StartPrometheus(Protocol):
    """Starts a server with ``Prometheus``' own arguments; it ends with the test."""

    def __call__(self, **settings: Any) -> Prometheus: ...


class StartAlertmanager(Protocol):
    """Starts a server with this configuration; it ends with the test."""

    def __call__(self, config: Path) -> Alertmanager: ...


def _had(config: pytest.Config, ensure: Callable[[Path], Built]) -> Built:
    """Build or fetch on first use, with its progress shown; skip where it cannot be."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            return ensure(cache_folder(os.environ))
        except BinariesUnavailableError as error:
            needs(False, error.reason, error.cure)
            raise


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Binaries:
    return _had(pytestconfig, ensure_kubernetes)


@pytest.fixture(scope="session")
def go_extender_program(pytestconfig: pytest.Config) -> str:
    return _had(pytestconfig, ensure_go_extender)


@pytest.fixture(scope="session")
def helm_program(pytestconfig: pytest.Config) -> str:
    """``HELM=4`` in the environment asks for Helm 4."""
    fourth = os.environ.get("HELM") == "4"
    return _had(pytestconfig, ensure_helm_4 if fourth else ensure_helm)


@pytest.fixture(scope="session")
def cert_manager_program(pytestconfig: pytest.Config) -> CertManager:
    return _had(pytestconfig, ensure_cert_manager)


@pytest.fixture(scope="session")
def cluster_programs(pytestconfig: pytest.Config) -> Programs:
    return _had(pytestconfig, ensure_programs)


@pytest.fixture(scope="session")
def app_archive(pytestconfig: pytest.Config) -> Path:
    """Our own image, built from the sources as they are (minutes, then seconds)."""
    return _had(pytestconfig, ensure_app_image)


@pytest.fixture(scope="session")
def browser_program(pytestconfig: pytest.Config) -> BrowserProgram:
    return _had(pytestconfig, ensure_browser)


@pytest.fixture(scope="session")
def monitoring_programs(pytestconfig: pytest.Config) -> MonitoringPrograms:
    """``PROMETHEUS=3`` in the environment asks for Prometheus 3, which is built."""
    third = os.environ.get("PROMETHEUS") == "3"
    return _had(pytestconfig, ensure_prometheus_3 if third else ensure_monitoring)


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="session")
def promtool(monitoring_programs: MonitoringPrograms) -> Promtool:
    return Promtool(monitoring_programs.path("promtool"))


@pytest.fixture(scope="session")
def amtool(monitoring_programs: MonitoringPrograms) -> Amtool:
    return Amtool(monitoring_programs.path("amtool"))


@pytest.fixture
def prometheus(
    monitoring_programs: MonitoringPrograms, tmp_path: Path
) -> Iterator[StartPrometheus]:
    """``prometheus(targets={"job": ["127.0.0.1:9400"]})`` starts one."""
    folders = (tmp_path / f"prometheus-{number}" for number in count())
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            Prometheus(monitoring_programs, next(folders), **settings)
        )


@pytest.fixture
def alertmanager(
    monitoring_programs: MonitoringPrograms, tmp_path: Path
) -> Iterator[StartAlertmanager]:
    """``alertmanager(config)`` starts one."""
    folders = (tmp_path / f"alertmanager-{number}" for number in count())
    with ExitStack() as stack:
        yield lambda config: stack.enter_context(
            Alertmanager(monitoring_programs, next(folders), config)
        )


@pytest.fixture(scope="module")
def browser(
    browser_program: BrowserProgram, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """One browser for a file's tests; each opens tabs of its own."""
    with Browser(browser_program, tmp_path_factory.mktemp("browser")) as found:
        yield found
