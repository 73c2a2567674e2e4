"""Accelerators that NVIDIA's driver does not know, listed in a file."""

import os
import stat
from pathlib import Path

import yaml

from tests.cluster.manifests import THREE_OF_4_GIB, container, pod
from tests.cluster.seen import (
    ALLOCATION,
    allocation,
    fails_inside,
    inside,
    planned,
    variables,
)
from tests.cluster.site import Site
from tests.testbed.waiting import wait_until

UUID = "0f0e5d42-made-by-hand"


def accelerator(folder: Path) -> Path:
    """Make a device node; any character device will do: /dev/zero's likeness."""
    path = folder / "accel0"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    path.chmod(0o666)
    return path


def test_accelerator_of_another_vendor(site: Site, tmp_path: Path) -> None:
    """It is offered beside the driver's cards; its pod gets its node and variables."""
    gpus = site.gpus["cp"]
    gpus.set_cards(THREE_OF_4_GIB)
    node = accelerator(tmp_path)
    card = {
        "uuid": UUID,
        "memory_mib": 8192,
        "model": "Accelerator X",
        "nodes": [str(node)],
        "variables": {"ACCEL_VISIBLE": "0"},
    }
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(yaml.safe_dump({"cards": [card]}))
    with gpus.reconfigured(INVENTORY=str(inventory)):
        assert site.allocatable("cp") == (400, 3 * 16 + 32)
        wait_until(
            lambda: [one["uuid"] for one in site.cards("cp")][3:] == [UUID],
            "it in the node's annotation",
        )
        site.create(pod("ours", container("main", 20, 30)))
        site.wait_running("ours")
        ((part,),) = planned(site, site.get("pod", "ours")).values()
        assert part.card == UUID
        assert inside(site, "ours", "head", "-c", "3", str(node)) == "\0\0\0"
        env = variables(inside(site, "ours", "env"))
        assert (env["ACCEL_VISIBLE"], env["VCUDA_CARDS"]) == ("0", UUID)
        told = allocation(inside(site, "ours", "cat", ALLOCATION))
        assert told == {UUID: (30, 20, 5120)}
        assert "not found" in fails_inside(site, "ours", "nvidia-smi", "-L")
        site.clear()
    gpus.set_cards(THREE_OF_4_GIB)
    assert site.allocatable("cp") == (300, 3 * 16)
