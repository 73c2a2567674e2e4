"""Tier driver: its checks, what auto makes of them, and the law of hard limits."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from deviceplugin import serve
from deviceplugin.allocation.isolation import (
    HOOK,
    CardLimitSupport,
    HardLimits,
    NodeLimitSupport,
    Tier,
    needed_mib,
    why_not_driver,
)
from deviceplugin.allocation.response import LIMIT
from deviceplugin.cards.devices import shared_card
from gpushare.domain.model import CardUUID
from gpushare.domain.request import Role
from gpushare.kube import names
from gpushare.kube.cluster import Kind
from gpusharectl.demo.devices import CannotStartYetError
from tests.builders import container_json, pod_json
from tests.deviceplugin.node_fixture import UUIDS, M, NodeFixture, found_card, inside
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


roles = st.lists(st.tuples(st.sampled_from(Role), st.integers(1, 9999)), max_size=6)


@for_all(roles)
def test_no_moment_of_a_pod_needs_more(limits: list[tuple[Role, int]]) -> None:
    def add_up(role: Role) -> int:
        return sum(limit for its, limit in limits if its is role)

    side, apps = add_up(Role.SIDECAR), add_up(Role.APP)
    firsts = [limit for role, limit in limits if role is Role.INIT]
    assert needed_mib(limits) == max([side + apps, *(side + first for first in firsts)])


@pytest.mark.parametrize("tier", ["driver", "preload"])
@for_all(
    memory=st.integers(0, 200_000),
    overhead=st.integers(0, 4096),
    pods=st.integers(1, 64),
    data=st.data(),
)
def test_expected_pods_never_wait(
    tier: Tier, memory: int, overhead: int, pods: int, data: st.DataObject
) -> None:
    """However their units are spread, the card has room for their hard limits."""
    limits = HardLimits(overhead, pods)
    card = replace(found_card(0), memory_mib=memory)
    left = shared_card(card, limits.kept_mib).units
    total = 0
    for _ in range(pods):
        if left:
            units = data.draw(st.integers(1, left))
            left, total = left - units, total + limits.of(tier, units).needed_mib
    assert total <= memory


def prepare(folder: Path, *, hook: str = HOOK) -> dict[str, Any]:
    """What a node needs that can have tier driver, and the settings for it."""
    group = folder / "root/sys/fs/cgroup"
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.controllers").touch()
    (folder / "cdi").mkdir(exist_ok=True)
    edits = {"hooks": [{"hookName": "createRuntime", "args": ["cdi-hook", hook]}]}
    devices = [{"name": uuid, "containerEdits": edits} for uuid in UUIDS]
    text = json.dumps({"kind": "nvidia.com/gpu", "devices": devices})
    (folder / "cdi/nvidia.json").write_text(text)
    return {
        "isolation": "driver",
        "isolation_pods": 2,
        "inject": "cdi",
        "cdi_dirs": (folder / "cdi",),
        "host_root": folder / "root",
    }


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFixture]:
    """One card of 29 units and 100 MiB, of which 1024 MiB are kept back."""
    with NodeFixture(tmp_path, found_card(0), settings=prepare(tmp_path)) as made:
        yield made


def test_parts_that_make_100_cores_have_limits(node: NodeFixture) -> None:
    """Each container its own: no sum of cores says that the pod has the whole card."""
    apps = [container_json("x", 4, 60), container_json("y", 4, 40)]
    apart = {names.CONTAINERS: names.APART}
    given = node.run(node.bind("a", containers=apps, annotations=apart))
    assert [given[name].envs[LIMIT] for name in "xy"] == ["1536", "1536"]
    cards = [inside(given[name])["cards"][0] for name in "xy"]
    assert [(card["units"], card["cores"]) for card in cards] == [(4, 60), (4, 40)]
    assert node.actual("a") is None


def test_the_one_too_many_waits_until_another_ends(node: NodeFixture) -> None:
    """The law: started hard limits never add up to more than the card has."""
    for name in ("a", "b"):
        node.run(node.bind(name, 12, 1))
    third = node.bind("c", 1, 1)
    node.admit(third)
    node.waits(third, "would be 7936 MiB, and the card")
    # What was given is kept over a restart, also of other settings.
    node.restart(isolation_overhead_mib=0)
    node.waits(third, "would be 7936 MiB")
    node.end_pod("a")
    node.wait_gone("a")
    node.start_one(third)


def test_a_pod_does_not_wait_for_its_own_init_container(node: NodeFixture) -> None:
    once = container_json("once", 24, 1)
    main = container_json("main", 24, 1)
    given = node.run(node.bind("a", init=[once], containers=[main]))
    assert given["main"].envs[LIMIT] == "6656"


def test_a_pod_that_can_never_start_is_told_so(node: NodeFixture) -> None:
    """Its own containers' overheads are more than the card keeps back for a node."""
    apps = [container_json(f"c{n}", 8, 1) for n in range(3)]
    pod = node.bind("a", containers=apps)
    node.admit(pod)
    for name in ("c0", "c1"):
        node.start_one(pod, name)
    with pytest.raises(CannotStartYetError, match=r"own containers .* 7680 MiB.* 7524"):
        node.start_one(pod, "c2")


