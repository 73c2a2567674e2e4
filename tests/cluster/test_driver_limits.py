"""Tier driver where a node has cgroup v1, and what reaches a container where it passes.

The hook is NVIDIA's own, over the stub driver. It wants cgroup v2 at /sys/fs/cgroup, so
it runs in a mount namespace that has it there.
"""

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.allocation.cdi import HOOK, LIMIT, REQUEST
from tests.cluster.gpus import Gpus
from tests.cluster.manifests import container, pod
from tests.cluster.seen import card_of, refused_with
from tests.cluster.site import Site
from tests.machine import needs
from tests.nvml.build import SONAME, STATE_VARIABLE
from tests.nvml.driver import VERSION, cdi_spec, stub_card
from tests.testbed.binaries import (
    CDI_HOOK,
    NVIDIA_MODULE,
    cache_folder,
    ensure_binaries,
)
from tests.testbed.kubeadm.images import write_archive
from tests.testbed.kubeadm.imageset import BUSYBOX, base_image
from tests.testbed.rest import Json
from tests.testbed.toolchain import BinariesUnavailableError
from tests.testbed.waiting import wait_until

CARD = stub_card(0, model="NVIDIA A10", memory_mib=7611)
LIFTING = "local.test/lifting:1"
OCI = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json"


@pytest.fixture(scope="module")
def hook() -> Path:
    v2 = Path("/sys/fs/cgroup/unified/cgroup.procs")
    needs(v2.exists(), "cgroup v2 beside v1, where runc makes groups too", "mount it")
    try:
        found = ensure_binaries(cache_folder(os.environ), NVIDIA_MODULE, CDI_HOOK)
    except BinariesUnavailableError as error:
        needs(condition=False, what="nvidia-cdi-hook", cure=str(error))
        raise
    return Path(found.path("nvidia-cdi-hook"))


@contextmanager
def hooked(gpus: Gpus, program: Path) -> Iterator[None]:
    """Let the node have a driver with limits, and its hook in the specification."""
    gpus.driver.set_version("615.38.02")
    root = gpus.folder / "driver-root"
    (root / "usr/lib64").mkdir(parents=True, exist_ok=True)
    shutil.copy(gpus.stub.library, root / "usr/lib64" / SONAME)
    wrapper = gpus.folder / "hook"
    inside = 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
    state = f"{STATE_VARIABLE}={shlex.quote(str(gpus.driver.path))}"
    wrapper.write_text(
        "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n"
        f"exec env {state} unshare -m sh -c '{inside}' sh {program} \"$@\"\n"
    )
    wrapper.chmod(0o755)
    spec = cdi_spec(gpus.stub, gpus.driver.path, [CARD], gpus.folder / "markers")
    for device in spec["devices"]:
        arguments = ["--driver-root", str(root), "--gpu-id", CARD.uuid]
        args = ["nvidia-cdi-hook", HOOK, *arguments]
        one = {"hookName": "createRuntime", "path": str(wrapper), "args": args}
        device["containerEdits"]["hooks"] = [one]
    gpus.node.write_cdi(spec)
    try:
        yield
    finally:
        gpus.driver.set_version(VERSION)
        gpus.specify()


@contextmanager
def tier(gpus: Gpus, name: str, **settings: str) -> Iterator[None]:
    """Run the device plugin with a tier, whether it offers cards then or not."""
    before = gpus.settings
    gpus.stop_offering()
    gpus.settings = {**before, "ISOLATION": name, **settings}
    gpus.start(wait=False)
    try:
        yield
    finally:
        gpus.stop()
        gpus.settings = before


