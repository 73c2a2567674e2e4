"""The module that builds another Kubernetes, and the page of what was run on it."""

from pathlib import Path

import pytest

from gpusharectl.install.preflight import NEWEST, OLDEST
from tests.compat.page import BEGIN, END, PAGE, results
from tests.compat.plan import FILES
from tests.compat.results import Counts, Result, counted, keep, kept
from tests.testbed.binaries import MODULE, build_flags
from tests.testbed.kubernetes import (
    RELEASES,
    chosen,
    go_mod,
    lacks,
    numbers,
    pinned,
    release,
)

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
        "- not applicable, 1 test: Kubernetes 1.36 is the first with it\n"
    )


def test_the_page_in_docs_has_the_results() -> None:
    """And names the versions that the installer takes."""
    page = PAGE.read_text()
    assert page.split(BEGIN)[1].split(END)[0] == results(kept())
    assert f"supports Kubernetes 1.{OLDEST[1]} to 1.{NEWEST[1]}." in page
    assert max(numbers(one)[:2] for one in RELEASES) == NEWEST
