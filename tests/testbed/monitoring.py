"""pytest fixtures: Prometheus, Alertmanager and their tools, real ones."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.machine import needs
from tests.testbed.alertmanager import Alertmanager, Amtool
from tests.testbed.binaries import cache_folder
from tests.testbed.prometheus import (
    Prometheus,
    Promtool,
)
from tests.testbed.served import (
    MonitoringPrograms,
    ensure_monitoring,
    ensure_prometheus_3,
)
from tests.testbed.toolchain import BinariesUnavailableError


class StartPrometheus(Protocol):
    """Starts a server with ``Prometheus``' own arguments; it ends with the test."""

    def __call__(self, **settings: Any) -> Prometheus: ...


class StartAlertmanager(Protocol):
    """Starts a server with this configuration; it ends with the test."""

    def __call__(self, config: Path) -> Alertmanager: ...


@pytest.fixture(scope="session")
def monitoring_programs(pytestconfig: pytest.Config) -> MonitoringPrograms:
    """The programs, fetched on first use (30 MB, then cached).

    ``PROMETHEUS=3`` in the environment asks for Prometheus 3, which is built.
    """
    third = os.environ.get("PROMETHEUS") == "3"
    ensure = ensure_prometheus_3 if third else ensure_monitoring
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            return ensure(cache_folder(os.environ))
        except BinariesUnavailableError as error:
            needs(False, error.reason, error.cure)
            raise


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
    with ExitStack() as stack:
        count = iter(range(1000))

        def start(**settings: Any) -> Prometheus:
            folder = tmp_path / f"prometheus-{next(count)}"
            return stack.enter_context(
                Prometheus(monitoring_programs, folder, **settings)
            )

        yield start


@pytest.fixture
def alertmanager(
    monitoring_programs: MonitoringPrograms, tmp_path: Path
) -> Iterator[StartAlertmanager]:
    """``alertmanager(config)`` starts one."""
    with ExitStack() as stack:
        count = iter(range(1000))

        def start(config: Path) -> Alertmanager:
            folder = tmp_path / f"alertmanager-{next(count)}"
            return stack.enter_context(
                Alertmanager(monitoring_programs, folder, config)
            )

        yield start
