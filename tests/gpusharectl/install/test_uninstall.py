"""``uninstall``: everything back, and a sentence for what cannot be."""

from pathlib import Path
from typing import Any

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden
from gpushare.kube.objects import Ref
from gpusharectl.install.progress import Exit
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.installed_cluster import InstalledCluster
from tests.gpusharectl.install.stand_ins import AFTER, BEFORE, SCHEDULER


@pytest.fixture
def world(tmp_path: Path) -> InstalledCluster:
    world = InstalledCluster(FakeObjects(), tmp_path).populate()
    assert world.install() == Exit.DONE
    return world


def fake(world: InstalledCluster) -> FakeObjects:
    assert isinstance(world.objects, FakeObjects)
    return world.objects


def holder(name: str, node: str = "gpu-1") -> Json:
    asked = {names.CORE: "1", names.MEMORY: "4"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "edge", "uid": name},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "resources": {"limits": asked}}],
        },
        "status": {"phase": "Running"},
    }


def test_the_cluster_is_again_what_it_was(tmp_path: Path) -> None:
    """No object, label, annotation of ours; the file byte for byte; no zeros."""
    world = InstalledCluster(FakeObjects(), tmp_path).populate()
    before = world.picture()
    assert world.install() == Exit.DONE
    assert world.picture() != before
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert world.picture() == before
    assert world.files.read(SCHEDULER) == BEFORE


def test_without_waiting_the_zeros_stay_and_are_told(world: InstalledCluster) -> None:
    assert world.uninstall() == Exit.DONE
    assert (
        "To remove these entries too, once the nodes are Ready: " in world.screen.text
    )
    assert "gpusharectl uninstall --yes --wait" in world.screen.text
    assert world.uninstall(wait=True) == Exit.DONE
    node = world.objects.get(Ref("v1", "Node", "gpu-1")) or {}
    assert names.MEMORY not in node["status"]["capacity"]
    assert names.MEMORY not in node["status"]["allocatable"]


def test_zeros_that_do_not_come_are_told(world: InstalledCluster) -> None:
    world.nodes.remembers = True
    assert world.uninstall(wait=True) == Exit.STOPPED
    assert "gpu-1 waits for kubelet to report capacity 0" in world.screen.text
    world.nodes.remembers = False
    assert world.uninstall(wait=True) == Exit.DONE


def test_again_there_is_nothing(world: InstalledCluster) -> None:
    world.uninstall(wait=True)
    fake(world).writes.clear()
    assert world.uninstall(wait=True) == Exit.DONE
    assert world.screen.lines[-1] == "Nothing of gpushare is installed here."
    assert fake(world).writes == []


def test_the_order_backwards(world: InstalledCluster) -> None:
    """The plugin is gone before the stanza, the stanza before the extender."""
    seen = []
    apply = world.scheduler.apply

    def spy(plan: Any) -> None:
        kinds = {ref.name for ref in fake(world).kept if ref.kind == "DaemonSet"}
        seen.append(kinds)
        apply(plan)

    world.scheduler.apply = spy
    assert world.uninstall() == Exit.DONE
    assert seen == [{"gpushare-extender"}]


def test_pods_with_cards_forbid_it_and_are_listed(world: InstalledCluster) -> None:
    for name in ("app-2", "app-1"):
        world.objects.create(holder(name))
    ended = holder("over")
    ended["status"]["phase"] = "Succeeded"
    world.objects.create(ended)
    before = world.versions()
    assert world.uninstall() == Exit.REFUSED
    text = world.screen.text
    assert "2 pods with cards:\n  edge/app-1 on gpu-1\n  edge/app-2 on gpu-1" in text
    assert "delete them first, or: gpusharectl uninstall --yes --force" in text
    assert world.versions() == before


def test_by_force_the_pods_files_stay(world: InstalledCluster) -> None:
    world.objects.create(holder("app-1"))
    assert world.uninstall(force=True) == Exit.DONE
    text = world.screen.text
    assert "gpu-1: /var/lib/vcuda stays, because running containers use its" in text
    assert "A container that restarts from now on is not admitted" in text
    assert not [one for one in fake(world).writes if "gpushare-clean" in one]
    assert world.label("gpu-1") is None


def test_a_node_that_is_away_keeps_its_folder_and_that_is_said(
    world: InstalledCluster,
) -> None:
    away = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    world.objects.merge(Ref("v1", "Node", "gpu-1"), away, subresource="status")
    assert world.uninstall() == Exit.STOPPED
    text = world.screen.text
    assert "/var/lib/vcuda stays on gpu-1 (the node is not Ready)" in text
    assert "as root: rm -rf /var/lib/vcuda" in text
    assert world.ours() == []
    assert world.label("gpu-1") is None


