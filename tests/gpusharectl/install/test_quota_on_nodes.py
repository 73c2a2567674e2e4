"""What a quota counts on nodes: ours if our device plugin offers it, else another's."""

from pathlib import Path

from gpushare.kube import names
from gpushare.kube.objects import Ref
from gpusharectl.install.cluster_facts import node_view
from gpusharectl.install.progress import Exit
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.installed_cluster import InstalledCluster
from tests.gpusharectl.install.stand_ins import node

GPU_1 = Ref("v1", "Node", "gpu-1")


def offering(world: InstalledCluster, amount: str) -> None:
    amounts = {names.BITFUSION_GPU: amount}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    world.objects.merge(GPU_1, status, subresource="status")


def capacity(world: InstalledCluster) -> dict[str, str]:
    found: dict[str, str] = (world.objects.get(GPU_1) or {})["status"]["capacity"]
    return found


def test_it_is_no_other_tools_card() -> None:
    body = node("gpu-1", "10.0.0.2")
    body["status"]["allocatable"][names.BITFUSION_GPU] = "200"
    body["status"]["allocatable"]["nvidia.com/gpu"] = "2"
    assert node_view(body).others == ("nvidia.com/gpu",)
    assert node_view(body).offered == ()


def test_its_zero_is_taken_out_with_ours(tmp_path: Path) -> None:
    world = InstalledCluster(FakeObjects(), tmp_path).populate()
    assert world.install() == Exit.DONE
    offering(world, "0")
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert names.BITFUSION_GPU not in capacity(world)
    assert names.MEMORY not in capacity(world)


def test_what_another_offers_is_left_to_it(tmp_path: Path) -> None:
    """Bitfusion's own device plugin says 1000 on every node."""
    world = InstalledCluster(FakeObjects(), tmp_path).populate()
    offering(world, "1000")
    assert world.install() == Exit.DONE, world.screen.text
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert capacity(world)[names.BITFUSION_GPU] == "1000"
    assert names.MEMORY not in capacity(world)
