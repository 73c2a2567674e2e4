"""``install`` from the checks to the first look: on objects in memory."""

from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.objects import Ref
from gpusharectl.install.context import SchedulerTarget
from gpusharectl.install.progress import Exit
from gpusharectl.kube_scheduler.host_files import FileChange, HostFiles
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.installed_cluster import CERTIFICATE, InstalledCluster
from tests.gpusharectl.install.stand_ins import AFTER, BEFORE, SCHEDULER, node

PLUGIN = Ref("apps/v1", "DaemonSet", "gpushare-device-plugin", "kube-system")


@pytest.fixture
def world(tmp_path: Path) -> InstalledCluster:
    return InstalledCluster(FakeObjects(), tmp_path).populate()


def fake(world: InstalledCluster) -> FakeObjects:
    assert isinstance(world.objects, FakeObjects)
    return world.objects


def test_from_nothing_to_cards(world: InstalledCluster) -> None:
    """One command: objects, stanza, label, cards found."""
    assert world.install() == Exit.DONE, world.screen.text
    assert world.label("gpu-1") == "true"
    assert world.label("cp") is None
    assert world.files.read(SCHEDULER) == AFTER
    assert "gpu-1: 1 card, 29 units" in world.screen.text
    assert world.scheduler.did == ["check", "apply", "wait", "probe"]


def test_the_promise_of_the_order(world: InstalledCluster) -> None:
    """The extender is applied and Ready before the stanza, the label comes last."""
    seen = []
    apply = world.scheduler.apply

    def spy(plan: Any) -> None:
        pods = {ref.name for ref in fake(world).kept if ref.kind == "Pod"}
        seen.append((pods, world.label("gpu-1")))
        apply(plan)

    world.scheduler.apply = spy
    assert world.install() == Exit.DONE
    assert seen == [({"gpushare-extender-cp"}, None)]


def test_again_changes_nothing(world: InstalledCluster) -> None:
    world.install()
    before = world.versions()
    fake(world).writes.clear()
    assert world.install() == Exit.DONE
    assert world.versions() == before
    assert not [one for one in fake(world).writes if not one.startswith("apply")]
    assert "none changed" in world.screen.text


def test_again_without_nodes_takes_those_labelled(world: InstalledCluster) -> None:
    world.install()
    assert world.install(nodes=()) == Exit.DONE
    assert "gpu-1: already labelled" in world.screen.text


def test_a_node_of_before_stays_when_another_is_added(world: InstalledCluster) -> None:
    world.install()
    assert world.install(nodes=("cp",)) == Exit.DONE
    assert (world.label("gpu-1"), world.label("cp")) == ("true", "true")


def test_a_dry_run_touches_nothing_and_shows_everything(
    world: InstalledCluster,
) -> None:
    before = world.picture()
    assert world.install(dry_run=True, yes=False) == Exit.DONE
    assert world.picture() == before
    assert fake(world).writes.count("") == 0
    assert not [one for one in fake(world).writes if not one.startswith("create Node")]
    assert world.files.read(SCHEDULER) == BEFORE
    text = world.screen.text
    assert "+++ DaemonSet kube-system/gpushare-extender" in text
    assert "+kind: ValidatingAdmissionPolicyBinding" in text
    assert '+ Node gpu-1: label baidu.com/vcuda: "true"' in text
    assert f"+++ {SCHEDULER}" in text
    assert "+# ours" in text
    assert text.endswith("To install: gpusharectl install --nodes gpu-1")


def test_a_dry_run_of_what_is_there_shows_no_change(world: InstalledCluster) -> None:
    world.install()
    assert world.install(dry_run=True) == Exit.DONE
    assert "+" not in world.screen.text.partition("nothing was changed")[0]


def test_an_upgrade_shows_just_its_lines(world: InstalledCluster) -> None:
    world.install()
    assert world.install(dry_run=True, image="gpushare:9") == Exit.DONE
    lines = world.screen.text.splitlines()
    changed = [line.strip() for line in lines if line.startswith(("+ ", "- "))]
    assert sorted(map(str.split, changed)) == [
        ["+", "image:", "gpushare:9"],
        ["+", "image:", "gpushare:9"],
        ["-", "image:", "gpushare:0.1.0"],
        ["-", "image:", "gpushare:0.1.0"],
    ]


