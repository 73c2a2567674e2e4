"""What a container gets."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from deviceplugin.allocation.response import (
    INJECTIONS,
    Injection,
    container_setup,
    why_unusable,
)
from gpushare.cards.source import FoundCard, MigInstance
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from tests.deviceplugin.node_fixture import UUIDS, found_card

M, C = names.MEMORY, names.CORE
NVIDIA = [found_card(0), found_card(1)]
OTHER = FoundCard(
    CardUUID("npu-0"),
    7,
    4096,
    device_nodes=("/dev/npu0", "/dev/npu_ctl"),
    variables={"NPU": "0"},
    known_to_driver=False,
)
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("injection", "visible", "nodes", "cdi"),
    [
        ("env", ",".join(UUIDS[:2]), (), ()),
        ("cdi", "void", (), tuple(f"nvidia.com/gpu={u}" for u in UUIDS[:2])),
        (
            "nodes",
            "void",
            (
                "/dev/nvidia0",
                "/dev/nvidia1",
                "/dev/nvidiactl",
                "/dev/nvidia-uvm",
                "/dev/nvidia-uvm-tools",
            ),
            (),
        ),
    ],
)
def test_nvidias_cards(
    injection: Injection, visible: str, nodes: tuple[str, ...], cdi: tuple[str, ...]
) -> None:
    found = container_setup(M, 4, NVIDIA, injection, "/state/x")
    assert found.envs == {
        "VCUDA_CARDS": ",".join(UUIDS[:2]),
        "VCUDA_MEMORY_LIMIT_MIB": "1024",
        VISIBLE: visible,
    }
    assert tuple(node.host_path for node in found.devices) == nodes
    assert tuple(device.name for device in found.cdi_devices) == cdi
    [mount] = found.mounts
    assert (mount.container_path, mount.host_path) == ("/etc/vcuda", "/state/x")
    assert mount.read_only


def test_nodes_that_the_host_lacks_are_left_out() -> None:
    """No container starts with one; the card's own are never left out."""
    missing = {"/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"}
    found = container_setup(M, 4, NVIDIA[:1], "nodes", "/x", missing)
    nodes = [node.host_path for node in found.devices]
    assert nodes == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm-tools"]


@pytest.mark.parametrize("injection", INJECTIONS)
def test_a_card_of_the_inventory(injection: Injection) -> None:
    found = container_setup(C, 4, [OTHER], injection, "/x")
    assert tuple(node.container_path for node in found.devices) == OTHER.device_nodes
    assert not found.cdi_devices
    assert found.envs[VISIBLE] == "void"
    assert found.envs["NPU"] == "0"
    assert found.envs["VCUDA_CARDS"] == "npu-0"
    assert found.envs["VCUDA_CORES"] == "4"


def test_a_simulated_card_has_no_nodes() -> None:
    card = FoundCard(UUIDS[0], 0, 4096, simulated=True)
    assert container_setup(M, 1, [card], "nodes", "/x").devices == []
    assert not why_unusable([card], "nodes")


@pytest.mark.parametrize("injection", INJECTIONS)
def test_a_card_of_unknown_minor_number(injection: Injection) -> None:
    """Its node is not known, so nothing could let the container at it."""
    unknown = FoundCard(UUIDS[0], 0, 4096)
    wrong = why_unusable([*NVIDIA, OTHER, unknown], injection)
    assert wrong.startswith("the driver does not report the minor number of card") is (
        injection == "nodes"
    )
    assert not why_unusable([*NVIDIA, OTHER], injection)


MIG = replace(
    found_card(1),
    uuid=CardUUID("MIG-7cf0b881"),
    device_nodes=("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"),
    instance=MigInstance(UUIDS[1], 1, 0, "2g.10gb"),
)


def test_a_mig_instance() -> None:
    """By its own UUID, or by its card's node and those of both its instances."""
    by = {way: container_setup(M, 4, [MIG], way, "/x") for way in INJECTIONS}
    assert by["env"].envs[VISIBLE] == MIG.uuid
    assert [cdi.name for cdi in by["cdi"].cdi_devices] == [f"nvidia.com/gpu={MIG.uuid}"]
    nodes = [node.host_path for node in by["nodes"].devices]
    assert nodes[:3] == ["/dev/nvidia1", *MIG.device_nodes]
    assert not by["cdi"].devices
    assert not by["env"].devices


def test_instances_of_one_card_have_its_node_once() -> None:
    other = replace(MIG, uuid=CardUUID("MIG-2"), device_nodes=("/dev/a", "/dev/b"))
    found = container_setup(C, 200, [MIG, other], "nodes", "/x")
    nodes = [node.host_path for node in found.devices]
    assert len(nodes) == len(set(nodes)) == 8


@pytest.mark.parametrize("injection", INJECTIONS)
def test_an_instance_of_unknown_nodes(injection: Injection) -> None:
    assert not why_unusable([MIG], injection)
    wrong = why_unusable([MIG, replace(MIG, device_nodes=())], injection)
    assert ("does not have instance MIG-7cf0b881" in wrong) is (injection == "nodes")


def test_no_card_is_none() -> None:
    found = container_setup(M, 1, [], "env", "/x")
    assert found.envs[VISIBLE] == "void"
    assert found.envs["VCUDA_CARDS"] == ""


SETS = [
    list(some) for count in range(4) for some in combinations([*NVIDIA, OTHER], count)
]


@for_all(
    st.sampled_from(SETS),
    st.sampled_from(INJECTIONS),
    st.integers(1, 200),
    st.integers(1, 560),
)
def test_both_answers_agree(
    cards: list[FoundCard], injection: Injection, cores: int, units: int
) -> None:
    """kubelet takes either value of a key that both have; none may be lost or differ.

    The folder alone differs by design: each has the same file.
    """
    first = container_setup(C, cores, cards, injection, "/x")
    second = container_setup(M, units, cards, injection, "/x")
    for key in first.envs.keys() & second.envs.keys():
        assert first.envs[key] == second.envs[key]
    assert first.devices == second.devices
    assert first.cdi_devices == second.cdi_devices
    assert first.mounts == second.mounts
