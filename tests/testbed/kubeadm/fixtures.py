"""pytest fixtures: what real clusters are made of."""

import os
from pathlib import Path

import pytest

from tests.machine import needs
from tests.testbed.binaries import cache_folder
from tests.testbed.kubeadm.appimage import ensure_app_image
from tests.testbed.kubeadm.programs import Programs, ensure_programs
from tests.testbed.toolchain import BinariesUnavailableError


@pytest.fixture(scope="session")
def cluster_programs(pytestconfig: pytest.Config) -> Programs:
    """All that a cluster is made of, built on first use (minutes, then cached)."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            return ensure_programs(cache_folder(os.environ))
        except BinariesUnavailableError as error:
            needs(False, error.reason, error.cure)
            raise


@pytest.fixture(scope="session")
def app_archive(pytestconfig: pytest.Config) -> Path:
    """Our own image, built from the sources as they are (minutes, then seconds)."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            return ensure_app_image(cache_folder(os.environ))
        except BinariesUnavailableError as error:
            needs(False, error.reason, error.cure)
            raise