def images(world: InstalledCluster) -> dict[str, str]:
    """The image of each workload of ours."""
    found = world.objects.list("apps/v1", "DaemonSet", namespace="kube-system")
    return {
        body["metadata"]["name"]: container["image"]
        for body in found
        for container in body["spec"]["template"]["spec"]["containers"]
    }


def test_again_without_an_image_keeps_the_one_that_runs(
    world: InstalledCluster,
) -> None:
    """Whatever it is run for: monitoring, a node more, an upgrade of Kubernetes."""
    ours = "your-registry/gpushare:0.1.0"
    assert world.install(image=ours) == Exit.DONE
    assert "stays" not in world.screen.text
    assert world.install(with_monitoring=True) == Exit.DONE
    assert images(world) == {
        "gpushare-extender": ours,
        "gpushare-device-plugin": ours,
        "gpushare-exporter": ours,
    }
    kept = f"the image stays {ours}; --image changes it   ok"
    assert kept in world.screen.lines
    before = world.versions()
    assert world.install(nodes=("cp",)) == Exit.DONE
    assert "none changed" in world.screen.text
    assert world.versions().keys() >= before.keys()
    assert set(images(world).values()) == {ours}
    assert world.install(image="gpushare:9", with_monitoring=True) == Exit.DONE
    assert set(images(world).values()) == {"gpushare:9"}
    assert kept not in world.screen.lines


def test_each_keeps_its_own_image(world: InstalledCluster) -> None:
    """One that somebody gave to a single part is not given to the others."""
    world.install()
    spec = (world.objects.get(PLUGIN) or {})["spec"]
    spec["template"]["spec"]["containers"][0]["image"] = "gpushare:debug"
    world.objects.merge(PLUGIN, {"spec": spec})
    assert world.install() == Exit.DONE
    assert images(world) == {
        "gpushare-extender": "gpushare:0.1.0",
        "gpushare-device-plugin": "gpushare:debug",
    }


def has_tls(world: InstalledCluster) -> bool:
    ref = Ref("apps/v1", "DaemonSet", "gpushare-extender", "kube-system")
    (container,) = (world.objects.get(ref) or {})["spec"]["template"]["spec"][
        "containers"
    ]
    return "GPUSHARE_TLS_CERT" in {one["name"] for one in container["env"]}


def test_again_without_tls_keeps_it_and_renews_it(world: InstalledCluster) -> None:
    """Only ``--no-tls`` takes it away; a new install has none."""
    wishes = []
    made = world.certificates

    def certificates(wish: SchedulerTarget) -> list[FileChange]:
        wishes.append(wish.tls)
        return made(wish)

    world.certificates = certificates
    assert world.install() == Exit.DONE
    assert not has_tls(world)
    assert "TLS" not in world.screen.text
    assert world.install(tls=True) == Exit.DONE
    world.files.remove(CERTIFICATE)
    assert world.install() == Exit.DONE, world.screen.text
    assert has_tls(world)
    assert wishes == [True, True]
    assert f"written: {CERTIFICATE}" in world.screen.text
    kept = "the extender has TLS and keeps it; --no-tls removes it   ok"
    assert kept in world.screen.lines
    assert world.install(tls=False) == Exit.DONE
    assert not has_tls(world)
    assert "TLS" not in world.screen.text


def test_it_asks_which_nodes_and_whether(world: InstalledCluster) -> None:
    sign = {"nvidia.com/gpu.present": "true"}
    world.objects.create(node("gpu-2", "10.0.0.3", labels=sign))
    assert world.install("gpu-7", "", "y", nodes=()) == Exit.DONE, world.screen.text
    assert world.screen.asked[0] == "Which nodes share their cards? [gpu-2]"
    assert "gpu-7 is no node of this cluster; its nodes are cp, gpu-1, gpu-2." in (
        world.screen.lines
    )
    assert "gpu-2: label nvidia.com/gpu.present" in world.screen.lines
    assert world.screen.asked[-1].startswith("Change 18 objects in the cluster; ")
    assert world.label("gpu-2") == "true"
    assert world.label("gpu-1") is None


def test_no_is_no(world: InstalledCluster) -> None:
    before = world.picture()
    assert world.install("n") == Exit.STOPPED
    assert world.picture() == before
    assert "you said no; nothing was changed" in world.screen.text


