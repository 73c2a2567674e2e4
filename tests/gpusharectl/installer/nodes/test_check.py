"""What is said of a node before gpushare is installed there."""

import io
import json
from functools import partial
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from deviceplugin.check import report_node
from deviceplugin.settings import DevicePluginSettings
from gpushare.kube.cluster import Json
from gpushare.kube.facts import DEVICE_PLUGIN, SYSTEM
from gpushare.kube.objects import Ref
from gpusharectl.installer.manifests import load_manifests
from gpusharectl.installer.nodes.check import (
    Check,
    NodeReport,
    check_nodes,
    checks_data,
    draw_checks,
    judge_check_pod,
    judge_report,
)
from gpusharectl.installer.nodes.pods import PodResults
from gpusharectl.installer.options import CheckOptions
from gpusharectl.installer.progress import Exit, InstallError
from tests.gpusharectl.golden import assert_as_kept, drawn
from tests.gpusharectl.installer.installed_cluster import (
    REPORT,
    InstalledCluster,
    runtime_class,
)

NODES = CheckOptions(nodes=("cp", "gpu-1"))
NO_DRIVER = {"module": None, "driver": "", "cards": [], "injection": None}
NO_LIBRARY = {**NO_DRIVER, "module": "550.54.15", "problem": "no libnvidia-ml.so.1"}
HELD = {"by": "cdi", "because": "x", "held": ["no CDI specification has GPU-1"]}
NODES_ONLY = {"by": "nodes", "because": "not CDI: y; not env: z", "held": []}
SLICE = {"model": "A100 1g.5gb", "memory_mib": 4864, "units": 19}
SLICES = [SLICE | {"count": 56}, SLICE]
MIG = {"left_out": ["GPU-2: it is in MIG mode; nvidia-smi -mig 0 ends that"]}


def found_by(**differs: Any) -> dict[str, Check]:
    checks = judge_report(NodeReport.read(json.dumps(REPORT | differs)))
    return {one.about: one for one in checks}


@pytest.mark.parametrize(
    ("differs", "todo", "unknown", "words"),
    [
        ({}, [], [], "1 Tesla P4 of 7611 MiB: 29 units"),
        ({"cards": SLICES}, [], [], "57 A100 1g.5gb of 4864 MiB: 1083 units"),
        ({"module": ""}, [], [], "550.54.15"),
        ({"module": None}, [], [], "550.54.15"),
        (
            {**NO_DRIVER, "problem": "there is no libnvidia-ml.so.1 here"},
            ["driver"],
            ["NVML", "cards", "injection"],
            "nvidia-smi must answer there",
        ),
        (NO_LIBRARY, ["NVML"], ["cards", "injection"], "NVIDIA container toolkit"),
        (
            {"cards": [], "injection": None},
            ["cards"],
            ["injection"],
            "the driver lists no card",
        ),
        (MIG, ["cards"], [], "cannot be shared: GPU-2: it is in MIG mode"),
        (MIG, ["cards"], [], "correct this, or go on without these cards"),
        ({**MIG, "cards": []}, ["cards"], [], "until then the node shares no card"),
        ({"injection": HELD}, ["injection"], [], "nvidia-ctk cdi generate"),
        ({"injection": NODES_ONLY}, ["injection"], [], "device nodes only"),
        (
            {"module": None, "driver": "", "injection": None},
            [],
            ["driver", "NVML", "injection"],
            "simulated, or listed in an inventory",
        ),
    ],
)
def test_each_finding_says_what_to_do(
    differs: Json, todo: list[str], unknown: list[str], words: str
) -> None:
    """What depends on something that is missing is unknown, and not wrong."""
    found = found_by(**differs)
    assert list(found) == ["driver", "NVML", "cards", "injection"]
    assert [about for about, one in found.items() if one.ok is False] == todo
    assert [about for about, one in found.items() if one.ok is None] == unknown
    assert all(bool(one.remedy) is (one.ok is False) for one in found.values())
    assert words in " ".join(f"{one.text} {one.remedy}" for one in found.values())


def test_it_reads_what_the_device_plugin_prints() -> None:
    """Of a node without a driver, as this machine may be."""
    printed = json.dumps(report_node(DevicePluginSettings.read({})[0], [], {}))
    assert NodeReport.read(printed).cards == ()


