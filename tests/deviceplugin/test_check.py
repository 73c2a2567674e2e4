"""``python -m deviceplugin check``: what a node has of what the device plugin needs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.check import loaded_module, report_node
from deviceplugin.settings import DevicePluginSettings
from gpushare.cards.simulated import SimulatedCards
from gpushare.cards.source import (
    FoundCard,
    FoundCards,
    LeftOut,
    MigInstance,
    NoCardsYet,
)
from gpushare.domain.model import CardUUID
from gpushare.kube.cluster import Json
from tests.deviceplugin.node_fixture import ScriptedCards
from tests.gpushare.cards.nvml_fixture import P4, TITAN, pair

SETTINGS = DevicePluginSettings.read({"GPUSHARE_NODE_NAME": "n"})[0]
CDI: Json = {
    "nodeInfo": {
        "kubeletVersion": "v1.36.3",
        "containerRuntimeVersion": "containerd://2.1.4",
    },
    "runtimeHandlers": [{"name": "runc"}],
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("sys/module/nvidia/version", "550.54.15\n", "550.54.15"),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27\n",
            "470.82.01",
        ),
        ("proc/driver/nvidia/version", "NVRM version: of a kind to come\n", ""),
        ("proc/driver/other/version", "1.2\n", None),
    ],
)
def test_the_driver_in_the_kernel(
    tmp_path: Path, file: str, text: str, version: str | None
) -> None:
    """Seen without its library, which only NVIDIA's runtime gives to a container."""
    write(tmp_path / file, text)
    assert loaded_module(tmp_path) == version


def test_the_cards_and_the_way_into_a_container(tmp_path: Path) -> None:
    """A card that the CDI specification does not have is told with the reason."""
    devices = [{"name": P4.uuid, "containerEdits": {}}]
    body = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    write(tmp_path / "cdi/nvidia.json", json.dumps(body))
    settings = replace(SETTINGS, cdi_dirs=(tmp_path / "cdi",), host_root=tmp_path)
    with pair(tmp_path, P4, TITAN) as (_, source):
        found = report_node(settings, [source], CDI)
    assert found["driver"]
    assert [card["units"] for card in found["cards"]] == [29, 94]
    assert [card["model"] for card in found["cards"]] == ["Tesla P4", "TITAN RTX"]
    (held,) = found["injection"]["held"]
    assert found["injection"]["by"] == "cdi"
    assert TITAN.uuid in held


def test_files_that_a_specification_names_are_looked_for(tmp_path: Path) -> None:
    """Where the host's files are, which the device plugin's pod does not see."""
    mounts = [{"hostPath": "/usr/lib/libcuda.so.550", "containerPath": "/a"}]
    devices = [{"name": P4.uuid, "containerEdits": {"mounts": mounts}}]
    body = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    write(tmp_path / "cdi/nvidia.json", json.dumps(body))
    library = tmp_path / "usr/lib/libcuda.so.550"
    write(library, "")
    settings = replace(SETTINGS, cdi_dirs=(tmp_path / "cdi",), host_root=tmp_path)
    with pair(tmp_path, P4) as (_, source):
        assert report_node(settings, [source], CDI)["injection"]["by"] == "cdi"
        library.unlink()
        found = report_node(settings, [source], CDI)["injection"]
    assert found["by"] != "cdi"
    assert "names /usr/lib/libcuda.so.550, which does not exist" in found["because"]


def test_cards_whose_devices_would_have_the_same_names(tmp_path: Path) -> None:
    """``serve`` ends because of them and offers none, so none is listed here."""
    twins = [f"GPU-11111111-0000-0000-0000-00000000000{number}" for number in (1, 2)]
    cards = ScriptedCards(
        *(FoundCard(CardUUID(uuid), at, 1024) for at, uuid in enumerate(twins))
    )
    found = report_node(replace(SETTINGS, host_root=tmp_path), [cards], CDI)
    assert found["cards"] == []
    [because] = found["left_out"]
    assert all(uuid in because for uuid in twins)
    assert "would have the same device ids" in because