def test_cgroup_v1(site: Site, hook: Path) -> None:
    """By name nothing is offered there, with the reason; ``auto`` takes no tier."""
    gpus = site.gpus["cp"]
    gpus.set_cards([CARD])
    with hooked(gpus, hook):
        with tier(gpus, "driver"):
            [found] = wait_until(
                lambda: site.cards("cp"),
                "the card to be held back",
                accept=lambda cards: not any(one["healthy"] for one in cards),
            )
            assert "the node has cgroup v1" in found["reason"]
            assert "isolation tier driver: the node has cgroup v1" in gpus.log
            site.create(pod("waits", container("main", 4, 1)))
            refused_with(site, "waits", "Insufficient baidu.com/vcuda")
            assert site.allocatable("cp") == (0, 0)
            site.clear()
        with tier(gpus, "auto"):
            gpus.wait_offered()
            assert "tier=none" in gpus.log
            site.create(pod("free", container("main", 4, 1)))
            site.wait_running("free")
            assert limits(config(site, "free")) == []
            site.clear()


@pytest.fixture
def limited(site: Site, hook: Path) -> Iterator[Gpus]:
    """A node with tier driver, and one card.

    A group is that of version 2 in which runc puts a container beside version 1. Only
    the plugin's check is told that the node has version 2.
    """
    gpus = site.gpus["cp"]
    gpus.set_cards([CARD])
    v2 = gpus.folder / "root/sys/fs/cgroup"
    v2.mkdir(parents=True, exist_ok=True)
    (v2 / "cgroup.controllers").touch()
    root = str(gpus.folder / "root")
    with hooked(gpus, hook), tier(gpus, "driver", HOST_ROOT=root):
        gpus.wait_offered()
        yield gpus
        site.clear()


def test_what_a_container_gets(site: Site, limited: Gpus) -> None:
    """Its configuration has variables and hook, and the driver its group's limit."""
    site.create(
        pod("held", container("main", 4, 1)),
        pod("plain", container("main")),
    )
    site.wait_running("held", "plain")
    assert card_of(site, "held") == CARD.uuid
    its, others = config(site, "held"), config(site, "plain")
    assert limits(its) == [f"{LIMIT}=1024", f"{REQUEST}=0"]
    hooks = its["hooks"]["createRuntime"]
    assert [HOOK in hook["args"] for hook in hooks] == [True, True]
    assert limits(others) == []
    assert not others.get("hooks")
    assert limited.driver.limits() == {(CARD.uuid, group(its)): (0, 1024)}


def test_a_pod_cannot_lift_its_limit(site: Site, limited: Gpus, tmp_path: Path) -> None:
    """Neither by a variable of its image, which NVIDIA's hook finds first, nor its own.

    Nobody denies them here, as with ``envFrom`` without the webhook.
    """
    image = base_image(BUSYBOX, (LIFTING,))
    write_archive(
        replace(image, env=(f"{LIMIT}=6000", f"{REQUEST}=6000")),
        tmp_path / "lifting.tar",
    )
    limited.node.import_images([tmp_path / "lifting.tar"])
    more = {"kind": "ConfigMap", "metadata": {"name": "more"}, "apiVersion": "v1"}
    source = [{"configMapRef": {"name": "more"}}]
    site.create(
        more | {"data": {LIMIT: "7000", REQUEST: "7000"}},
        pod("lifts", container("main", 4, 1, image=LIFTING, envFrom=source)),
    )
    site.wait_running("lifts")
    its = config(site, "lifts")
    site.kubectl("delete", "configmap", "more")
    assert limited.driver.limits()[CARD.uuid, group(its)] == (0, 1024)


def group(config: Json) -> str:
    """A container's control group, as the driver is told of it."""
    return f"/sys/fs/cgroup{config['linux']['cgroupsPath']}"


def container_id(site: Site, name: str) -> str:
    (status,) = site.get("pod", name)["status"]["containerStatuses"]
    return str(status["containerID"]).rpartition("/")[2]


def config(site: Site, name: str) -> Json:
    """A container's OCI configuration, as the runtime has it on the node."""
    path = OCI.format(container_id(site, name))
    found: Json = json.loads(site.gpus["cp"].node.must("cat", path))
    return found


def limits(config: Json) -> list[str]:
    """What NVIDIA's hook reads; it must not find a variable twice."""
    env: list[str] = config["process"]["env"]
    return sorted(var for var in env if var.partition("=")[0] in (REQUEST, LIMIT))
