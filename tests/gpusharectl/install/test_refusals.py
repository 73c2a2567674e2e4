"""What ``install`` refuses, and in which words: bad input, and other owners' things."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.errors import Unreachable
from gpushare.kube.objects import Ref
from gpusharectl.install.progress import Exit
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.installed_cluster import InstalledCluster
from tests.gpusharectl.install.stand_ins import SCHEDULER


@pytest.fixture
def world(tmp_path: Path) -> InstalledCluster:
    return InstalledCluster(FakeObjects(), tmp_path).populate()


def fake(world: InstalledCluster) -> FakeObjects:
    assert isinstance(world.objects, FakeObjects)
    return world.objects


BAD: list[tuple[str, Callable[[InstalledCluster], None], dict[str, Any], Exit, str]] = [
    (
        "unreachable",
        lambda w: fake(w).fails(1, lambda: Unreachable("refused"), done=False),
        {},
        Exit.STOPPED,
        "the API server cannot be reached (refused); is this the right context?",
    ),
    (
        "rights",
        lambda w: fake(w).denied.update(("patch daemonsets.apps", "patch nodes")),
        {},
        Exit.REFUSED,
        "you may not patch nodes, patch daemonsets.apps in kube-system",
    ),
    (
        "no right to let the probe's pod through",
        lambda w: fake(w).denied.add("patch pods"),
        {},
        Exit.REFUSED,
        "you may not patch pods in kube-system",
    ),
    (
        "no right even to list",
        lambda w: fake(w).denied.update(("list nodes", "list pods")),
        {},
        Exit.REFUSED,
        "you may not list nodes, list pods",
    ),
    (
        "wrong context",
        lambda w: fake(w).kept.pop(Ref("v1", "Node", "cp")) and None,
        {},
        Exit.REFUSED,
        "(its nodes: gpu-1); is this the right context?",
    ),
    (
        "no GPU node",
        lambda _: None,
        {"nodes": (), "all_gpu_nodes": True},
        Exit.REFUSED,
        "no node shows a sign of an NVIDIA GPU (nodes: cp, gpu-1)",
    ),
    (
        "nobody to ask",
        lambda _: None,
        {"nodes": ()},
        Exit.USAGE,
        "the same command with --nodes NODE,NODE or --all-gpu-nodes",
    ),
    (
        "unknown node",
        lambda _: None,
        {"nodes": ("gpu-1", "gpu-9")},
        Exit.USAGE,
        "gpu-9 is no node of this cluster; its nodes are cp, gpu-1",
    ),
    (
        "a scheduler manifest that is no YAML, or another tool's",
        lambda w: w.scheduler.ill.update(plan="kube-scheduler.yaml is not YAML"),
        {},
        Exit.REFUSED,
        "kube-scheduler.yaml is not YAML; nothing was changed",
    ),
    (
        "what the API server's admission refuses",
        lambda w: fake(w).refused.update(DaemonSet="privileged pods are forbidden"),
        {},
        Exit.STOPPED,
        "privileged pods are forbidden",
    ),
    (
        "no control plane here",
        lambda w: w.files.remove(SCHEDULER),
        {},
        Exit.REFUSED,
        "on a managed cluster: gpusharectl install --second-scheduler",
    ),
    (
        "a second scheduler beside an extended one",
        lambda w: w.install() and None,
        {"second_scheduler": True, "scheduler_image": "ks:1"},
        Exit.REFUSED,
        "without knowing of",
    ),
    (
        "a second scheduler without an image",
        lambda _: None,
        {"second_scheduler": True},
        Exit.REFUSED,
        "with --scheduler-image IMAGE, an image of kube-scheduler v1.36.3",
    ),
]


@pytest.mark.parametrize(
    ("spoil", "options", "code", "words"),
    [case[1:] for case in BAD],
    ids=[case[0] for case in BAD],
)
def test_bad_input_ends_in_a_sentence_and_changes_nothing(
    world: InstalledCluster,
    spoil: Callable[[InstalledCluster], None],
    options: dict[str, Any],
    code: Exit,
    words: str,
) -> None:
    spoil(world)
    before, file = dict(fake(world).kept), world.files.read(SCHEDULER)
    assert world.install(**options) == code, world.screen.text
    assert words in world.screen.text
    assert "To go on: " in world.screen.text
    assert fake(world).kept == before
    assert world.files.read(SCHEDULER) == file


def test_nvidias_plugin_on_the_same_cards_is_asked_about(
    world: InstalledCluster,
) -> None:
    offered = {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}
    world.objects.merge(Ref("v1", "Node", "gpu-1"), offered, subresource="status")
    assert world.install("n") == Exit.STOPPED
    assert "offers the same cards (nvidia.com/gpu)" in world.screen.text
    assert world.label("gpu-1") is None
    assert world.install("y", "y") == Exit.DONE
    assert world.screen.asked[0] == "Share these cards anyway?"