@pytest.mark.parametrize(
    ("parents", "each", "says"),
    [
        (65, 1, ["the node has 65 cards; a node may share 64"]),
        (1, 8, ["the node has 8 instances of GPU-0; a card has 7"]),
        (64, 1, []),
        (1, 7, []),
    ],
)
def test_more_cards_than_a_node_may_share(
    tmp_path: Path, parents: int, each: int, says: list[str]
) -> None:
    """``serve`` publishes none of them then, so none is listed here."""
    count = parents * each
    cards = [
        FoundCard(
            CardUUID(f"MIG-{at:08x}"),
            at,
            1024,
            instance=MigInstance(CardUUID(f"GPU-{at // each}"), at % each, 0, "1g.5gb"),
        )
        for at in range(count)
    ]
    # It is too small to be offered, so it does not count.
    small = FoundCard(CardUUID(f"MIG-{count:08x}"), count, 100)
    found = report_node(
        replace(SETTINGS, host_root=tmp_path), [ScriptedCards(*cards, small)], CDI
    )
    listed = sum(card["count"] for card in found["cards"])
    assert listed == (0 if says else count + 1)
    assert len(found["left_out"]) == len(says)
    for text, because in zip(says, found["left_out"], strict=True):
        assert because.startswith(text)


def test_the_answer_of_the_largest_node_fits(tmp_path: Path) -> None:
    """kubelet keeps 4096 bytes: of equal cards the number, of reasons the first."""
    model = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition MIG 1g.24gb+gfx"
    cards = [
        FoundCard(
            CardUUID(f"MIG-{at:08x}-1c1c-5f5f-9a9a-1234567890ab"),
            at,
            24 * 1024,
            model=model,
            instance=MigInstance(CardUUID(f"GPU-{at // 7}"), at % 7, 0),
        )
        for at in range(448)
    ]
    left_out = tuple(LeftOut(f"instance {at} of GPU-0", "x " * 500) for at in range(9))
    source = ScriptedCards(*cards)
    source.found = FoundCards(tuple(cards), left_out)
    lacking = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu"}
    lacking["devices"] = [{"name": cards[0].uuid}]
    write(tmp_path / "cdi/nvidia.json", json.dumps(lacking))
    settings = replace(SETTINGS, cdi_dirs=(tmp_path / "cdi",), host_root=tmp_path)
    found = report_node(settings, [source], CDI)
    assert len(json.dumps(found).encode()) <= 4096
    assert [card["count"] for card in found["cards"]] == [448]
    assert found["left_out"][-1] == "and 5 more"
    assert found["injection"]["held"][-1] == "and 443 more"


class NoDriver(SimulatedCards):
    """A source that has nothing to ask."""

    def cards(self) -> FoundCards:
        raise NoCardsYet("there is no libnvidia-ml.so.1 here")


def test_a_node_without_a_driver(tmp_path: Path) -> None:
    found = report_node(replace(SETTINGS, host_root=tmp_path), [NoDriver(())], CDI)
    assert (found["module"], found["driver"], found["cards"]) == (None, "", [])
    assert found["injection"] is None
    assert "libnvidia-ml" in found["problem"]


@pytest.mark.processes
def test_the_answer_is_printed_and_written(tmp_path: Path) -> None:
    """On standard output nothing else; wrong settings are told as ``serve`` does."""
    into, command = tmp_path / "answer", [sys.executable, "-m", "deviceplugin", "check"]
    given = {**os.environ, "GPUSHARE_NODE_NAME": "n"}
    done = subprocess.run(
        [*command, f"--into={into}", f"--status={json.dumps(CDI)}"],
        env=given | {"GPUSHARE_SIMULATED_CARDS": "2x7611MiB"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads(into.read_text())
    assert [card["count"] for card in json.loads(done.stdout)["cards"]] == [2]
    wrong = given | {"GPUSHARE_INJECT": "x"}
    done = subprocess.run(
        command, env=wrong, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "GPUSHARE_INJECT: 'x' is not valid" in done.stderr
