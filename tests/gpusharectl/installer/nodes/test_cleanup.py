"""What a device plugin left on its node goes, and nothing else."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusharectl.installer.command import host_clean
from gpusharectl.installer.nodes.cleanup import (
    clean_nodes,
    cleaning_pod,
    remove_host_files,
)
from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.gpusharectl.installer.installed_cluster import InstalledCluster

PLUGINS = "kubelet/device-plugins"


def test_the_folder_and_the_sockets_go_and_all_else_stays(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    (lib / "vcuda/containers/x").mkdir(parents=True)
    (lib / "vcuda/health.json").write_text("{}")
    (lib / PLUGINS).mkdir(parents=True)
    others = ["kubelet.sock", "nvidia.sock", "kubelet_internal_checkpoint"]
    for name in (*others, "baidu.com_vcuda-core.sock"):
        (lib / PLUGINS / name).touch()
    assert remove_host_files(lib) == [
        str(lib / PLUGINS / "baidu.com_vcuda-core.sock"),
        str(lib / "vcuda"),
    ]
    assert sorted(path.name for path in (lib / PLUGINS).iterdir()) == sorted(others)
    assert remove_host_files(lib) == []


def test_what_the_dra_driver_left_goes_too(tmp_path: Path) -> None:
    """The specifications of claims and limits are beside those of others."""
    lib, cdi = tmp_path / "lib", tmp_path / "run/cdi"
    kubelet = lib / "kubelet"
    for name in ("plugins/vcuda.baidu.com", "plugins/other", "plugins_registry"):
        (kubelet / name).mkdir(parents=True)
    cdi.mkdir(parents=True)
    ours = [
        kubelet / "plugins/vcuda.baidu.com",
        kubelet / "plugins_registry/vcuda.baidu.com-reg.sock",
        cdi / "vcuda.baidu.com-limit_8a7ea7a4.9f12.json",
        cdi / "vcuda.baidu.com-share_8a7ea7a4.json",
    ]
    others = [kubelet / "plugins_registry/other-reg.sock", cdi / "nvidia.yaml"]
    for path in (*ours[1:], *others):
        path.touch()
    assert remove_host_files(lib) == [str(path) for path in ours]
    assert all(path.exists() for path in (*others, kubelet / "plugins/other"))


def test_a_link_goes_and_not_what_it_leads_to(tmp_path: Path) -> None:
    target = tmp_path / "data"
    target.mkdir()
    (target / "precious").touch()
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "vcuda").symlink_to(target)
    ran = CliRunner().invoke(host_clean, [str(lib)])
    assert (ran.exit_code, ran.output) == (0, f"removed {lib}/vcuda\n")
    assert not (lib / "vcuda").is_symlink()
    assert (target / "precious").exists()


def test_the_pod_sees_two_folders_and_no_account() -> None:
    spec = cleaning_pod("gpu-1", "gpushare:1")["spec"]
    assert spec["nodeName"] == "gpu-1"
    assert spec["automountServiceAccountToken"] is False
    folders = [one["hostPath"]["path"] for one in spec["volumes"]]
    (container,) = spec["containers"]
    mounts = [one["mountPath"] for one in container["volumeMounts"]]
    assert folders == ["/var/lib", "/var/run/cdi"]
    assert mounts == [f"/host{path}" for path in folders]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["command"] == ["gpusharectl", "host-clean", "/host/var/lib"]
    assert "imagePullSecrets" not in spec
    private = cleaning_pod("gpu-1", "gpushare:1", ["registry"])["spec"]
    assert private["imagePullSecrets"] == [{"name": "registry"}]


@pytest.fixture
def world(tmp_path: Path) -> InstalledCluster:
    return InstalledCluster(FakeObjects(), tmp_path).populate()


def run(world: InstalledCluster) -> dict[str, str]:
    found = clean_nodes(world.context(), ["cp", "gpu-1"], "gpushare:1")
    assert world.objects.list("v1", "Pod") == []
    return found


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_an_earlier_runs_pod_does_not_count(
    world: InstalledCluster, phase: str
) -> None:
    """Between it and this one somebody may have installed again."""
    old = cleaning_pod("gpu-1", "gpushare:0")
    world.objects.create({**old, "status": {"phase": phase}})
    assert run(world) == {}
    calls = world.objects.calls
    assert "create Pod kube-system/gpushare-clean-gpu-1" in calls


def test_a_pod_that_does_not_end_is_told_and_removed(world: InstalledCluster) -> None:
    world.nodes.step = lambda: None
    assert sorted(run(world)) == ["cp", "gpu-1"]


def test_a_failed_pod_says_its_last_words(world: InstalledCluster) -> None:
    create = world.objects.create
    ended = {"exitCode": 1, "message": "Read-only\n file system"}
    status = {
        "phase": "Failed",
        "containerStatuses": [{"state": {"terminated": ended}}],
    }
    world.objects.create = lambda body: create({**body, "status": status})
    assert run(world) == dict.fromkeys(("cp", "gpu-1"), "Read-only file system")
