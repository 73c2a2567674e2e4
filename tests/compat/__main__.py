"""``make compat VERSIONS="1.33 1.34"``: build them, try them, and write the page.

``AREAS="webhook preemption"`` runs only the rows that have such a word in their title.
Exit status 1 if a test failed or a version could not be tried; the others are tried all
the same.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.compat.page import PAGE, draw
from tests.compat.plan import AREAS
from tests.compat.results import Counts, Result, counted, keep
from tests.testbed.binaries import NODE, cache_folder
from tests.testbed.kubernetes import RELEASES, ensure_kubernetes, release
from tests.testbed.toolchain import BinariesUnavailableError

ROOT = Path(__file__).parents[2]


class UnfinishedError(RuntimeError):
    """The tests were not all run; what passed until then says too little."""


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.compat", description=__doc__)
    parser.add_argument("versions", nargs="*", default=RELEASES)
    parser.add_argument("--areas", default="", help="words of titles")
    given = parser.parse_args()
    try:
        versions = [release(each) for each in given.versions]
    except ValueError as error:
        parser.error(f"VERSIONS: {error}")
    try:
        files = chosen_files(given.areas.split())
    except ValueError as error:
        parser.error(f"AREAS: {error}")
    bad = []
    for version in versions:
        result = tried(version, files)
        keep(result)
        draw()
        if not result.good:
            bad.append(version)
    print(f"Written to {PAGE}; {', '.join(bad) or 'no version'} failed")
    return 1 if bad else 0


def chosen_files(words: list[str]) -> list[str]:
    """Give the files of the areas with such a word in their title, or of all areas."""
    for word in words:
        if not any(word in area.title for area in AREAS):
            titles = "; ".join(area.title for area in AREAS)
            raise ValueError(f"no title has {word!r}: give words of {titles}")
    return [
        f"tests/{file}"
        for area in AREAS
        if not words or any(word in area.title for word in words)
        for file in area.files
    ]


def tried(
    version: str,
    files: list[str],
    ensure: Callable[..., object] = ensure_kubernetes,
) -> Result:
    """Build this version and run the chosen tests on it."""
    areas: dict[str, Counts] = {}
    stopped = ""
    try:
        ensure(cache_folder(os.environ), version=version)
        ensure(cache_folder(os.environ), NODE, version)
        areas = run(version, files)
    except (BinariesUnavailableError, UnfinishedError, OSError) as error:
        stopped = str(error)
    return Result(version, areas, stopped)


def run(
    version: str,
    files: list[str],
    start: Callable[..., CompletedProcess[bytes]] = subprocess.run,
) -> dict[str, Counts]:
    """Run the chosen tests in two processes and count what came out.

    Raises ``UnfinishedError`` if pytest did not come to its end.
    """
    today = datetime.now(UTC).date().isoformat()
    with tempfile.TemporaryDirectory(prefix="t.", dir="/tmp") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "--no-cov", "-q", *files]
        command += ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
        command += [f"--basetemp={folder}/p", f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1", "--durations=12"]
        # A test that this machine cannot run has not passed on this version.
        asked = {"KUBERNETES": version, "REQUIRE_ALL": "1"}
        done = start(command, cwd=ROOT, env=os.environ | asked, check=False)
        if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise UnfinishedError(f"pytest ended early ({done.returncode})")
        return counted(report, today)


if __name__ == "__main__":
    sys.exit(main())
