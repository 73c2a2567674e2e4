"""``version``: this command, and what runs in the cluster."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from gpushare import __version__
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import facts, names
from gpushare.kube.cluster import Json
from gpusharectl.commands import main
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.version import components_of
from tests.gpusharectl.cluster_states import part
from tests.gpusharectl.conftest import put


def of(
    name: str, component: str, container: str, image: str, node: str = "n-1"
) -> Json:
    """A pod of a component; beside its container there is kube-scheduler's."""
    pod = part(name, component, node=node)
    pod["spec"]["containers"] = [
        {"name": "kube-scheduler", "image": "kube-scheduler:v1"},
        {"name": container, "image": image},
    ]
    return pod


def plugin(name: str, image: str, node: str) -> Json:
    return of(name, facts.DEVICE_PLUGIN, "device-plugin", image, node)


def ran(kubeconfig: Path | str, *words: str) -> Result:
    return CliRunner().invoke(
        main, ["version", "--kubeconfig", str(kubeconfig), *words]
    )


def data(found: Result) -> Any:
    return orjson.loads(found.stdout)


def test_what_runs_is_shown(tmp_path: Path) -> None:
    """An image that is being replaced is shown beside the new one."""
    cluster = Embedded()
    put(cluster, of("ext", facts.SECOND_SCHEDULER, "extender", "r/gpushare:0.1.0"))
    put(cluster, plugin("p-1", "r/gpushare:0.0.9", "n-1"))
    put(cluster, plugin("p-2", "r/gpushare:0.1.0", "n-2"))
    put(cluster, plugin("p-3", "r/gpushare:0.1.0", "n-3"))
    with ApiServerOnLoopback(cluster) as server:
        place = server.kubeconfig(tmp_path / "kubeconfig")
        found, shown = ran(place, "-o", "json"), ran(place)
    assert found.exit_code == shown.exit_code == 0
    assert data(found) == {
        "v": 1,
        "gpusharectl": __version__,
        "kubernetes": "v1.36.3",
        "components": {
            "extender": [{"image": "r/gpushare:0.1.0", "pods": 1, "nodes": ["n-1"]}],
            "device-plugin": [
                {"image": "r/gpushare:0.1.0", "pods": 2, "nodes": ["n-2", "n-3"]},
                {"image": "r/gpushare:0.0.9", "pods": 1, "nodes": ["n-1"]},
            ],
            "exporter": [],
            "webhook": [],
        },
    }
    assert shown.output == (
        f"gpusharectl    {__version__}\n"
        "Kubernetes     v1.36.3\n"
        "extender       r/gpushare:0.1.0, 1 pod\n"
        "device-plugin  r/gpushare:0.1.0, 2 pods; r/gpushare:0.0.9, 1 pod\n"
        "exporter       no pod\n"
        "webhook        no pod\n"
    )


@pytest.mark.parametrize("words", [[], ["-o", "json"]])
def test_without_a_cluster_the_commands_own_is_shown(
    tmp_path: Path, words: list[str]
) -> None:
    found = ran(tmp_path / "none", *words)
    assert found.exit_code == 1
    assert __version__ in found.stdout
    assert "there is no file" in found.stderr
    if words:
        assert data(found)["kubernetes"] is None
        assert set(data(found)["components"].values()) == {None}
    else:
        assert found.stdout.count("n/a") == 5


def test_of_a_demo_no_image_is_known(tmp_path: Path) -> None:
    with ApiServerOnLoopback(Embedded(), names.DEMO_BUILD) as server:
        found = ran(server.kubeconfig(tmp_path / "kubeconfig"), "-o", "json")
    assert data(found)["kubernetes"] == f"v1.36.3{names.DEMO_BUILD}"
    assert set(data(found)["components"].values()) == {None}


def test_a_pod_that_has_ended_does_not_count() -> None:
    ended = plugin("p", "r/gpushare:0.1.0", "n-1")
    ended["status"]["phase"] = "Failed"
    assert components_of([ended])["device-plugin"] == []
