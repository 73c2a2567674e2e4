"""What ``install`` refuses, and in which words: bad input, and other owners' things."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from gpushare.kube.errors import Unreachable
from gpushare.kube.objects import Ref
from gpusharectl.installer.progress import Exit
from tests.gpusharectl.installer.installed_cluster import SCHEDULER, InstalledCluster


class Bad(NamedTuple):
    """What is wrong, and what is said of it."""

    words: str
    spoil: Callable[[InstalledCluster], object] = lambda _: None
    options: dict[str, Any] | None = None
    code: Exit = Exit.REFUSED


def denied(*rights: str) -> Callable[[InstalledCluster], object]:
    return lambda world: world.objects.denied.update(rights)


BAD = {
    "unreachable": Bad(
        "the API server cannot be reached (refused); is this the right context?",
        lambda w: w.objects.fails(1, lambda: Unreachable("refused"), done=False),
        code=Exit.STOPPED,
    ),
    "rights": Bad(
        "you may not patch nodes, patch daemonsets.apps in kube-system",
        denied("patch daemonsets.apps", "patch nodes"),
    ),
    "no right to let the probe's pod through": Bad(
        "you may not patch pods in kube-system", denied("patch pods")
    ),
    "no right for the Job that edits kube-scheduler's manifest": Bad(
        "you may not create jobs.batch in kube-system", denied("create jobs.batch")
    ),
    "no right even to list": Bad(
        "you may not list nodes, list pods", denied("list nodes", "list pods")
    ),
    "no right for monitoring": Bad(
        "you may not create services in kube-system",
        denied("create services"),
        {"with_monitoring": True},
    ),
    "wrong context": Bad(
        "(its nodes: gpu-1); is this the right context?",
        lambda w: w.objects.kept.pop(Ref("v1", "Node", "cp")),
    ),
    "no GPU node": Bad(
        "no node shows a sign of an NVIDIA GPU (nodes: cp, gpu-1)",
        options={"nodes": (), "all_gpu_nodes": True},
    ),
    "nobody to ask": Bad(
        "the same command with --nodes NODE,NODE or --all-gpu-nodes",
        options={"nodes": ()},
        code=Exit.USAGE,
    ),
    "unknown node": Bad(
        "gpu-9 is no node of this cluster; its nodes are cp, gpu-1",
        options={"nodes": ("gpu-1", "gpu-9")},
        code=Exit.USAGE,
    ),
    "what to do about it": Bad(
        "To go on: the same command with --nodes and names of these nodes",
        options={"nodes": ("gpu-9",)},
        code=Exit.USAGE,
    ),
    "a scheduler manifest that is no YAML, or another tool's": Bad(
        "kube-scheduler.yaml is not YAML; nothing was changed",
        lambda w: w.scheduler.ill.update(plan="kube-scheduler.yaml is not YAML"),
    ),
    "what the API server's admission refuses": Bad(
        "privileged pods are forbidden",
        lambda w: w.objects.refused.update(DaemonSet="privileged pods are forbidden"),
        code=Exit.STOPPED,
    ),
    "no control plane here": Bad(
        "on a managed cluster: gpusharectl install --second-scheduler",
        lambda w: w.files.remove(SCHEDULER),
    ),
    "a second scheduler beside an extended one": Bad(
        "without knowing of",
        lambda w: w.install(),
        {"second_scheduler": True, "scheduler_image": "ks:1"},
    ),
    "a second scheduler without an image": Bad(
        "with --scheduler-image IMAGE, an image of kube-scheduler v1.36.3",
        options={"second_scheduler": True},
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_input_changes_nothing(world: InstalledCluster, bad: Bad) -> None:
    bad.spoil(world)
    before, file = dict(world.objects.kept), world.files.read(SCHEDULER)
    assert world.install(**bad.options or {}) == bad.code, world.screen.text
    assert bad.words in world.screen.text
    assert "To go on: " in world.screen.text
    assert world.objects.kept == before
    assert world.files.read(SCHEDULER) == file


def test_nvidias_plugin_is_asked_about(world: InstalledCluster) -> None:
    offered = {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}
    world.objects.merge(Ref("v1", "Node", "gpu-1"), offered, subresource="status")
    assert world.install("n") == Exit.STOPPED
    assert "offers the same cards (nvidia.com/gpu)" in world.screen.text
    assert world.label("gpu-1") is None
    assert world.install("y", "y") == Exit.DONE
    assert world.screen.asked[0] == "Share these cards anyway?"
