"""How this node lets containers at cards: what is chosen, and the words for it."""

import json
import logging
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from hypothesis import given as for_all
from hypothesis import strategies as st

from deviceplugin.allocation.injection import (
    InjectionChooser,
    container_setup,
    why_unusable,
)
from deviceplugin.settings import INJECTIONS, Injection, InjectionChoice
from gpushare.cards.source import FoundCard, MigInstance
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from gpushare.kube.cluster import Json
from tests.deviceplugin.node_fixture import UUIDS, found_card

ONE, TWO = CardUUID("GPU-1"), CardUUID("GPU-2")
NVIDIA = [{"name": ""}, {"name": "runc"}, {"name": "nvidia"}]
PLAIN = [{"name": ""}, {"name": "runc"}]


def status(
    kubelet: str = "v1.33.1",
    runtime: str = "containerd://2.1.4",
    handlers: list[Json] | None = None,
) -> Json:
    info = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    found: Json = {"nodeInfo": info}
    return found if handlers is None else found | {"runtimeHandlers": handlers}


def spec_of(*names: str, kind: str = "nvidia.com/gpu") -> Json:
    devices = [{"name": name, "containerEdits": {}} for name in names]
    return {"cdiVersion": "0.6.0", "kind": kind, "devices": devices}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nvidia.json").write_text(json.dumps(spec_of(ONE, TWO, "all")))
    return tmp_path


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (line.by, line.because)  # type: ignore[attr-defined]
        for line in caplog.records
        if line.message == "injecting cards"
    ]


@pytest.mark.parametrize(
    ("choice", "runtime", "unread"),
    [
        ("auto", "containerd://2.1.4", False),
        ("env", "containerd://2.1.4", False),
        ("env", "containerd://1.7.27", True),
        ("auto", "docker://28.0", True),
        ("cdi", "containerd://1.7.27", False),
        # It is away just now.
        ("auto", "containerd://Unknown", False),
    ],
)
def test_whether_specifications_are_read(
    folder: Path, choice: InjectionChoice, runtime: str, *, unread: bool
) -> None:
    """What a claim has comes by CDI, also where cards come in another way."""
    node = status(runtime=runtime)
    why = InjectionChooser(choice, [folder], lambda: node).why_unread()
    assert bool(why) == unread