def test_all_gpu_nodes_are_those_with_signs(world: InstalledCluster) -> None:
    sign = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    world.objects.create(node("gpu-2", "10.0.0.3", labels=sign))
    assert world.install(nodes=(), all_gpu_nodes=True) == Exit.DONE
    assert (world.label("gpu-1"), world.label("gpu-2")) == (None, "true")


def test_a_node_without_a_driver_is_told(world: InstalledCluster) -> None:
    """One node has cards, so it is done; the other's plugin goes on looking."""
    world.nodes.without_cards.add("cp")
    fake(world).logs["gpushare-device-plugin-cp"] = (
        '{"level": "WARNING", "event": "no driver yet", "because": "not found"}\n'
    )
    assert world.install(nodes=("cp", "gpu-1")) == Exit.DONE
    assert "cp: no NVIDIA driver answered. " in world.screen.text
    assert "Its device plugin says: no driver yet: not found" in world.screen.text


def test_no_driver_anywhere_is_trouble(world: InstalledCluster) -> None:
    world.nodes.without_cards.add("gpu-1")
    assert world.install() == Exit.STOPPED
    assert "no card is offered; gpu-1: no NVIDIA driver answered" in world.screen.text
    assert "nvidia-smi must answer" in world.screen.text


def test_what_never_gets_ready_is_told_when_time_is_up(world: InstalledCluster) -> None:
    world.nodes.stuck.add("gpu-1")
    assert world.install(timeout_s=60.0) == Exit.STOPPED
    text = world.screen.text
    assert "not ready within 60 s: gpushare-device-plugin on gpu-1: kubelet" in text
    assert "Not done: the rollout of the device plugins, the search" in text


def test_a_disk_that_is_full_leaves_the_old_file(world: InstalledCluster) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device", SCHEDULER)

    make, world.scheduler.apply = world.scheduler.apply, full
    assert world.install() == Exit.STOPPED
    assert f"{SCHEDULER}: No space left on device" in world.screen.text
    assert world.files.read(SCHEDULER) == BEFORE
    world.scheduler.apply = make
    assert world.install() == Exit.DONE


def test_old_clusters_go_without_the_guard(tmp_path: Path) -> None:
    objects = FakeObjects("v1.29.4")
    kind = "ValidatingAdmissionPolicy"
    objects.unserved.update((kind, f"{kind}Binding"))
    world = InstalledCluster(objects, tmp_path).populate()
    assert world.install() == Exit.DONE
    assert not [ref for ref in objects.kept if ref.kind.startswith(kind)]
    assert "before Kubernetes 1.30 there are no" in world.screen.text


@pytest.mark.parametrize(
    ("handlers", "there", "told", "expected"),
    [
        ([], False, None, None),
        ([], True, None, "nvidia"),
        (["runc", "nvidia"], True, None, "nvidia"),
        (["runc"], True, None, None),
        ([], True, False, None),
        ([], False, True, "nvidia"),
    ],
)
def test_the_plugin_asks_for_the_runtime_class_where_there_is_one(
    world: InstalledCluster,
    handlers: list[str],
    there: bool,
    told: bool | None,
    expected: str | None,
) -> None:
    names_of = {"runtimeHandlers": [{"name": one} for one in handlers]}
    world.objects.merge(
        Ref("v1", "Node", "gpu-1"), {"status": names_of}, subresource="status"
    )
    if there:
        nvidia = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
        world.objects.create(nvidia)
    assert world.install(runtime_class=told) == Exit.DONE
    spec = (world.objects.get(PLUGIN) or {})["spec"]["template"]["spec"]
    assert spec.get("runtimeClassName") == expected


def test_the_runtime_class_is_found_without_the_right_to_list_them(
    world: InstalledCluster,
) -> None:
    """Else an install run again would take it from the device plugin, and its cards."""
    world.objects.create(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
    )
    fake(world).denied.add("list runtimeclasses.node.k8s.io")
    assert world.install() == Exit.DONE
    spec = (world.objects.get(PLUGIN) or {})["spec"]["template"]["spec"]
    assert spec.get("runtimeClassName") == "nvidia"


