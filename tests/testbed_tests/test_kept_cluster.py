"""The cluster of ``make cluster``: installed as an operator would, and left alone."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.kubeadm import Programs, instances, keeper
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]


def test_installed_and_entered(
    cluster_programs: Programs, app_archive: Path, tmp_path: Path
) -> None:
    """Its cards are offered by pods of our image, which its shell shows; then it ends.

    The shell and ``down`` of others are not used: a person's cluster may be up.
    """
    folder = tmp_path / "kept"
    words = [sys.executable, "-m", "tests.testbed.kubeadm", "keep", str(folder)]
    log = tmp_path / "log"
    with log.open("wb") as out:
        keeping = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=out)
    try:
        found = wait_until(
            lambda: (
                [one for one in instances.known() if one.pid == keeping.pid]
                if keeping.poll() is None
                else pytest.fail(log.read_text())
            ),
            "the cluster",
            480,
            accept=lambda records: any(one.ready for one in records),
        )
        asked = ["gpusharectl", "inspect", "-o", "json"]
        inside = keeper.way_in(cluster_programs, found[0], asked)
        shown = subprocess.run(inside, capture_output=True, check=True).stdout
    finally:
        keeping.send_signal(signal.SIGTERM)
        keeping.wait(60)
    (node,) = json.loads(shown)["nodes"]
    assert [card["units"] for card in node["cards"]] == [29, 29]
    assert not folder.exists()
