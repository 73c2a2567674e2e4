"""Objects of a Helm release: ``install`` leaves them, ``--host-only`` uses them."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.facts import DEVICE_PLUGIN, EXTENDER, SYSTEM
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.hosts import install_hosts
from gpusharectl.installer.kube_scheduler.job import SchedulerTarget
from gpusharectl.installer.manifests import load_manifests, with_settings
from gpusharectl.installer.options import POLICY, InstallOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.survey import object_owner
from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.gpusharectl.installer.installed_cluster import (
    AFTER,
    BEFORE,
    CERTIFICATE,
    CONTROL_PLANE,
    SCHEDULER,
    InstalledCluster,
    node,
)
from tests.gpusharectl.installer.test_uninstall import scheduler_of

HELMS: Json = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {
        "meta.helm.sh/release-name": "gpu",
        "meta.helm.sh/release-namespace": "kube-system",
    },
}
INSTANCE: Json = {"labels": {"app.kubernetes.io/instance": "cards"}}
BY_ARGO_CD: Json = {"managedFields": [{"manager": "argocd-controller"}]}
PLUGIN = Ref("apps/v1", "DaemonSet", DEVICE_PLUGIN, SYSTEM)


def release(objects: Objects, overlay: str = "kubeadm", **settings: str) -> None:
    """What ``helm install`` makes."""
    bodies = with_settings(load_manifests(overlay), "extender", settings)
    for body in bodies:
        objects.create(body)
        objects.merge(Ref.of(body), {"metadata": HELMS})


def hosts_only(world: InstalledCluster, *answers: str, **options: Any) -> Exit:
    return world.install(*answers, nodes=(), host_only=True, **options)


def test_install_changes_no_object_of_a_release(world: InstalledCluster) -> None:
    """It names the release, and how to change it and kube-scheduler."""
    release(world.objects)
    before = world.versions()
    assert world.install() is Exit.REFUSED
    said = world.screen.text
    assert "Helm's release gpu owns" in said
    assert f"DaemonSet {DEVICE_PLUGIN}" in said
    assert "gpusharectl install --host-only" in said
    assert world.versions() == before
    assert world.files.read(SCHEDULER) == BEFORE


def test_nor_what_a_failed_release_has_left(world: InstalledCluster) -> None:
    """Any object that would be changed is looked at, before one is."""
    (account, *_) = load_manifests("kubeadm")
    metadata = {
        **account["metadata"],
        "annotations": HELMS["annotations"],
        "labels": HELMS["labels"],
    }
    world.objects.create({**account, "metadata": metadata})
    before = world.versions()
    assert world.install() is Exit.REFUSED
    assert f"owns ServiceAccount {metadata['name']}" in world.screen.text
    assert world.uninstall() is Exit.REFUSED
    assert "remove it there first" in world.screen.text
    assert world.versions() == before


def test_uninstall_leaves_a_release_to_helm(world: InstalledCluster) -> None:
    """After ``helm uninstall`` it removes what is not Helm's."""
    release(world.objects)
    assert hosts_only(world) is Exit.DONE
    world.objects.merge(
        Ref("v1", "Node", "gpu-1"),
        {"metadata": {"labels": {"baidu.com/vcuda": "true"}}},
    )
    before = world.versions()
    assert world.uninstall() is Exit.REFUSED
    assert "Helm's release gpu owns" in world.screen.text
    assert "remove it there first" in world.screen.text
    assert world.versions() == before
    for body in load_manifests("kubeadm"):
        world.objects.delete(Ref.of(body))
    world.nodes.step()
    assert world.uninstall() is Exit.DONE, world.screen.text
    assert world.files.read(SCHEDULER) == BEFORE
    assert world.label("gpu-1") is None


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        (HELMS, "Helm's release gpu"),
        (
            {
                "annotations": {
                    "argocd.argoproj.io/tracking-id": "cards:apps/DaemonSet:…"
                }
            },
            "Argo CD's application cards",
        ),
        (
            {"labels": {"kustomize.toolkit.fluxcd.io/name": "cards"}},
            "Flux's Kustomization cards",
        ),
        ({**INSTANCE, **BY_ARGO_CD}, "Argo CD's application cards"),
        (INSTANCE, ""),
        ({"labels": {"app.kubernetes.io/managed-by": "gpusharectl"}}, ""),
    ],
)
def test_the_owner_of_an_object(metadata: Json, owner: str) -> None:
    """By what each tool writes on all that it applies."""
    assert object_owner({"kind": "DaemonSet", "metadata": metadata}) == owner


def test_hosts_only_sets_up_kube_scheduler(world: InstalledCluster) -> None:
    """And changes no object; a second run changes nothing at all."""
    release(world.objects)
    world.nodes.step()
    before = world.versions()
    assert hosts_only(world) is Exit.DONE, world.screen.text
    assert world.files.read(SCHEDULER) == AFTER
    assert world.scheduler.did[-1] == "probe"
    assert world.versions() == before
    assert "Done: kube-scheduler on cp calls the extender." in world.screen.text
    assert hosts_only(world) is Exit.DONE
    assert world.versions() == before


NOT_READY = {"conditions": [{"type": "Ready", "status": "False"}]}
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
NOT_MADE = " on cp: its pod, which is not made there: "
NO_LABEL = "the node has no such label"
NOWHERE = f"cp: it is not Ready; gpu-1: its node affinity is {CONTROL_PLANE} Exists, "