def test_other_control_planes_come_first_the_leader_last(tmp_path: Path) -> None:
    labels = {"node-role.kubernetes.io/control-plane": ""}
    world = InstalledCluster(FakeObjects(), tmp_path).populate(
        node("cp-2", "10.0.0.8", labels=labels), node("cp-3", "10.0.0.9", labels=labels)
    )
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
        "spec": {"holderIdentity": "cp-2_0f3c"},
    }
    world.objects.create(lease)
    assert world.install() == Exit.DONE
    did = [one for one in world.scheduler.did if one not in ("check", "apply")]
    assert did == ["apply on cp-3", "wait", "apply on cp-2", "probe"]


def test_trouble_on_another_host_says_where(tmp_path: Path) -> None:
    labels = {"node-role.kubernetes.io/control-plane": ""}
    more = node("cp-2", "10.0.0.8", labels=labels)
    world = InstalledCluster(FakeObjects(), tmp_path).populate(more)
    world.scheduler.ill["cp-2"] = "its disk is full"
    assert world.install() == Exit.STOPPED
    assert "on cp-2: its disk is full" in world.screen.text
    assert world.label("gpu-1") is None


def test_the_second_scheduler_touches_no_file(tmp_path: Path) -> None:
    world = InstalledCluster(FakeObjects(), tmp_path).populate()
    world.files = HostFiles(tmp_path / "elsewhere")
    counts = dict.fromkeys(("replicas", "availableReplicas", "updatedReplicas"), 2)
    ref = Ref("apps/v1", "Deployment", "gpushare-scheduler", "kube-system")
    step = world.nodes.step

    def and_deployments() -> None:
        step()
        if body := world.objects.get(ref):
            ready = {"observedGeneration": body["metadata"]["generation"], **counts}
            world.objects.merge(ref, {"status": ready}, subresource="status")

    world.nodes.step = and_deployments
    # Only the proof that a host's kube-scheduler asks us takes it.
    fake(world).denied.add("patch pods")
    code = world.install(second_scheduler=True, scheduler_image="ks:1")
    assert code == Exit.DONE, world.screen.text
    assert world.scheduler.did == []
    pod = (world.objects.get(ref) or {})["spec"]["template"]["spec"]
    images = {one["name"]: one["image"] for one in pod["containers"]}
    assert images == {"kube-scheduler": "ks:1", "extender": "gpushare:0.1.0"}
    assert world.install(second_scheduler=True) == Exit.DONE, world.screen.text
    other = {"second_scheduler": True, "scheduler_image": "ks:2"}
    assert world.install(image="gpushare:9", **other) == Exit.DONE
    assert world.install(second_scheduler=True) == Exit.DONE
    pod = (world.objects.get(ref) or {})["spec"]["template"]["spec"]
    images = {one["name"]: one["image"] for one in pod["containers"]}
    assert images == {"kube-scheduler": "ks:2", "extender": "gpushare:9"}


def test_certificates_lie_there_before_the_extender_starts(tmp_path: Path) -> None:
    """This host's are written, the other hosts' come by the Job that sets them."""
    labels = {"node-role.kubernetes.io/control-plane": ""}
    more = node("cp-2", "10.0.0.8", labels=labels)
    world = InstalledCluster(FakeObjects(), tmp_path).populate(more)
    seen: list[tuple[bool, list[str]]] = []
    step = world.nodes.step

    def looking() -> None:
        there = world.files.read(CERTIFICATE) is not None
        seen.append((there, list(world.scheduler.did)))
        step()

    world.nodes.step = looking
    assert world.install(tls=True) == Exit.DONE, world.screen.text
    assert seen[0] == (True, ["apply on cp-2"])
    assert f"written: {CERTIFICATE}" in world.screen.text
    assert world.install(tls=True) == Exit.DONE
    assert "all certificates are valid" in world.screen.text


def test_k3s_is_told_to_restart(tmp_path: Path) -> None:
    """Its scheduler reads the files later, so nothing is proved at first."""
    world = InstalledCluster(FakeObjects(), tmp_path).populate()
    world.files.remove(SCHEDULER)
    world.files.write("/etc/rancher/k3s/k3s.yaml", b"")
    words = {"this_node": "cp"}
    assert world.install(**words) == Exit.DONE, world.screen.text
    assert world.scheduler.did == ["check", "apply", "wait"]
    assert "  systemctl restart k3s" in world.screen.lines
    assert world.install(**words) == Exit.DONE
    assert world.scheduler.did[-1] == "probe"
