"""gpusharectl from the image, as README.md says: the host needs no Python."""

import json
import re
import subprocess
from contextlib import closing

import pytest

from tests.cluster.fresh import Before, Fresh, printed
from tests.cluster.gpus import ROOT
from tests.cluster.manifests import TWO_P4, container, pod
from tests.gpusharectl.terminal import Terminal

PAGES = ("README*.md", "docs/*.md")
FUNCTION = re.compile(r"^gpusharectl\(\) \{.*?\}$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def host(bare: Fresh) -> Fresh:
    return bare.begin(TWO_P4)


def functions() -> set[str]:
    """Give the shell function, as often as the pages differ over it."""
    pages = [path.read_text() for pattern in PAGES for path in ROOT.glob(pattern)]
    return {one for page in pages for one in FUNCTION.findall(page)}


def by_image(host: Fresh, words: str) -> subprocess.CompletedProcess[str]:
    """Type it into a shell of the host after the function, without a terminal."""
    return host.cluster.nodes["cp"].run(["sh", "-c", program(words)])


def at_a_terminal(host: Fresh, words: str) -> Terminal:
    """Type it into a shell of the host that has a terminal."""
    path = f"PATH={host.cluster.programs.path}"
    command = ["env", path, "sh", "-c", program(words)]
    return Terminal(host.cluster.nodes["cp"].spaces.enter(command))


def program(words: str) -> str:
    return "\n".join([*functions(), words])


def test_all_pages_have_the_same_function() -> None:
    """So what is tested here holds for each."""
    assert len(functions()) == 1


def test_installs_and_places_a_pod(host: Fresh, before: Before) -> None:
    """It finds the node that it is on, the kubeconfig and kube-scheduler's files."""
    assert host.tree() == before[0]
    ran = by_image(host, "gpusharectl install --nodes cp --yes")
    assert ran.returncode == 0, printed(ran)
    assert host.services() == {
        "gpushare-extender": "Running",
        "gpushare-device-plugin": "Running",
    }
    host.create(pod("first", container("main", 4, 1)))
    host.wait_running("first")
    assert "4/29" in printed(by_image(host, "gpusharectl inspect"))


def test_a_refusal_has_its_exit_code(host: Fresh) -> None:
    """ctr passes it on, for scripts that look at it."""
    refused = by_image(host, "gpusharectl uninstall --yes")
    assert refused.returncode == 3
    assert "default/first" in printed(refused)


def test_asks_at_a_terminal(host: Fresh) -> None:
    """A question is shown and its answer heard; what is sent to a file is plain."""
    host.clear()
    with closing(at_a_terminal(host, "gpusharectl uninstall")) as terminal:
        terminal.read_until("[y/N]")
        terminal.send("n\r")
        assert terminal.end() != 0
    assert host.services()
    there = "/run/inspected.json"
    with closing(at_a_terminal(host, f"gpusharectl inspect -o json > {there}")) as read:
        assert read.end() == 0
    assert json.loads(host.cluster.nodes["cp"].must("cat", there))["nodes"]


def test_all_is_as_it_was(host: Fresh, before: Before) -> None:
    """/etc/kubernetes byte for byte, with its modes; no container stays."""
    host.clear()
    ran = by_image(host, "gpusharectl uninstall --yes")
    assert ran.returncode == 0, printed(ran)
    assert host.tree() == before[0]
    assert host.everything_but(before).keys() == before[1].keys()
    containers = host.cluster.nodes["cp"].must(
        *("ctr", "-n", "k8s.io", "containers", "ls")
    )
    assert "gpusharectl" not in containers
