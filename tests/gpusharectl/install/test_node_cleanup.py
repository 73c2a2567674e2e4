"""What a device plugin left on its node goes, and nothing else."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushare.kube.objects import Ref
from gpusharectl.install.command import host_clean
from gpusharectl.install.node_cleanup import clean, clean_nodes, cleaning_pod
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.stand_ins import Clock, Listener, Nodes, node

PLUGINS = "kubelet/device-plugins"


def test_the_folder_and_the_sockets_go_and_all_else_stays(tmp_path: Path) -> None:
    (tmp_path / "vcuda/containers/x").mkdir(parents=True)
    (tmp_path / "vcuda/health.json").write_text("{}")
    (tmp_path / PLUGINS).mkdir(parents=True)
    others = ["kubelet.sock", "nvidia.sock", "kubelet_internal_checkpoint"]
    for name in (*others, "baidu.com_vcuda-core.sock"):
        (tmp_path / PLUGINS / name).touch()
    assert clean(tmp_path) == [
        str(tmp_path / PLUGINS / "baidu.com_vcuda-core.sock"),
        str(tmp_path / "vcuda"),
    ]
    assert sorted(path.name for path in (tmp_path / PLUGINS).iterdir()) == sorted(
        others
    )
    assert clean(tmp_path) == []


def test_a_link_goes_and_not_what_it_leads_to(tmp_path: Path) -> None:
    target = tmp_path / "data"
    target.mkdir()
    (target / "precious").touch()
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "vcuda").symlink_to(target)
    clean(lib)
    assert not (lib / "vcuda").is_symlink()
    assert (target / "precious").exists()


def test_the_command_of_the_pod(tmp_path: Path) -> None:
    (tmp_path / "vcuda").mkdir()
    ran = CliRunner().invoke(host_clean, [str(tmp_path)])
    assert (ran.exit_code, ran.output) == (0, f"removed {tmp_path}/vcuda\n")


def test_the_pod_sees_one_folder_and_no_account() -> None:
    spec = cleaning_pod("gpu-1", "gpushare:1")["spec"]
    assert spec["nodeName"] == "gpu-1"
    assert spec["automountServiceAccountToken"] is False
    assert [one["hostPath"]["path"] for one in spec["volumes"]] == ["/var/lib"]
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["command"] == ["gpusharectl", "host-clean", "/host/var/lib"]


@pytest.fixture
def objects() -> FakeObjects:
    found = FakeObjects()
    found.create(node("gpu-1", "10.0.0.2"))
    found.create(node("gpu-2", "10.0.0.3"))
    return found


def run(objects: FakeObjects, *, played: bool = True) -> dict[str, str]:
    clock = Clock(Nodes(objects if played else FakeObjects()))
    screen = Listener()
    return clean_nodes(
        objects, ["gpu-1", "gpu-2"], "gpushare:1", screen, clock.patience(5.0)
    )


def test_all_nodes_at_once_and_no_pod_left(objects: FakeObjects) -> None:
    assert run(objects) == {}
    assert not [ref for ref in objects.kept if ref.kind == "Pod"]


def test_a_pod_that_does_not_end_is_told_and_removed(objects: FakeObjects) -> None:
    left = run(objects, played=False)
    assert sorted(left) == ["gpu-1", "gpu-2"]
    assert not [ref for ref in objects.kept if ref.kind == "Pod"]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_an_earlier_runs_pod_does_not_count(objects: FakeObjects, phase: str) -> None:
    """Between it and this one somebody may have installed again."""
    old = cleaning_pod("gpu-1", "gpushare:0")
    objects.create({**old, "status": {"phase": phase}})
    objects.writes.clear()
    assert run(objects) == {}
    assert "create Pod kube-system/gpushare-clean-gpu-1" in objects.writes


def test_a_failed_pod_says_its_last_words(objects: FakeObjects) -> None:
    create = objects.create

    def failing(body: dict[str, object]) -> dict[str, object]:
        made = create(body)
        ended = {"exitCode": 1, "message": "Read-only\n file system"}
        status = {"phase": "Failed", "containerStatuses": [{"state": {}}]}
        status["containerStatuses"] = [{"state": {"terminated": ended}}]
        objects.merge(Ref.of(made), {"status": status}, subresource="status")
        return made

    objects.create = failing
    assert run(objects) == dict.fromkeys(("gpu-1", "gpu-2"), "Read-only file system")
