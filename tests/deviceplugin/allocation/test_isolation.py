"""Tier driver: its checks, what auto makes of them, and how large limits are."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.allocation.cdi import HOOK, LIMIT
from deviceplugin.allocation.isolation import (
    TIERS,
    CardLimitSupport,
    NodeLimitSupport,
    Tier,
    why_not_driver,
)
from gpushare.cards.source import FoundCard
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from tests.builders import container_json
from tests.deviceplugin.node_fixture import (
    UUIDS,
    M,
    NodeFixture,
    driver_limit,
    found_card,
    inside,
)
from tests.machine import needs
from tests.testbed.waiting import wait_until

NODE = NodeLimitSupport(driver="615.38.02", cgroup2=True, injection="cdi")
CARD = CardLimitSupport(found_card(0), refused="", hooked=True)
INSTANCE = replace(found_card(0), uuid=CardUUID("MIG-1"))


@pytest.mark.parametrize(
    ("node", "card", "why"),
    [
        ({}, {}, ""),
        ({"driver": "700.1"}, {}, ""),
        ({"driver": "615"}, {}, ""),
        ({"driver": "614.99"}, {}, "614.99, memory limits need 615"),
        ({"driver": "r615"}, {}, "r615, memory limits need 615"),
        ({"driver": "N/A"}, {}, "N/A, memory limits need 615"),
        ({"driver": "580.95.05"}, {}, "580.95.05, memory limits need 615"),
        ({"driver": ""}, {}, "the driver is of unknown version"),
        ({"cgroup2": False}, {}, "cgroup v1"),
        ({"injection": "env"}, {}, "injected by env"),
        ({"lacks": "/cdi cannot be written"}, {}, "/cdi cannot be written"),
        ({}, {"hooked": False}, HOOK),
        ({}, {"refused": "it is in MIG mode"}, "it is in MIG mode"),
        ({}, {"card": INSTANCE}, "MIG instance"),
        ({}, {"card": found_card(0, simulated=True)}, "not a card of NVIDIA"),
        ({}, {"card": found_card(0, known_to_driver=False)}, "not a card of NVIDIA"),
    ],
)
def test_each_check(node: dict[str, Any], card: dict[str, Any], why: str) -> None:
    said = why_not_driver(replace(NODE, **node), replace(CARD, **card))
    assert why in said
    assert bool(said) == bool(why)


def prepare(folder: Path, *, hook: str = HOOK) -> dict[str, Any]:
    """What a node needs that can have tier driver, and the settings for it."""
    group = folder / "root/sys/fs/cgroup"
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.controllers").touch()
    (folder / "cdi").mkdir(exist_ok=True)
    args = ["nvidia-cdi-hook", hook]
    edits = {"hooks": [{"hookName": "createRuntime", "path": "/hook", "args": args}]}
    devices = [{"name": uuid, "containerEdits": edits} for uuid in UUIDS]
    text = json.dumps({"kind": "nvidia.com/gpu", "devices": devices})
    (folder / "cdi/nvidia.json").write_text(text)
    return {
        "isolation": "driver",
        "inject": "cdi",
        "cdi_dirs": (folder / "cdi",),
        "host_root": folder / "root",
    }


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFixture]:
    """One card of 29 units and 100 MiB."""
    with NodeFixture(tmp_path, found_card(0), settings=prepare(tmp_path)) as made:
        yield made


def test_what_the_host_must_have(tmp_path: Path) -> None:
    """A folder for specifications that can be written, and the shell that they name."""
    needs(os.geteuid() == 0, "root", "run the tests as root")
    (tmp_path / "usr").mkdir()
    code = (
        "import sys; from pathlib import Path; from unittest.mock import Mock; "
        "from deviceplugin.allocation.isolation import TierChecks; "
        "root, cdi = map(Path, sys.argv[1:]); "
        "print(TierChecks(Mock(), root, [cdi], str, Mock()).facts([])[0].lacks)"
    )

    def lacks(mount: str) -> str:
        python = f"{sys.executable} -c '{code}' {tmp_path} {tmp_path / 'cdi'}"
        command = ["unshare", "-m", "sh", "-c", f"{mount} && exec {python}"]
        return subprocess.check_output(command, text=True).strip()

    (tmp_path / "cdi").mkdir()
    assert "cdi cannot be written" in lacks(f"mount -t tmpfs -o ro t {tmp_path}/cdi")
    assert "the host has no /bin/sh" in lacks("true")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").touch()
    assert lacks("true") == ""


P4 = replace(found_card(0), memory_mib=7611)
RTX_3090 = replace(found_card(0), memory_mib=24259)
SMALL = replace(found_card(0), memory_mib=4096)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("cards", "each", "pods"),
    [
        ([P4, replace(found_card(1), memory_mib=7611)], 29, [(0, 4), (0, 20), (1, 20)]),
        ([RTX_3090], 94, [(0, 50), (0, 40), (0, 1)]),
        ([SMALL], 16, [(0, 15), (0, 1)]),
    ],
    ids=["two P4", "RTX 3090", "4 GiB"],
)
def test_pods_start_side_by_side_under_each_tier(
    tmp_path: Path,
    tier: Tier,
    cards: list[FoundCard],
    each: int,
    pods: list[tuple[int, int]],
) -> None:
    """A tier takes nothing of a card: its limits are the shares themselves."""
    settings = prepare(tmp_path) | {"isolation": tier}
    with NodeFixture(tmp_path, *cards, settings=settings) as node:
        assert [card.units for card in node.serving.parts.offer.cards.all] == [
            each for _ in cards
        ]
        for number, (card, units) in enumerate(pods):
            pod = node.bind(f"p{number}", units, 1, card=card)
            allocated = inside(node.run(pod)["main"])
            assert allocated["isolation"] == tier
            share = None if tier == "none" else units * 256
            assert allocated.get("hard_limit_mib") == share


def test_parts_that_make_100_cores_have_limits(node: NodeFixture) -> None:
    """Each container its own: no sum of cores says that the pod has the whole card."""
    apps = [container_json("x", 4, 60), container_json("y", 4, 40)]
    apart = {names.CONTAINERS: names.APART}
    given = node.run(node.bind("a", containers=apps, annotations=apart))
    limits = [driver_limit(given[name])[LIMIT] for name in "xy"]
    assert limits == ["1024", "1024"]
    cards = [inside(given[name])["cards"][0] for name in "xy"]
    assert [(card["units"], card["cores"]) for card in cards] == [(4, 60), (4, 40)]
    assert node.actual("a") is None


def test_a_failing_check_offers_nothing_until_it_passes(
    node: NodeFixture, tmp_path: Path
) -> None:
    there = node.devices.allocatable
    prepare(tmp_path, hook="another")
    wait_until(lambda: there()[M] == 0, "nothing to be offered")
    assert HOOK in node.serving.parts.offer.sick()[UUIDS[0]]
    prepare(tmp_path)
    wait_until(lambda: there()[M] == 29, "the card to be offered")


def test_auto_takes_its_tier_while_pods_run(tmp_path: Path) -> None:
    """Nothing less is offered, and containers that exist keep what they have."""
    settings = prepare(tmp_path, hook="another") | {"isolation": "auto"}
    with NodeFixture(tmp_path, found_card(0), settings=settings) as node:
        before = node.bind("before", 14, 1)
        given = node.run(before)["main"]
        prepare(tmp_path)
        isolation = node.serving.watcher.setup.isolation
        wait_until(lambda: isolation.tier == "driver", "tier driver")
        assert node.devices.allocatable()[M] == 29
        node.start_one(before)
        assert inside(given)["isolation"] == "none"
        after = node.run(node.bind("after", 15, 1))["main"]
        assert inside(after)["isolation"] == "driver"
