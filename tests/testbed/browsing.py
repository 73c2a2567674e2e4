"""pytest fixtures: a real browser without a screen."""

import os
from collections.abc import Iterator

import pytest

from tests.machine import needs
from tests.testbed.binaries import cache_folder
from tests.testbed.browser import Browser, BrowserProgram, ensure_browser
from tests.testbed.toolchain import BinariesUnavailableError


@pytest.fixture(scope="session")
def browser_program(pytestconfig: pytest.Config) -> BrowserProgram:
    """Debian's Chromium, fetched on first use (90 MB, then cached)."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            return ensure_browser(cache_folder(os.environ))
        except BinariesUnavailableError as error:
            needs(False, error.reason, error.cure)
            raise


@pytest.fixture(scope="module")
def browser(
    browser_program: BrowserProgram, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """One browser for a file's tests; each opens tabs of its own."""
    with Browser(browser_program, tmp_path_factory.mktemp("browser")) as found:
        yield found