@pytest.mark.parametrize(
    ("spec", "of_node", "status", "why"),
    [
        (
            {"nodeSelector": {"zone": "a"}},
            {},
            {},
            f"{NOT_MADE}its nodeSelector is zone=a, {NO_LABEL}",
        ),
        (
            {"tolerations": None, "nodeSelector": {"zone": "a"}},
            {"spec": {"taints": [TAINT]}},
            {},
            f"{NOT_MADE}it does not tolerate the taint team=a:NoSchedule",
        ),
        (
            {"tolerations": None, "nodeSelector": {"zone": "a"}},
            {"spec": {"unschedulable": True}},
            {},
            f"{NOT_MADE}its nodeSelector is zone=a, {NO_LABEL}",
        ),
        (
            {},
            {},
            {"status": NOT_READY},
            f": a Ready node that it fits ({NOWHERE}{NO_LABEL})",
        ),
    ],
    ids=["selector", "taint", "a state that DaemonSets tolerate", "not Ready"],
)
def test_why_a_host_gets_no_pod(
    world: InstalledCluster, spec: Json, of_node: Json, status: Json, why: str
) -> None:
    """The wait says at once what the API knows of it, and so does its end."""
    release(world.objects)
    extender = Ref("apps/v1", "DaemonSet", EXTENDER, SYSTEM)
    world.objects.merge(extender, {"spec": {"template": {"spec": spec}}})
    host = Ref("v1", "Node", "cp")
    world.objects.merge(host, of_node)
    world.objects.merge(host, status, subresource="status")
    world.nodes.step()
    assert hosts_only(world) is Exit.STOPPED
    assert str(world.screen.waits[0]) == f"{EXTENDER}{why}"
    assert f"{EXTENDER}{why}" in world.screen.text


def test_a_dry_run_shows_the_files(world: InstalledCluster) -> None:
    """As a diff; nothing is changed."""
    release(world.objects)
    assert hosts_only(world, dry_run=True) is Exit.DONE
    assert "+# ours" in world.screen.text
    assert "gpusharectl install --host-only --yes" in world.screen.text
    assert world.files.read(SCHEDULER) == BEFORE


def test_other_hosts_are_set_up_by_jobs(objects: FakeObjects, tmp_path: Any) -> None:
    """After this one, if the extender needs no certificates; and it is proved."""
    world = InstalledCluster(objects, tmp_path)
    world.populate(node("cp-2", "10.0.0.3", labels={CONTROL_PLANE: ""}))
    release(world.objects)
    assert hosts_only(world) is Exit.DONE, world.screen.text
    assert "apply on cp-2" in world.scheduler.did
    assert world.scheduler.did[-1] == "probe"


@pytest.mark.parametrize("overlay", ["kubeadm", "with-tls"])
def test_jobs_write_the_certificates_that_the_extender_waits_for(
    objects: FakeObjects, tmp_path: Any, overlay: str
) -> None:
    """With TLS before its rollout, which would not end otherwise."""
    world = InstalledCluster(objects, tmp_path)
    world.populate(node("cp-2", "10.0.0.3", labels={CONTROL_PLANE: ""}))
    release(world.objects, overlay)
    world.nodes.stuck.add(f"{EXTENDER}-cp-2")
    assert hosts_only(world) is Exit.STOPPED
    assert ("apply on cp-2" in world.scheduler.did) is (overlay == "with-tls")


def test_the_extenders_settings_say_how(world: InstalledCluster) -> None:
    """With TLS the certificates are written; policy frag is kube-scheduler's too."""
    release(world.objects, "with-tls", **{POLICY: "frag"})
    registry = {"imagePullSecrets": [{"name": "registry"}]}
    extender = Ref("apps/v1", "DaemonSet", EXTENDER, SYSTEM)
    world.objects.merge(extender, {"spec": {"template": {"spec": registry}}})
    targets: list[SchedulerTarget] = []
    context = world.context()

    def remembered(target: SchedulerTarget) -> Any:
        targets.append(target)
        return world.scheduler

    watched = replace(context, host=remembered)
    code = install_hosts(watched, InstallOptions(host_only=True, yes=True))
    assert code is Exit.DONE, world.screen.text
    assert world.files.read(CERTIFICATE) is not None
    assert {(one.tls, one.frag, one.image, one.pull_secrets) for one in targets} == {
        (True, True, "gpushare:0.1.0", ("registry",))
    }


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ("", f"no extender is installed (DaemonSet {SYSTEM}/{EXTENDER})"),
        ("second-scheduler", "nothing is left to do on the hosts"),
    ],
)
def test_hosts_without_an_extender_are_refused(
    world: InstalledCluster, overlay: str, said: str
) -> None:
    """None is called that is not there."""
    if overlay:
        release(world.objects, overlay)
    assert hosts_only(world) is Exit.REFUSED
    assert said in world.screen.text
    assert world.files.read(SCHEDULER) == BEFORE


def test_a_second_scheduler_does_not_hide_what_is_left_on_hosts(
    world: InstalledCluster,
) -> None:
    """kube-scheduler there would go on asking an extender that is gone."""
    release(world.objects, "second-scheduler")
    world.objects.create(scheduler_of("cp", stamped=True))
    assert hosts_only(world) is Exit.REFUSED
    said = " ".join(world.screen.text.split())
    assert "kube-scheduler on cp still calls an extender that is gone" in said
    assert "nothing is left to do" not in said