@pytest.mark.parametrize(
    ("node", "chosen", "why"),
    [
        (status("v1.31.0-rc.1+k3s1"), "cdi", "support it"),
        (status("v2.0.0"), "cdi", "support it"),
        (status(runtime="cri-o://1.29.1"), "cdi", "support it"),
        (status("v1.30.9"), "env", "kubelet is v1.30.9, CDI needs 1.31"),
        (status("odd"), "env", "kubelet is odd"),
        ({}, "env", "kubelet is of unknown version"),
        (status(runtime="containerd://1.7.27"), "env", "set GPUSHARE_INJECT=cdi"),
        (status(runtime="docker://28.0"), "env", "the runtime docker 28.0"),
        (status(runtime=""), "env", "the runtime unknown"),
        (status("v1.30.9", handlers=[{"name": "nvidia-cdi"}]), "env", "not CDI"),
        (status("v1.30.9", handlers=PLAIN), "nodes", "no runtime handler is NVIDIA's"),
        (status("v1.30.9", handlers=[]), "nodes", "no runtime handler is NVIDIA's"),
        (status(handlers=PLAIN), "cdi", "support it"),
    ],
)
def test_auto(
    node: Json, chosen: str, why: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    chooser = InjectionChooser("auto", [folder], lambda: node)
    for _ in range(2):
        chooser.choose_for([ONE, TWO])
    assert (chooser.chosen, chooser.held_back) == (chosen, {})
    [(by, because)] = said(caplog)
    assert by == chosen
    assert why in because


def test_what_was_chosen_holds_while_the_node_is_not_told_of(
    folder: Path, tmp_path: Path
) -> None:
    told: dict[str, Json] = {"now": status()}

    def chooser() -> InjectionChooser:
        return InjectionChooser(
            "auto", [folder], lambda: told["now"], tmp_path / "inject"
        )

    chooser().choose_for([ONE])
    again = chooser()
    # kubelet calls the version of a runtime that does not answer Unknown.
    for told["now"] in ({}, status(runtime="containerd://Unknown")):
        for _ in range(4):
            again.choose_for([ONE])
        assert again.chosen == "cdi"
    told["now"] = status("v1.30.9", handlers=PLAIN)
    for _ in range(3):
        again.choose_for([ONE])
    assert again.chosen == "nodes"
    told["now"] = {}
    assert chooser().chosen == "nodes"


@pytest.mark.parametrize(
    ("runtime", "chosen"),
    [
        ("containerd://2.1.4", ["cdi", "cdi", "env"]),
        ("containerd://1.7.27", ["env", "env", "env"]),
    ],
)
def test_a_specification_that_is_not_yet_there_after_a_reboot(
    runtime: str, chosen: list[str], folder: Path, tmp_path: Path
) -> None:
    """``/var/run/cdi`` is empty then; another runtime is another matter."""
    file = tmp_path / "inject"
    InjectionChooser("auto", [folder], status, file).choose_for([ONE])
    (folder / "nvidia.json").unlink()
    again = InjectionChooser("auto", [folder], lambda: status(runtime=runtime), file)
    seen = []
    for _ in chosen:
        again.choose_for([ONE])
        seen.append(again.chosen)
    assert seen == chosen


def test_a_card_without_a_specification_is_held_back(folder: Path) -> None:
    new = CardUUID("GPU-3")
    chooser = InjectionChooser("auto", [folder, folder / "none"], status)
    chooser.choose_for([ONE, new])
    assert chooser.chosen == "cdi"
    assert list(chooser.held_back) == [new]
    assert "has nvidia.com/gpu=GPU-3" in chooser.held_back[new]
    (folder / "more.yaml").write_text(yaml.safe_dump(spec_of(new)))
    chooser.choose_for([ONE, new])
    assert chooser.held_back == {}


def test_an_instance_that_is_newer_than_the_specification(folder: Path) -> None:
    """It is in it by its own UUID, not by its place, which another one may get."""
    instance = CardUUID("MIG-7cf0b881")
    (folder / "mig.json").write_text(json.dumps(spec_of("1:0")))
    chooser = InjectionChooser("auto", [folder], status)
    chooser.choose_for([ONE, instance])
    assert (chooser.chosen, list(chooser.held_back)) == ("cdi", [instance])
    (folder / "mig.json").write_text(json.dumps(spec_of("1:0", instance)))
    chooser.choose_for([ONE, instance])
    assert chooser.held_back == {}


def test_a_card_that_drops_out_is_held_back_at_the_third_look(folder: Path) -> None:
    """Somebody may be writing the specification anew."""
    chooser = InjectionChooser("auto", [folder], status)
    chooser.choose_for([ONE, TWO])
    (folder / "nvidia.json").write_text(json.dumps(spec_of(ONE)))
    held = []
    for _ in range(3):
        chooser.choose_for([ONE, TWO])
        held.append(list(chooser.held_back))
    assert held == [[], [], [TWO]]
    assert chooser.chosen == "cdi"


@pytest.mark.parametrize("common", [True, False])
def test_a_specification_whose_files_are_gone(folder: Path, *, common: bool) -> None:
    """Containers would not start; a link of the host leads to a file of the host."""
    root = folder / "host"
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib").symlink_to("/usr/lib")
    (root / "usr/lib/libcuda.so.550").touch()
    body = spec_of(ONE, TWO)
    library = {"hostPath": "/lib/libcuda.so.550", "containerPath": "/lib/libcuda.so"}
    for part in [body] if common else body["devices"]:
        part["containerEdits"] = {"mounts": [library]}
    (folder / "nvidia.json").write_text(json.dumps(body))
    chooser = InjectionChooser("auto", [folder], status, root=root)
    chooser.choose_for([ONE, TWO])
    assert (chooser.chosen, chooser.held_back) == ("cdi", {})
    assert "cannot be seen" not in chooser.because
    (root / "usr/lib/libcuda.so.550").unlink()
    for _ in range(3):
        chooser.choose_for([ONE, TWO])
    assert chooser.chosen == "env"
    assert chooser.because.endswith("names /lib/libcuda.so.550, which does not exist")


def test_files_that_cannot_be_seen_are_said_to_be_unknown(folder: Path) -> None:
    """The plugin's own files are below ``/``, not the host's."""
    body = spec_of(ONE)
    body["containerEdits"] = {"mounts": [{"hostPath": "/nowhere/libcuda.so.550"}]}
    (folder / "nvidia.json").write_text(json.dumps(body))
    # Nor where only a part of the host is mounted.
    (folder / "part/proc").mkdir(parents=True)
    for root in (Path("/"), folder / "part"):
        chooser = InjectionChooser("auto", [folder], status, root=root)
        chooser.choose_for([ONE])
        assert chooser.chosen == "cdi"
        assert "whether the files that it names exist cannot be seen" in chooser.because


@pytest.mark.parametrize("choice", ["cdi", "env", "nodes"])
def test_a_choice_of_the_operators_stands(
    choice: InjectionChoice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    chooser = InjectionChooser(choice, [tmp_path], dict)
    chooser.choose_for([ONE])
    assert chooser.chosen == choice
    assert chooser.held_back == {}
    [(_, because)] = said(caplog)
    assert because.startswith("the settings say so")
    assert ("but no CDI specification" in because) is (choice == "cdi")


def test_cudas_nodes_are_looked_for_at_each_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver makes them when CUDA is first used, and an update removes them."""
    tools, uvm = "/dev/nvidia-uvm-tools", "/dev/nvidia-uvm"
    chooser = InjectionChooser("nodes", [], status, root=tmp_path)
    chooser.choose_for([ONE])
    # The host's /dev cannot be seen, so nothing is known to be missing.
    assert chooser.missing_nodes() == set()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    for _ in range(2):
        assert chooser.missing_nodes() == {uvm, tools}
    (tmp_path / "dev/nvidia-uvm").symlink_to("/dev/uvm")
    (tmp_path / "dev/uvm").touch()
    assert chooser.missing_nodes() == {tools}
    (tmp_path / "dev/uvm").unlink()
    assert chooser.missing_nodes() == {uvm, tools}
    told = [line for line in caplog.records if line.message == "device nodes left out"]
    assert [line.nodes for line in told] == [f"{uvm},{tools}"] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("choice", "root"), [("cdi", "below"), ("env", "below"), ("nodes", "/")]
)
def test_nodes_of_another_dev_say_nothing(
    choice: InjectionChoice, root: str, tmp_path: Path
) -> None:
    """Below ``/`` is the plugin's own ``/dev``, which may have fewer than the host."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    below = tmp_path if root == "below" else Path(root)
    chooser = InjectionChooser(choice, [], status, root=below)
    chooser.choose_for([ONE])
    assert chooser.missing_nodes() == set()


M, C = names.MEMORY, names.CORE
CARDS = [found_card(0), found_card(1)]
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
    found = container_setup(M, 4, CARDS, injection, "/state/x")
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
    found = container_setup(M, 4, CARDS[:1], "nodes", "/x", missing)
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
    wrong = why_unusable([*CARDS, OTHER, unknown], injection)
    assert wrong.startswith("the driver does not report the minor number of card") is (
        injection == "nodes"
    )
    assert not why_unusable([*CARDS, OTHER], injection)


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
    list(some) for count in range(4) for some in combinations([*CARDS, OTHER], count)
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