def test_a_dry_run_shows_all_and_touches_nothing(world: InstalledCluster) -> None:
    before = world.versions()
    assert world.uninstall(dry_run=True) == Exit.DONE
    assert world.versions() == before
    assert world.files.read(SCHEDULER) == AFTER
    text = world.screen.text
    assert "- DaemonSet kube-system/gpushare-device-plugin" in text
    assert '- Node gpu-1: label baidu.com/vcuda: "true"' in text
    assert "- Node gpu-1: annotation baidu.com/vcuda-cards" in text
    assert "-# ours" in text


def test_it_asks(world: InstalledCluster) -> None:
    before = world.versions()
    assert world.uninstall("n") == Exit.STOPPED
    assert world.versions() == before
    assert world.uninstall("y") == Exit.DONE
    (asked,) = world.screen.asked
    assert asked.startswith("Remove 18 objects; label, annotations and files on gpu")
    assert asked.endswith(f"; our part of {SCHEDULER}?")


def test_missing_rights_are_named_at_once(world: InstalledCluster) -> None:
    fake(world).denied.update(("delete daemonsets.apps", "delete clusterroles.x"))
    fake(world).denied.add("delete clusterroles.rbac.authorization.k8s.io")
    assert world.uninstall() == Exit.REFUSED
    assert (
        "you may not delete clusterroles.rbac.authorization.k8s.io, delete "
        "daemonsets.apps in kube-system"
    ) in world.screen.text


def test_nobody_is_asked_for_what_only_the_proof_takes(world: InstalledCluster) -> None:
    """Nothing is proved at the end; kubelet looks after the old one by itself."""
    fake(world).denied.add("patch pods")
    assert world.uninstall() == Exit.DONE, world.screen.text


def test_elsewhere_than_on_the_control_plane_it_is_refused(
    world: InstalledCluster,
) -> None:
    world.files.remove(SCHEDULER)
    assert world.uninstall() == Exit.REFUSED
    assert "runs no kube-scheduler of kubeadm or k3s" in world.screen.text


def test_operators_notes_on_nodes_go_too(world: InstalledCluster) -> None:
    notes = {names.CORDON: "GPU-1", names.CLEAR: "GPU-2", "other": "stays"}
    world.objects.merge(Ref("v1", "Node", "cp"), {"metadata": {"annotations": notes}})
    assert world.uninstall() == Exit.DONE
    node = world.objects.get(Ref("v1", "Node", "cp")) or {}
    assert node["metadata"]["annotations"] == {"other": "stays"}


def test_the_guard_may_linger_for_a_moment(world: InstalledCluster) -> None:
    """The API server goes on denying for a moment after the policies are gone."""
    merge, denials = world.objects.merge, iter(range(2))

    def lingering(ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        if (
            ref.kind == "Node"
            and "metadata" in patch
            and next(denials, None) is not None
        ):
            raise Forbidden("the guard")
        return merge(ref, patch, subresource=subresource)

    fake(world).merge = lingering
    assert world.uninstall() == Exit.DONE
    assert world.label("gpu-1") is None


def test_a_scheduler_that_stays_down_is_told(world: InstalledCluster) -> None:
    world.scheduler.ill["restore"] = "x"
    world.scheduler.wait = lambda _: "CrashLoopBackOff"
    assert world.uninstall() == Exit.STOPPED
    text = world.screen.text
    assert "has its old configuration again, but does not start: CrashLoop" in text
    assert "Done: the device plugins, their files on the nodes. " in text


def test_what_an_older_version_or_the_second_scheduler_left_goes_too(
    world: InstalledCluster,
) -> None:
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
    left = {(ref.kind, ref.name) for ref in fake(world).kept if ref.kind != "Node"}
    assert left == {
        ("ConfigMap", "gpushare-of-yesterday"),
        ("Lease", "kube-scheduler"),
    }


def test_one_zero_of_two_is_not_the_end(world: InstalledCluster) -> None:
    """kubelet forgets one resource after the other."""
    world.uninstall()
    half = {"status": {"capacity": {names.MEMORY: "29"}}}
    world.objects.merge(Ref("v1", "Node", "gpu-1"), half, subresource="status")
    world.nodes.remembers = True
    assert world.uninstall(wait=True) == Exit.STOPPED
    node = world.objects.get(Ref("v1", "Node", "gpu-1")) or {}
    assert node["status"]["capacity"][names.CORE] == "0"
