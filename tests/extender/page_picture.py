"""Take the picture of the page that docs/operations.md shows: ``make picture``."""

import os
import sys
import tempfile
from pathlib import Path

from gpusharectl.ui import PageServer
from tests.extender.page_fixture import Scene, drawn, furnish, furnished_use
from tests.testbed.binaries import cache_folder
from tests.testbed.browser import Browser, ensure_browser

WIDTH = 1200


def main(target: str, *, dark: bool = False) -> None:
    """Write a PNG of the furnished cluster's page."""
    program = ensure_browser(cache_folder(os.environ))
    with (
        tempfile.TemporaryDirectory() as folder,
        Scene() as scene,
        Browser(program, Path(folder)) as browser,
        PageServer(0, scene.get, lambda: furnished_use(scene)) as server,
    ):
        furnish(scene)
        tab = browser.open(server.url)
        drawn(tab)
        tab.wait_for("hasUse()", "use on the page")
        tab.seen_as(WIDTH, 800, dark=dark)
        tab.wait_for("document.body.innerText.includes('2 pods')", "whole page")
        height = tab.evaluate("document.documentElement.scrollHeight")
        tab.seen_as(WIDTH, height, dark=dark)
        Path(target).write_bytes(tab.picture())


if __name__ == "__main__":
    main(sys.argv[1], dark="--dark" in sys.argv[2:])
