"""The module that builds another Kubernetes, and the page of what was run on it."""

import os
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from gpusharectl.installer.preflight import NEWEST, OLDEST
from tests.compat.__main__ import UnfinishedError, chosen_files, run, tried
from tests.compat.page import BEGIN, END, PAGE, results
from tests.compat.plan import FILES
from tests.compat.results import Counts, Result, counted, keep, kept
from tests.testbed.binaries import MODULE, Tool, build_flags
from tests.testbed.kubernetes import (
    RELEASES,
    chosen,
    ensure_kubernetes,
    go_mod,
    lacks,
    numbers,
    pinned,
    release,
)
from tests.testbed.toolchain import BinariesUnavailableError

ROOT = Path(__file__).parents[2]
OF_KUBERNETES = """module k8s.io/kubernetes

go 1.23.0

godebug default=go1.23

godebug (
	winsymlink=0
)

require (
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/endpointslice => ./staging/src/k8s.io/endpointslice
	other.io/x => other.io/y v1.0.0
)
"""
WRITTEN = """module gpushare.test/cluster

go 1.23.0

godebug default=go1.23

require k8s.io/kubernetes v1.32.13

replace k8s.io/api => k8s.io/api v0.32.13

replace k8s.io/endpointslice => k8s.io/endpointslice v0.32.12
"""


def test_the_module_of_another_version() -> None:
    """Go's defaults are that version's, and so is each part that is there."""
    made = go_mod("1.32.13", OF_KUBERNETES)
    assert made == WRITTEN
    assert build_flags(made)[-1].endswith("gitVersion=v1.32.13")


def test_which_version() -> None:
    """A minor version is its newest listed patch; by default what is pinned."""
    assert release("1.36") == pinned() == chosen({})
    assert release("v1.33.1") == chosen({"KUBERNETES": "1.33.1"}) == "1.33.1"
    assert pinned() in RELEASES
    assert f"k8s.io/kubernetes v{pinned()} " in (MODULE / "go.mod").read_text()
    with pytest.raises(
        ValueError, match=r"no Kubernetes '1\.9' is listed: give one of"
    ):
        release("1.9")
    sentence = "KUBERNETES: no Kubernetes 'abc' is listed: give one of 1.32"
    with pytest.raises(BinariesUnavailableError, match=sentence):
        chosen({"KUBERNETES": "abc"})


def test_a_word_of_no_title_is_named() -> None:
    """Also beside one that is: else its tests would be missed by nobody."""
    assert "tests/controlplane/test_webhook.py" in chosen_files(["webhook"])
    with pytest.raises(ValueError, match="no title has 'restart-s': give words of"):
        chosen_files(["webhook", "restart-s"])


KUBECTL = Tool("kubectl", "k8s.io/kubernetes/cmd/kubectl")
GO = """#!/bin/sh
case $1 in
env) echo go1.99.0 ;;
mod) echo once >> {folder}/downloads; echo '{{"GoMod": "{folder}/of-kubernetes"}}' ;;
list) exit {code} ;;
build) while [ "$1" != -o ]; do shift; done; touch "$2/kubectl" ;;
esac
"""


def put_go(folder: Path, code: int = 0) -> None:
    """Stand in for Go; ``code`` is what writing a module ends with."""
    (folder / "of-kubernetes").write_text(OF_KUBERNETES)
    (folder / "go").write_text(GO.format(folder=folder, code=code))
    (folder / "go").chmod(0o755)


def test_another_version_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of two processes; what an interrupted or failed build left is removed."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    cache = tmp_path / "cache"
    (cache / "unfinished-x").mkdir(parents=True)
    put_go(tmp_path, code=1)
    with pytest.raises(BinariesUnavailableError, match="`go list -mod=mod` failed"):
        ensure_kubernetes(cache, (KUBECTL,), "1.33.9")
    assert not [path for path in cache.rglob("*") if path.name.startswith("unfin")]
    assert not list((cache / "modules").iterdir())
    (tmp_path / "downloads").unlink()
    put_go(tmp_path)
    with ThreadPoolExecutor(2) as both:
        asked = [
            both.submit(ensure_kubernetes, cache, (KUBECTL,), "1.33.9") for _ in "ab"
        ]
        first, second = (each.result() for each in asked)
    assert first == second
    assert Path(first.path("kubectl")).exists()
    assert (tmp_path / "downloads").read_text() == "once\n"


