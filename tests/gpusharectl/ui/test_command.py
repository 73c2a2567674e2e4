"""``gpusharectl ui`` as a user runs it, on a small cluster that has no kubelet.

Through a real port-forward it goes in tests/cluster.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpushare.fakeapi.cluster import Embedded
from gpusharectl.__main__ import main
from gpusharectl.demo.api_server import ApiServerOnLoopback
from tests.gpusharectl.pictures import extender
from tests.gpusharectl.top.test_commands import put_ready


@pytest.fixture
def cluster() -> Embedded:
    return Embedded()


@pytest.fixture
def kubeconfig(cluster: Embedded, tmp_path: Path) -> Iterator[str]:
    with ApiServerOnLoopback(cluster) as server:
        yield str(server.kubeconfig(tmp_path / "kubeconfig"))


def ran(kubeconfig: str, *words: str) -> Result:
    given = ["ui", "--no-open", *words, "--kubeconfig", kubeconfig]
    return CliRunner().invoke(main, given)


def test_a_cluster_without_an_extender(kubeconfig: str) -> None:
    """One sentence, with what to do, and nothing is opened."""
    found = ran(kubeconfig)
    assert found.exit_code == 1
    assert "no extender's pod is in kube-system; gpusharectl install" in found.output
    assert "The page is at" not in found.output


def test_an_extender_that_cannot_be_reached(cluster: Embedded, kubeconfig: str) -> None:
    """It is named."""
    pod = extender("ext-1")
    pod["spec"]["containers"][0]["env"] = [{"name": "GPUSHARE_UI", "value": "on"}]
    put_ready(cluster, pod)
    found = ran(kubeconfig)
    assert found.exit_code == 1
    assert "ext-1: " in found.output


def test_a_folder_without_certificates(kubeconfig: str, tmp_path: Path) -> None:
    """Before the cluster is asked anything."""
    found = ran(kubeconfig, "--certificates", str(tmp_path))
    assert found.exit_code == 1
    assert f"--certificates: {tmp_path} cannot be used" in found.output
    assert "ca.crt" in found.output


def test_a_port_that_is_none(kubeconfig: str) -> None:
    """Click's own words."""
    assert ran(kubeconfig, "--port", "70000").exit_code == 2


def test_the_cluster_is_found_as_for_every_command() -> None:
    """And said so where it is not."""
    found = ran("/nowhere/kubeconfig")
    assert found.exit_code == 1
    assert "/nowhere/kubeconfig" in found.output