@pytest.mark.parametrize(
    ("ran", "image", "words"),
    [
        (
            PodResults({"n": "the image x:1 cannot be pulled: not found"}, {}),
            False,
            "--image",
        ),
        (PodResults({"n": "no runtime for nvidia"}, {}), False, "log of kubelet"),
        (PodResults({}, {"n": ""}), True, "answer is not valid"),
        (PodResults({}, {"n": '{"v": 2}'}), True, "this program knows 1"),
    ],
)
def test_a_pod_without_an_answer(ran: PodResults, image: bool, words: str) -> None:
    first, *others = judge_check_pod("x:1", ran, "n")
    assert first.ok is image
    assert [one.ok for one in others] == [None] * 4
    assert words in " ".join(f"{one.text} {one.remedy}" for one in [first, *others])


def test_a_check_of_two_nodes_leaves_nothing(world: InstalledCluster) -> None:
    """One has a taint, one is away. A terminal's lines are folded, a pipe's are not."""
    cp = world.objects.kept[Ref("v1", "Node", "cp")]
    cp["spec"] = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    gpu = world.objects.kept[Ref("v1", "Node", "gpu-1")]
    gpu["status"]["conditions"] = []
    before = world.picture()
    found = check_nodes(world.context(), NODES)
    assert world.picture() == before
    assert [one.todo for one in found] == [0, 1]
    assert_as_kept("check_node", drawn(partial(draw_checks, nodes=found), width=40))
    page = io.StringIO()
    draw_checks(Console(file=page, width=60, force_terminal=True), found)
    assert max(map(cell_len, page.getvalue().splitlines())) <= 75
    first, second = checks_data(found)["nodes"]
    assert (first["ok"], second["ok"]) == (True, False)
    assert {"check": "NVML", "ok": True, "text": "it answers", "todo": ""} in (
        first["checks"]
    )


def test_without_rights_the_node_object_is_still_judged(
    world: InstalledCluster,
) -> None:
    world.objects.denied.add("create pods")
    world.objects.writes.clear()
    (one,) = check_nodes(world.context(), CheckOptions(nodes=("gpu-1",)))
    assert [check.about for check in one.checks if check.ok] == [
        *("node", "kubelet", "plugins")
    ]
    (wrong,) = [check for check in one.checks if check.ok is False]
    assert wrong.text == "you may not create pods in kube-system"
    assert world.objects.writes == []
    world.objects.denied.add("list nodes")
    with pytest.raises(InstallError, match="you may not list nodes"):
        check_nodes(world.context(), NODES)


def test_more_rights_than_that_are_not_needed(world: InstalledCluster) -> None:
    """Without them it is checked as if gpushare were not installed."""
    world.objects.denied |= {
        *("list pods", "get serviceaccounts", "get daemonsets.apps"),
        *("list runtimeclasses.node.k8s.io", "get runtimeclasses.node.k8s.io"),
    }
    world.objects.calls.clear()
    (one,) = check_nodes(world.context(), CheckOptions(nodes=("gpu-1",)))
    assert one.todo == 0
    asked = [call for call in world.objects.calls if not call.startswith("may ")]
    assert {call.partition(" kube-system")[0] for call in asked} == {
        *("list Node", "list Event", "get Pod", "create Pod", "delete Pod")
    }


def test_a_pod_that_does_not_start_in_time(world: InstalledCluster) -> None:
    world.nodes.step = lambda: None
    (one,) = check_nodes(world.context(), CheckOptions(nodes=("gpu-1",), timeout_s=5))
    checks = {check.about: check for check in one.checks}
    assert checks["image"].text == "no result in time: kubelet to start its pod"
    assert checks["driver"].ok is None


def test_a_node_that_there_is_not(world: InstalledCluster) -> None:
    with pytest.raises(InstallError, match="gpu-2 is no node of this cluster; its"):
        check_nodes(world.context(), CheckOptions(nodes=("cp", "gpu-2")))


def created(world: InstalledCluster) -> list[Json]:
    """Keep each pod that is created from now on."""
    pods: list[Json] = []
    create = world.objects.create
    world.objects.create = lambda body: pods.append(body) or create(body)
    return pods