def test_a_static_pod_that_ended_is_not_counted(node: NodeFixture) -> None:
    """Whoever has its devices after it: only kubelet knew the pod."""
    static = pod_json("s-n", uid="hash", units=25, cores=1, node="n")
    node.run(static)
    node.devices.release("hash")
    node.run(node.bind("a", 25, 1))


def test_limits_count_before_the_api_server_has_answered(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that starts without it asks kubelet which pods there are."""
    monkeypatch.setattr(serve, "_SYNC_WITHIN_S", 0.05)
    for name in ("a", "b"):
        node.run(node.bind(name, 12, 1))
    node.end()
    node.line.cut = True
    node.start()
    static = pod_json("s-n", uid="hash", units=1, cores=1, node="n")
    node.admit(static)
    with pytest.raises(CannotStartYetError, match="would be 7936 MiB"):
        node.devices.start("hash", "main")


def test_a_failing_check_offers_nothing_until_it_passes(
    node: NodeFixture, tmp_path: Path
) -> None:
    there = node.devices.allocatable
    prepare(tmp_path, hook="another")
    wait_until(lambda: there()[M] == 0, "nothing to be offered")
    assert HOOK in node.serving.parts.offer.sick()[UUIDS[0]]
    prepare(tmp_path)
    wait_until(lambda: there()[M] == 25, "the card to be offered")


def bound(node: NodeFixture) -> None:
    """It was placed by what the node offers now."""
    node.bind("a", 29, 1)


def forgotten(node: NodeFixture) -> None:
    """Its files were lost with the node's state folder."""
    node.run(node.bind("a", 29, 1))
    node.end()
    shutil.rmtree(node.settings.state_dir)
    node.start()
    node.wait_seen("a")


def static(node: NodeFixture) -> None:
    """Only kubelet knows it."""
    node.run(pod_json("a-n", uid="hash", units=29, cores=1, node="n"))


@pytest.mark.parametrize("comes", [bound, forgotten, static])
def test_auto_offers_no_less_while_a_pod_may_hold_a_card(
    tmp_path: Path, comes: Callable[[NodeFixture], None]
) -> None:
    """kubelet would fail a pod whose units are not offered any more."""
    settings = prepare(tmp_path, hook="another") | {"isolation": "auto"}
    with NodeFixture(tmp_path, found_card(0), settings=settings) as node:
        wait_until(lambda: node.devices.allocatable()[M] == 29, "tier none")
        comes(node)
        prepare(tmp_path)
        isolation = node.serving.watcher.setup.isolation
        isolation.choose_for(node.serving.parts.offer.found_cards)
        assert (isolation.tier, isolation.kept_mib) == ("none", 0)
        for pod in node.cluster.list_page(Kind.PODS, limit=9).items:
            node.end_pod(pod["metadata"]["name"])
        gone = node.pods.all
        wait_until(lambda: not gone(), "the pods to be gone")
        node.serving.reporter.catch_up()
        # Ten minutes later.
        node.serving.parts.records.sweep(lambda _: False, after_s=0)
        wait_until(lambda: isolation.tier == "driver", "tier driver")