def test_what_pytest_is_asked_for() -> None:
    """The version; and that what this machine cannot run fails."""
    asked: list[dict[str, str]] = []

    def start(command: list[str], **how: Any) -> CompletedProcess[bytes]:
        asked.append(how["env"])
        (report,) = (one for one in command if one.startswith("--junitxml="))
        Path(report.partition("=")[2]).write_text(REPORT)
        return CompletedProcess(command, len(asked))

    assert run("1.33.13", ["tests/a.py"], start)["preemption"].passed == 1
    with pytest.raises(UnfinishedError, match=r"ended early \(2\)"):
        run("1.33.13", ["tests/a.py"], start)
    assert [(one["KUBERNETES"], one["REQUIRE_ALL"]) for one in asked] == [
        ("1.33.13", "1")
    ] * 2


def test_a_version_that_cannot_be_built() -> None:
    """The others are tried all the same, so it is a result."""

    def ensure(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    result = tried("1.33.13", [], ensure)
    assert not result.good
    assert "No space left" in result.stopped


def test_what_is_too_new_is_left_out_of_older_versions_alone() -> None:
    """On the pinned version no test can pass by not running."""
    assert lacks("1.33.13", "1.36")
    assert not lacks("1.37.2", "1.36")
    assert not lacks(pinned(), "1.99")


def test_every_chosen_file_is_there() -> None:
    assert len(set(FILES)) == len(FILES)
    assert not [file for file in FILES if not (ROOT / file).exists()]


REPORT = """<testsuites><testsuite>
<testcase file="tests/controlplane/test_preemption.py" name="test_a"/>
<testcase file="tests/controlplane/test_preemption.py" name="test_b"><failure/>
</testcase>
<testcase file="tests/controlplane/test_preemption.py" name="test_b"><error/>
</testcase>
<testcase file="tests/controlplane/test_dra.py" name="test_c">
<skipped message="Kubernetes 1.36 is the first with it"/></testcase>
<testcase classname="" name="tests.controlplane.test_guard"><error/></testcase>
</testsuite></testsuites>"""


def test_what_the_page_says(tmp_path: Path) -> None:
    """A test that fails and then ends badly is one; what was not run is not passed."""
    (tmp_path / "report.xml").write_text(REPORT)
    found = counted(tmp_path / "report.xml", "2026-11-27")
    good = {"preemption": Counts("2026-11-27", 2)}
    for result in (
        Result("1.33.13", found),
        Result("1.9.1", {}, "it was not built"),
        Result("1.36.2", {"webhook": Counts("2026-11-25", 1)}),
        Result("1.36.3", good),
        Result("1.36.3", {"guard policies": Counts("2026-11-28", 3)}),
    ):
        keep(result, tmp_path / "kept")
    again = kept(tmp_path / "kept")
    assert [each.good for each in again] == [False, False, True]
    page = results(again)
    failed = "**not run** | **1 failed**, 1 passed | 2 passed |"
    days = "|  | 2026-11-27 | 2026-11-27 to 2026-11-28 |"
    assert page.startswith("|  | 1.9.1 | 1.33.13 | 1.36.3 |\n")
    assert f"| preemption | {failed}\n" in page
    assert "| guard policies | **not run** | **1 failed** | 3 passed |\n" in page
    assert "| webhook | **not run** | **not run** | **not run** |\n" in page
    assert f"| run on {days}\n" in page
    assert page.endswith(
        "1.9.1:\n- not run: it was not built\n\n1.33.13:\n"
        "- failed: `tests/controlplane/test_preemption.py::test_b`\n"
        "- failed: `tests/controlplane/test_guard.py::tests.controlplane.test_guard"
        "`\n"
        "\nNot applicable:\n- Kubernetes 1.36 is the first with it: 1.33.13\n"
    )


def test_the_page_in_docs_has_the_results() -> None:
    """And names the versions that the installer takes."""
    page = PAGE.read_text()
    assert page.split(BEGIN)[1].split(END)[0] == results(kept())
    assert f"supports Kubernetes 1.{OLDEST[1]} to 1.{NEWEST[1]}." in page
    assert max(numbers(one)[:2] for one in RELEASES) == NEWEST
