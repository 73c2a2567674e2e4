"""``uninstall``: everything back, and a sentence for what cannot be."""

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden
from gpushare.kube.objects import Ref
from gpusharectl.installer.kube_scheduler.host_files import FileChange
from gpusharectl.installer.kube_scheduler.static_pod import STAMP
from gpusharectl.installer.progress import Exit
from tests.gpusharectl.installer.installed_cluster import (
    AFTER,
    CONTROL_PLANE,
    SCHEDULER,
    InstalledCluster,
    node,
)
from tests.testbed.objects import pod

ENV = "/spec/template/spec/containers/0/env/0"
"""Where the variables of a workload begin."""
GPU_1 = Ref("v1", "Node", "gpu-1")


@pytest.fixture
def world(world: InstalledCluster) -> InstalledCluster:
    assert world.install() == Exit.DONE
    return world


def holder(name: str, phase: str = "Running") -> Json:
    bound = pod(name, "edge", units=4, cores=1, spec={"nodeName": "gpu-1"})
    return {**bound, "status": {"phase": phase}}


def test_zeros_stay_until_they_are_waited_for(world: InstalledCluster) -> None:
    """kubelet forgets one resource after the other; one of two is not the end."""
    assert world.uninstall() == Exit.DONE
    text = world.screen.text
    assert "To remove these entries too, once the nodes are Ready:" in text
    assert "gpusharectl uninstall --wait --yes" in text
    half = {"status": {"capacity": {names.MEMORY: "29"}}}
    world.objects.merge(GPU_1, half, subresource="status")
    world.nodes.remembers = True
    assert world.uninstall(wait=True) == Exit.STOPPED
    assert "gpu-1 waits for kubelet to report capacity 0" in world.screen.text
    status = world.objects.get(GPU_1)["status"]
    assert status["capacity"][names.CORE] == "0"
    world.nodes.remembers = False
    assert world.uninstall(wait=True) == Exit.DONE
    status = world.objects.get(GPU_1)["status"]
    assert names.MEMORY not in {**status["capacity"], **status["allocatable"]}
    world.objects.writes.clear()
    assert world.uninstall(wait=True) == Exit.DONE
    assert world.screen.lines[-1] == "Nothing of gpushare is installed here."
    assert world.objects.writes == []


def test_the_order_backwards(world: InstalledCluster) -> None:
    """The plugin is gone before the stanza, the stanza before the extender."""
    seen, apply = [], world.scheduler.apply

    def spy(plan: object) -> None:
        seen.append({ref.name for ref in world.objects.kept if "Daemon" in ref.kind})
        apply(plan)

    world.scheduler.apply = spy
    assert world.uninstall() == Exit.DONE
    assert seen == [{"gpushare-extender"}]


def test_pods_with_cards_forbid_it(world: InstalledCluster) -> None:
    for one in (holder("app-2"), holder("app-1"), holder("over", "Succeeded")):
        world.objects.create(one)
    before = world.versions()
    assert world.uninstall() == Exit.REFUSED
    text = world.screen.text
    assert "2 pods with cards:\n  edge/app-1 on gpu-1\n  edge/app-2 on gpu-1" in text
    assert "delete them first, or:\n  gpusharectl uninstall --force --yes" in text
    assert world.versions() == before
    assert world.uninstall(force=True) == Exit.DONE
    text = world.screen.text
    assert "gpu-1: /var/lib/vcuda stays, because running containers use its" in text
    assert "A container that restarts from now on is not admitted" in text
    assert "before the install, except /var/lib/vcuda on gpu-1, which" in text
    assert not [one for one in world.objects.writes if "gpushare-clean" in one]
    assert world.label("gpu-1") is None


def test_a_node_that_is_away_keeps_its_folder(world: InstalledCluster) -> None:
    away = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    world.objects.merge(GPU_1, away, subresource="status")
    assert world.uninstall() == Exit.STOPPED
    text = world.screen.text
    assert "/var/lib/vcuda stays on gpu-1 (the node is not Ready)" in text
    assert "as root: rm -rf /var/lib/vcuda" in text
    assert world.ours() == []
    assert world.label("gpu-1") is None


def test_it_shows_and_asks(world: InstalledCluster) -> None:
    tier = {"metadata": {"labels": {names.ISOLATION: "none"}}}
    world.objects.merge(Ref("v1", "Node", "gpu-1"), tier)
    before = world.versions()
    assert world.uninstall(dry_run=True) == Exit.DONE
    text = world.screen.text
    assert "- Node gpu-1: label baidu.com/vcuda-isolation" in text
    assert "- DaemonSet kube-system/gpushare-device-plugin" in text
    assert '- Node gpu-1: label baidu.com/vcuda: "true"' in text
    assert "- Node gpu-1: annotation baidu.com/vcuda-cards" in text
    assert "-# ours" in text
    assert world.uninstall("n") == Exit.STOPPED
    assert world.versions() == before
    assert world.files.read(SCHEDULER) == AFTER
    assert world.uninstall("y") == Exit.DONE
    begin = world.screen.lines.index("== Removes")
    assert world.screen.lines[begin + 1 : begin + 5] == [
        "- 20 objects",
        "- labels, annotations and files on gpu-1",
        f"- gpushare's entries in {SCHEDULER}",
        "- kube-scheduler restarts; no pod is scheduled for some seconds",
    ]