def test_the_pod_has_what_the_plugin_would_have(world: InstalledCluster) -> None:
    """Its variables and RuntimeClass; the host's files and CDI folders, read-only."""
    world.objects.create(runtime_class("nvidia", "nvidia"))
    pods = created(world)
    check_nodes(world.context(), CheckOptions(nodes=("gpu-1",), image="x:1"))
    (spec,) = [pod["spec"] for pod in pods]
    (container,) = spec["containers"]
    (plugin,) = [
        one
        for one in load_manifests("kubeadm", components=["nvidia-runtime"])
        if one["metadata"]["name"] == DEVICE_PLUGIN and one["kind"] == "DaemonSet"
    ]
    (own,) = plugin["spec"]["template"]["spec"]["containers"]
    root = {"name": "GPUSHARE_HOST_ROOT", "value": "/host"}
    assert container["env"] == [*own["env"], root]
    assert container["image"] == "x:1"
    assert spec["runtimeClassName"] == "nvidia"
    assert [one["hostPath"]["path"] for one in spec["volumes"]] == [
        *("/etc/cdi", "/var/run/cdi", "/")
    ]
    assert all(one["readOnly"] for one in container["volumeMounts"])


@pytest.mark.parametrize(
    ("kubelet", "below"),
    [("v1.36.3", "IfPossible"), ("v1.31.0+k3s1", "IfPossible"), ("v1.30.9", None)],
)
def test_what_is_mounted_in_the_hosts_tree_is_read_only(
    world: InstalledCluster, kubelet: str, below: str | None
) -> None:
    """By kubelets that can; the one before would start no such pod."""
    info = {"status": {"nodeInfo": {"kubeletVersion": kubelet}}}
    world.objects.merge(Ref("v1", "Node", "gpu-1"), info, subresource="status")
    pods = created(world)
    check_nodes(world.context(), CheckOptions(nodes=("gpu-1",)))
    (container,) = pods[0]["spec"]["containers"]
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert mounts["/host"]["readOnly"]
    assert mounts["/host"].get("recursiveReadOnly") == below


def test_what_is_installed_is_what_is_tried(world: InstalledCluster) -> None:
    assert world.install(image="x:1") == Exit.DONE
    ref = Ref("apps/v1", "DaemonSet", DEVICE_PLUGIN, SYSTEM)
    simulated = {"name": "GPUSHARE_SIMULATED_CARDS", "value": "1x8GiB"}
    spec = world.objects.kept[ref]["spec"]["template"]["spec"]
    # The host's files are elsewhere in the check's pod.
    root = {"name": "GPUSHARE_HOST_ROOT", "value": "/own"}
    spec["containers"][0]["env"] += [root, simulated]
    pods = created(world)
    check_nodes(world.context(), CheckOptions(nodes=("gpu-1",)))
    (container,) = pods[-1]["spec"]["containers"]
    assert container["image"] == "x:1"
    assert simulated in container["env"]
    roots = [one for one in container["env"] if one["name"] == root["name"]]
    assert roots == [root | {"value": "/host"}]


def test_an_install_tells_what_it_finds_before_it_changes_anything(
    world: InstalledCluster,
) -> None:
    """And asks, if a node has no card that could be shared."""
    assert world.install() == Exit.DONE
    assert "node gpu-1: 1 Tesla P4 of 7611 MiB: 29 units   ok" in world.screen.lines
    world.nodes.answer = json.dumps(REPORT | NO_DRIVER)
    before = world.picture()
    assert world.install("y", "n", image="x:2", yes=False) == Exit.STOPPED
    assert world.picture() == before
    assert "Share these cards anyway?" in world.screen.asked
    line = "node gpu-1: no NVIDIA driver is loaded; install it on the node; nvidia-smi"
    assert any(one.startswith(line) for one in world.screen.lines)


def test_a_runtime_that_refuses_the_driver_is_no_bad_image(
    world: InstalledCluster,
) -> None:
    """The image is tried again without the driver; an install may go on."""
    world.nodes.answer = json.dumps(REPORT | NO_LIBRARY)
    world.nodes.refusal = "unresolvable CDI devices nvidia.com/gpu=all"
    (one,) = check_nodes(world.context(), CheckOptions(nodes=("gpu-1",)))
    checks = {check.about: check for check in one.checks}
    assert [about for about, one in checks.items() if one.ok is False] == ["NVML"]
    assert world.nodes.refusal in checks["NVML"].text
    assert checks["driver"].text == "550.54.15"
    assert world.install() == Exit.DONE
    assert f"started: {world.nodes.refusal}" in world.screen.text
