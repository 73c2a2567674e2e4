"""How cards get into containers, and which containers can see cards they do not have.

What the nvidia RuntimeClass shows to whoever asks is asserted here too, so that the
documents cannot promise more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.gpus import Gpus
from tests.cluster.manifests import THREE_OF_4_GIB, container, pod
from tests.cluster.seen import card_of, fails_inside, inside, planned, variables
from tests.cluster.site import Site
from tests.nvml.driver import INSIDE
from tests.testbed.rest import Json

ALL = [card.uuid for card in THREE_OF_4_GIB]
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NVIDIA: dict[str, Any] = {"runtimeClassName": "nvidia"}


def by_hand(name: str, wish: str, units: int | None = None, **spec: Any) -> Json:
    """Make a pod whose author sets the variable that the nvidia runtime goes by."""
    cores = None if units is None else 1
    env = [{"name": VISIBLE, "value": wish}]
    return pod(name, container("main", units, cores, env=env), **spec)


def test_default_runtime(site: Site) -> None:
    """By CDI a pod needs no RuntimeClass; who asks for no card sees none, say it all.

    Nor is there a driver's program in such a container.
    """
    site.gpus["cp"].set_cards(THREE_OF_4_GIB)
    assert "by=cdi" in site.gpus["cp"].log
    others = [pod("plain", container()), by_hand("all", "all"), by_hand("one", ALL[0])]
    site.create(pod("served", container("main", 4, 1)), *others)
    site.wait_running("served", *(each["metadata"]["name"] for each in others))
    assert card_of(site, "served") == ALL[0]
    for each in others:
        words = fails_inside(site, each["metadata"]["name"], "nvidia-smi", "-L")
        assert "not found" in words


def test_nvidia_runtime(site: Site) -> None:
    """The nvidia RuntimeClass gives whoever sets the variable what it names.

    A pod that we serve and that leaves the variable alone sees its own card.
    """
    site.gpus["cp"].set_cards(THREE_OF_4_GIB)
    wishes = {
        "all": (by_hand("all", "all", **NVIDIA), ALL),
        "one": (by_hand("one", ALL[2], **NVIDIA), ALL[2:]),
        "served": (pod("served", container("main", 4, 1), **NVIDIA), ALL[:1]),
        "served-all": (by_hand("served-all", "all", 4, **NVIDIA), ALL),
    }
    site.create(*(each for each, _ in wishes.values()), pod("plain", container()))
    site.wait_running(*wishes)
    assert {name: site.visible(name) for name in wishes} == {
        name: sees for name, (_, sees) in wishes.items()
    }


def test_mode_env(site: Site) -> None:
    """By the variable a pod sees its card under the nvidia runtime, and only there."""
    gpus = site.gpus["cp"]
    gpus.set_cards(THREE_OF_4_GIB)
    with gpus.reconfigured(INJECT="env"):
        site.create(
            pod("served", container("main", 4, 1), **NVIDIA),
            pod("elsewhere", container("main", 14, 1)),
        )
        site.wait_running("served", "elsewhere")
        card = card_of(site, "served")
        assert variables(inside(site, "served", "env"))[VISIBLE] == card
        assert "not found" in fails_inside(site, "elsewhere", "nvidia-smi", "-L")
        site.clear()


def test_mode_nodes(site: Site) -> None:
    """By device nodes a pod has its own card's beside those that all cards share.

    An image brings the driver's programs itself: here they are mounted from the host.
    A node that the host lacks is left out: no container would start with it.
    """
    gpus = site.gpus["cp"]
    gpus.set_cards(THREE_OF_4_GIB)
    seen = {"INJECT": "nodes", "HOST_ROOT": "/proc/self/root"}
    with nodes_of_cards(gpus), gpus.reconfigured(**seen):
        site.create(
            with_programs(gpus, "first", 12),
            with_programs(gpus, "second", 12),
            with_programs(gpus, "none", None),
        )
        site.wait_running("first", "second", "none")
        cards = {card_of(site, "first"), card_of(site, "second")}
        assert cards == set(ALL[:2])
        for name in ("first", "second"):
            number = ALL.index(planned(site, site.get("pod", name))["main"][0].card)
            found = inside(site, name, "sh", "-c", "ls -d /dev/nvidia*").split()
            shared = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]
            assert sorted(found) == sorted([f"/dev/nvidia{number}", *shared])
        words = fails_inside(site, "none", "nvidia-smi", "-L")
        assert "No devices were found" in words
        gpus.node.must("rm", "/dev/nvidia-uvm-tools")
        site.create(with_programs(gpus, "later", 4))
        site.wait_running("later")
        assert "uvm-tools" not in inside(site, "later", "sh", "-c", "ls /dev")
        site.clear()


def with_programs(gpus: Gpus, name: str, units: int | None) -> Json:
    paths = {
        "smi": (gpus.stub.smi, "/usr/bin/nvidia-smi"),
        "state": (gpus.driver.path.parent, f"{INSIDE}/state"),
    }
    mounts = [{"name": n, "mountPath": at} for n, (_, at) in paths.items()]
    volumes = [{"name": n, "hostPath": {"path": str(p)}} for n, (p, _) in paths.items()]
    cores = None if units is None else 1
    one = container("main", units, cores, volumeMounts=mounts)
    return pod(name, one, volumes=volumes)


@contextmanager
def nodes_of_cards(gpus: Gpus) -> Iterator[None]:
    """Let the node, and no other part of this machine, have its cards' device nodes.

    They are likenesses of /dev/null, in a layer over the node's own view of /dev.
    """
    names = [f"nvidia{card.minor}" for card in gpus.driver.cards]
    names += ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    layers = [gpus.folder / "dev", gpus.folder / "dev.work"]
    for each in layers:
        each.mkdir()
    options = "lowerdir=/dev,upperdir={},workdir={}".format(*layers)
    gpus.node.must("mount", "-t", "overlay", "overlay", "-o", options, "/dev")
    try:
        for name in names:
            gpus.node.must("mknod", "-m", "666", f"/dev/{name}", "c", "1", "3")
        yield
    finally:
        gpus.node.must("umount", "--lazy", "/dev")