def test_operators_notes_on_nodes_go_too(world: InstalledCluster) -> None:
    """The API server goes on denying for a moment after the guard is gone."""
    notes = {names.CORDON: "GPU-1", names.CLEAR: "GPU-2", "other": "stays"}
    ref = Ref("v1", "Node", "cp")
    world.objects.merge(ref, {"metadata": {"annotations": notes}})
    bare = Ref("v1", "Node", "gpu-1")
    labels = {names.ISOLATION: "driver", names.GPU_NODE_LABEL: None}
    world.objects.merge(bare, {"metadata": {"labels": labels}})
    merge, denials = world.objects.merge, iter(range(2))

    def lingering(ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        if "metadata" in patch and next(denials, None) is not None:
            raise Forbidden("the guard")
        return merge(ref, patch, subresource=subresource)

    world.objects.merge = lingering
    assert world.uninstall() == Exit.DONE
    assert world.objects.get(ref)["metadata"]["annotations"] == {"other": "stays"}
    assert world.label("gpu-1") is None
    assert names.ISOLATION not in world.objects.get(bare)["metadata"]["labels"]


def test_a_scheduler_that_stays_down_is_told(world: InstalledCluster) -> None:
    world.scheduler.wait = lambda _: "CrashLoopBackOff"
    assert world.uninstall() == Exit.STOPPED
    text = world.screen.text
    assert "has its old configuration again, but does not start: CrashLoop" in text
    assert "Done: the device plugins, their files on the nodes. " in text


def scheduler_of(name: str, *, stamped: bool) -> Json:
    """The mirror of a control-plane node's kube-scheduler."""
    body = pod(f"kube-scheduler-{name}", "kube-system", spec={"nodeName": name})
    labels = {"component": "kube-scheduler"}
    notes = {STAMP: "0f3c"} if stamped else {}
    return {
        **body,
        "metadata": {**body["metadata"], "labels": labels} | {"annotations": notes},
    }


def test_other_hosts_are_found_without_the_extender(world: InstalledCluster) -> None:
    """By what kubelet shows of the manifest; without it nothing is to be done there."""
    for name, stamped in (("cp-2", True), ("cp-3", False)):
        world.objects.create(node(name, "10.0.0.8", labels={CONTROL_PLANE: ""}))
        world.objects.create(scheduler_of(name, stamped=stamped))
    world.objects.delete(
        Ref("apps/v1", "DaemonSet", "gpushare-extender", "kube-system")
    )
    world.scheduler.did.clear()
    assert world.uninstall() == Exit.DONE
    assert [one for one in world.scheduler.did if " on " in one] == ["restore on cp-2"]
    ref = Ref("v1", "Pod", "kube-scheduler-cp-2", "kube-system")
    world.scheduler.did.clear()
    assert world.uninstall() == Exit.DONE
    assert world.scheduler.did[:1] == ["restore on cp-2"]
    world.objects.merge(ref, {"metadata": {"annotations": {STAMP: None}}})
    assert world.uninstall() == Exit.DONE
    assert world.screen.lines[-1] == "Nothing of gpushare is installed here."


def test_edited_configuration_is_named(world: InstalledCluster) -> None:
    path, text = "/etc/kubernetes/vcuda/scheduler.yaml", b"parallelism: 8\n"
    kept = FileChange(path, b"", text)
    back = world.scheduler.plan_restore()
    world.scheduler.plan_restore = lambda: [*back, kept]
    assert world.uninstall() == Exit.DONE
    assert f"before the install, except {path}, which stays" in world.screen.lines[-1]


def test_what_an_older_version_left_goes_too(world: InstalledCluster) -> None:
    """By our label, and the lease that a scheduler makes itself, without a label."""
    labels = {"app.kubernetes.io/part-of": "gpushare"}
    old = {"name": "gpushare-of-yesterday", "labels": labels}
    where = {"namespace": "kube-system"}
    for api_version, kind, metadata in (
        ("rbac.authorization.k8s.io/v1", "ClusterRole", old),
        ("batch/v1", "Job", {**old, **where}),
        ("v1", "ConfigMap", {**old, "namespace": "team-a"}),
        ("coordination.k8s.io/v1", "Lease", {"name": "vcuda-scheduler", **where}),
        ("coordination.k8s.io/v1", "Lease", {"name": "kube-scheduler", **where}),
    ):
        body = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
        world.objects.create(body)
    assert world.uninstall() == Exit.DONE
    left = {(ref.kind, ref.name) for ref in world.objects.kept if ref.kind != "Node"}
    assert left == {("ConfigMap", "gpushare-of-yesterday"), ("Lease", "kube-scheduler")}
