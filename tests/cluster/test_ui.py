"""``gpusharectl ui`` on a real cluster: by port-forward into a real browser."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpusharectl.commands import main
from tests.cluster.fresh import Fresh
from tests.cluster.gpus import ROOT
from tests.cluster.manifests import TWO_P4, container, pod
from tests.extender.page_fixture import drawn
from tests.testbed.browser import Browser
from tests.testbed.process import Launcher
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.filterwarnings(
    # Of the test bed's certificate.
    "ignore::urllib3.exceptions.InsecureRequestWarning"
)

CERTIFICATES = "/etc/kubernetes/vcuda/tls"


@pytest.fixture(scope="module")
def host(bare: Fresh) -> Iterator[Fresh]:
    bare.begin(TWO_P4)
    bare.must("install", "--nodes", "cp", "--yes")
    yield bare
    bare.clear()
    bare.must("uninstall", "--yes")


def ran(host: Fresh, *words: str) -> Result:
    """Run the command to its end, which it has where there is no page."""
    config = str(host.cluster.kubeconfig)
    given = ["ui", "--no-open", *words, "--kubeconfig", config]
    return CliRunner().invoke(main, given)


@contextmanager
def opened(host: Fresh, folder: Path, *words: str) -> Iterator[str]:
    """Run the command from this machine, as an operator does; give its address."""
    launcher = Launcher(folder)
    config = ("--kubeconfig", str(host.cluster.kubeconfig))
    command = [sys.executable, "-u", "-m", "gpusharectl", "ui", "--no-open"]
    own = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(folder)}
    try:
        started = launcher.start("ui", [*command, *words, *config], own)
        started.wait_ready(lambda: "Ctrl-C" in started.log.read_text())
        found = re.search(r"http://127\.0\.0\.1:\S+/ui", started.log.read_text())
        assert found, started.log_tail()
        yield found[0]
        started.stop()
        assert started.popen.returncode == 0, started.log_tail()
    finally:
        launcher.end_all()


def test_it_is_off_until_it_is_wanted(host: Fresh) -> None:
    """And it says how it is switched on."""
    found = ran(host)
    assert found.exit_code == 1
    assert "has no page; enable it with gpusharectl install --ui" in found.output


def test_version_shows_what_runs(host: Fresh) -> None:
    config = str(host.cluster.kubeconfig)
    done = CliRunner().invoke(main, ["version", "-o", "json", "--kubeconfig", config])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["kubernetes"].startswith("v1.")
    for name in ("extender", "device-plugin"):
        (image,) = found["components"][name]
        assert (image["pods"], image["nodes"]) == (1, ["cp"])
        assert "gpushare" in image["image"]
    assert found["components"]["exporter"] == []


def test_a_pod_that_comes_is_seen_in_the_browser(
    host: Fresh, browser: Browser, tmp_path: Path
) -> None:
    """From the API server through the extender and kubelet's port-forward.

    And what it uses from the exporter, by another.
    """
    host.must("install", "--nodes", "cp", "--yes", "--ui", "--with-monitoring")
    with opened(host, tmp_path) as url:
        tab = browser.open(url)
        drawn(tab)
        assert "0/29 units" in tab.text("#nodes")
        assert "No problems: the ledger is complete" in tab.text("#health")
        host.create(pod("app-1", container("main", 20, 1)))
        host.wait_running("app-1")
        tab.wait_for(
            "document.getElementById('nodes').innerText.includes('default/app-1')",
            "the pod on the page",
        )
        assert "20/29 units" in tab.text("#nodes")
        tab.wait_for("!!document.querySelector('.cards.used')", "use on the page")
        assert re.search(r"uses [0-9.]+ [MG]iB, 0 % busy", tab.text("#nodes"))
        host.create(pod("big", container("main", 30, 1)))
        tab.wait_for("!!document.querySelector('#waiting tbody tr')", "who waits")
        assert "the largest card has 29, so it can never run" in tab.text("#waiting")
        assert tab.complaints == []
    host.kubectl("delete", "pod", "app-1", "big")


def test_with_tls_it_takes_the_certificates(
    host: Fresh, browser: Browser, tmp_path: Path
) -> None:
    """Without them it says what would help; ``install`` has kept the page."""
    host.must("install", "--nodes", "cp", "--yes", "--tls")
    found = ran(host)
    assert found.exit_code == 1
    assert "requires a client certificate" in found.output
    # Other commands find them on the host.
    assert '"from": "extender"' in host.must("inspect", "-o", "json")
    folder = host.cluster.nodes["cp"].path(CERTIFICATES)
    with opened(host, tmp_path, "--certificates", str(folder)) as url:
        tab = browser.open(url)
        drawn(tab)
        assert "card 0" in tab.text("#nodes")
        assert tab.complaints == []


def test_it_is_switched_off_again(host: Fresh) -> None:
    """By the installer, and only then."""
    folder = host.cluster.nodes["cp"].path(CERTIFICATES)
    assert folder.is_dir(), "the test before this one failed: it installs with --tls"
    host.must("install", "--nodes", "cp", "--yes", "--no-ui")
    wait_until(
        lambda: ran(host, "--certificates", str(folder)).output,
        "a page that is off",
        accept=lambda said: "has no page" in said,
        timeout_s=60,
    )
