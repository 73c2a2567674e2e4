"""``install`` from the checks to the first look: on objects in memory."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.installer.options import InstallOptions
from gpusharectl.installer.progress import Exit, Screen
from gpusharectl.installer.run import run_install
from tests.gpusharectl.golden import assert_as_kept
from tests.gpusharectl.installer.installed_cluster import (
    AFTER,
    CERTIFICATE,
    CONTROL_PLANE,
    SCHEDULER,
    InstalledCluster,
    node,
    runtime_class,
)

PLUGIN, EXTENDER = "gpushare-device-plugin", "gpushare-extender"


def test_the_promise_of_the_order(world: InstalledCluster) -> None:
    """The extender is applied and Ready before the stanza, the label comes last."""
    seen, apply = [], world.scheduler.apply

    def spy(plan: object) -> None:
        pods = {ref.name for ref in world.objects.kept if ref.kind == "Pod"}
        seen.append((pods, world.label("gpu-1")))
        apply(plan)

    world.scheduler.apply = spy
    assert world.install() == Exit.DONE, world.screen.text
    assert seen == [({"gpushare-extender-cp"}, None)]
    assert (world.label("gpu-1"), world.label("cp")) == ("true", None)
    assert world.files.read(SCHEDULER) == AFTER
    assert "gpu-1: 1 card, 29 units" in world.screen.text
    assert world.scheduler.did == ["check", "apply", "wait", "probe"]


def test_a_new_node_does_not_replace_those_labelled(world: InstalledCluster) -> None:
    world.install()
    assert world.install(nodes=("cp",)) == Exit.DONE
    assert (world.label("gpu-1"), world.label("cp")) == ("true", "true")


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_screen(world: InstalledCluster, dry_run: bool) -> None:
    """What changes is a list; at the end a first pod, or how to begin."""
    page = io.StringIO()
    shown = Console(file=page, force_terminal=True, width=80, color_system=None)
    world.objects.create(control_plane("cp-2"))
    context = replace(world.context(), screen=Agreeing(shown))
    options = InstallOptions(nodes=("gpu-1",), dry_run=dry_run)
    assert run_install(context, options) == Exit.DONE
    lines = [f"{line.rstrip()}\n" for line in page.getvalue().splitlines()]
    short = "".join([*lines[:12], "...\n", *lines[-2:]] if dry_run else lines)
    assert_as_kept(f"install-{'dry-run' if dry_run else 'first'}", short)


def test_a_dry_run_asks_for_nodes_where_none_is_known(world: InstalledCluster) -> None:
    """The first command that a newcomer runs; later it takes those labelled."""
    assert world.install("gpu-1", nodes=(), dry_run=True) == Exit.DONE
    assert '+ Node gpu-1: label baidu.com/vcuda: "true"' in world.screen.text
    world.install()
    assert world.install(nodes=(), dry_run=True, yes=False) == Exit.DONE


def test_yes_without_nodes_says_what_is_missing(world: InstalledCluster) -> None:
    assert world.install(nodes=()) == Exit.USAGE
    assert "--yes asks no question, and no node is named" in world.screen.text


class Agreeing(Screen):
    """A screen in front of somebody who says yes."""

    def confirm(self, question: str, remedy: str = "") -> None:
        self.note(f"{question} [y/N]: y")


def images(world: InstalledCluster) -> dict[str, str]:
    """The image of each workload of ours."""
    found = world.objects.list("apps/v1", "DaemonSet", namespace="kube-system")
    names = [body["metadata"]["name"] for body in found]
    return {name: world.spec(name)["containers"][0]["image"] for name in names}


def test_again_the_image_stays(world: InstalledCluster) -> None:
    """Whatever it is run for: monitoring, a node more, an upgrade of Kubernetes."""
    ours = "your-registry/gpushare:0.1.0"
    assert world.install(image=ours) == Exit.DONE
    assert "stays" not in world.screen.text
    assert world.install(with_monitoring=True) == Exit.DONE
    assert images(world) == dict.fromkeys([EXTENDER, PLUGIN, "gpushare-exporter"], ours)
    kept = f"the image stays {ours}; --image changes it   ok"
    assert kept in world.screen.lines
    assert world.install(image="gpushare:9", with_monitoring=True) == Exit.DONE
    assert set(images(world).values()) == {"gpushare:9"}
    assert kept not in world.screen.lines


def test_it_asks_which_nodes_and_whether(world: InstalledCluster) -> None:
    sign = {"nvidia.com/gpu.present": "true"}
    world.objects.create(node("gpu-2", "10.0.0.3", labels=sign))
    before = world.picture()
    assert world.install("n") == Exit.STOPPED
    assert world.picture() == before
    assert "you said no; nothing was changed" in world.screen.text
    world.files.write("/dev/nvidiactl", b"")
    assert world.install("gpu-7", "", "y", nodes=()) == Exit.DONE, world.screen.text
    assert world.screen.asked[0] == "Which nodes share their cards? [cp, gpu-2]"
    for line in (
        "gpu-7 is no node of this cluster; its nodes are cp, gpu-1, gpu-2.",
        "gpu-2: label nvidia.com/gpu.present",
        "cp: the driver is loaded",
    ):
        assert line in world.screen.lines
    begin = world.screen.lines.index("== Changes")
    assert world.screen.lines[begin + 1 : begin + 5] == [
        "- objects in the cluster: 20 new",
        f"- {SCHEDULER}",
        "- kube-scheduler restarts; no pod is scheduled for some seconds",
        '- label baidu.com/vcuda: "true" on cp, gpu-2, which starts the device plugin',
    ]
    labels = [world.label(name) for name in ("cp", "gpu-1", "gpu-2")]
    assert labels == ["true", None, "true"]


def test_all_gpu_nodes_are_those_with_signs(world: InstalledCluster) -> None:
    sign = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    world.objects.create(node("gpu-2", "10.0.0.3", labels=sign))
    assert world.install(nodes=(), all_gpu_nodes=True) == Exit.DONE
    assert (world.label("gpu-1"), world.label("gpu-2")) == (None, "true")


def test_a_node_without_a_driver_is_told(world: InstalledCluster) -> None:
    """One node has cards, so it is done; the other's plugin goes on looking."""
    world.nodes.without_cards.add("cp")
    world.objects.logs["gpushare-device-plugin-cp"] = (
        '{"level": "WARNING", "event": "no driver yet", "because": "not found"}\n'
    )
    assert world.install(nodes=("cp", "gpu-1")) == Exit.DONE
    assert "cp: no NVIDIA driver answered. " in world.screen.text
    assert "Its device plugin says: no driver yet: not found" in world.screen.text
    world.uninstall(wait=True)
    assert world.install(nodes=("cp",)) == Exit.STOPPED
    assert "no card is offered; cp: no NVIDIA driver answered" in world.screen.text
    assert "nvidia-smi must answer" in world.screen.text
    # The first pod is shown at the first end, whichever run comes to it.
    world.nodes.without_cards.clear()
    shown = []
    for _ in range(2):
        assert world.install(nodes=("cp",)) == Exit.DONE
        shown.append("kubectl logs first" in world.screen.text)
    assert shown == [True, False]


def test_old_clusters_go_without_the_guard(world: InstalledCluster) -> None:
    kind = "ValidatingAdmissionPolicy"
    world.objects.unserved.update((kind, f"{kind}Binding"))
    assert world.install() == Exit.DONE
    assert not [ref for ref in world.objects.kept if ref.kind.startswith(kind)]
    assert "before Kubernetes 1.30 there are no" in world.screen.text


@pytest.mark.parametrize(
    ("handlers", "there", "denied", "told", "expected"),
    [
        ([], False, "", None, None),
        ([], True, "", None, "nvidia"),
        # Else an install run again would take it from the device plugin.
        ([], True, "list runtimeclasses.node.k8s.io", None, "nvidia"),
        (["runc", "nvidia"], True, "", None, "nvidia"),
        (["runc"], True, "", None, None),
        ([], True, "", False, None),
        ([], False, "", True, "nvidia"),
    ],
)
def test_the_plugin_asks_for_the_runtime_class_where_there_is_one(
    world: InstalledCluster,
    handlers: list[str],
    there: bool,
    denied: str,
    told: bool | None,
    expected: str | None,
) -> None:
    status = {"status": {"runtimeHandlers": [{"name": one} for one in handlers]}}
    world.objects.merge(Ref("v1", "Node", "gpu-1"), status, subresource="status")
    world.objects.denied.add(denied)
    if there:
        world.objects.create(runtime_class("nvidia", "nvidia"))
    assert world.install(runtime_class=told, with_monitoring=bool(told)) == Exit.DONE
    workloads = [PLUGIN, *(["gpushare-exporter"] if told else [])]
    found = {world.spec(name).get("runtimeClassName") for name in workloads}
    assert found == {expected}


def control_plane(name: str) -> Json:
    return node(name, "10.0.0.8", labels={CONTROL_PLANE: ""})


def test_the_leader_comes_last(world: InstalledCluster) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
        "spec": {"holderIdentity": "cp-2_0f3c"},
    }
    for body in (control_plane("cp-2"), control_plane("cp-3"), lease):
        world.objects.create(body)
    world.scheduler.ill["cp-3"] = "its disk is full"
    assert world.install() == Exit.STOPPED
    assert "on cp-3: its disk is full" in world.screen.text
    assert world.label("gpu-1") is None
    world.scheduler.ill.clear()
    world.scheduler.did.clear()
    assert world.install() == Exit.DONE
    did = [one for one in world.scheduler.did if one not in ("check", "apply")]
    assert did == ["apply on cp-3", "wait", "apply on cp-2", "probe"]


def test_the_second_scheduler_touches_no_file(
    world: InstalledCluster, tmp_path: Path
) -> None:
    world.files = HostFiles(tmp_path / "elsewhere")

    def its_images() -> dict[str, str]:
        pod = world.spec("gpushare-scheduler", "Deployment")
        return {one["name"]: one["image"] for one in pod["containers"]}

    # Only the proof that a host's kube-scheduler asks us takes it.
    world.objects.denied.add("patch pods")
    second = {"second_scheduler": True}
    code = world.install(**second, scheduler_image="ks:1")
    assert code == Exit.DONE, world.screen.text
    assert world.scheduler.did == []
    assert its_images() == {"kube-scheduler": "ks:1", "extender": "gpushare:0.1.0"}
    assert world.install(**second) == Exit.DONE, world.screen.text
    other = {"image": "gpushare:9", "scheduler_image": "ks:2"}
    assert world.install(**second, **other) == Exit.DONE
    assert world.install(**second) == Exit.DONE
    assert its_images() == {"kube-scheduler": "ks:2", "extender": "gpushare:9"}


def test_certificates_come_first(world: InstalledCluster) -> None:
    """This host's are written, the other hosts' come by the Job that sets them."""
    world.objects.create(control_plane("cp-2"))
    seen: list[tuple[bool, list[str]]] = []
    step = world.nodes.step

    def looking() -> None:
        there = world.files.read(CERTIFICATE) is not None
        seen.append((there, list(world.scheduler.did)))
        step()

    world.nodes.step = looking
    assert world.install() == Exit.DONE
    assert "TLS" not in world.screen.text
    seen.clear()
    world.scheduler.did.clear()
    assert world.install(tls=True) == Exit.DONE, world.screen.text
    assert seen[0] == (True, ["apply on cp-2"])
    assert world.install(tls=True) == Exit.DONE
    assert "all certificates are valid" in world.screen.text
    world.files.remove(CERTIFICATE)
    assert world.install() == Exit.DONE
    assert f"written: {CERTIFICATE}" in world.screen.text
    kept = "the extender has TLS and keeps it; --no-tls removes it   ok"
    assert kept in world.screen.lines
    assert world.install(tls=False) == Exit.DONE
    assert "TLS" not in world.screen.text


@pytest.mark.parametrize(
    ("service", "command"),
    [
        ("", "systemctl restart k3s"),
        ("/etc/systemd/system/k3s-edge.service", "systemctl restart k3s-edge"),
        ("/etc/init.d/k3s", "rc-service k3s restart"),
    ],
)
def test_k3s_is_told_to_restart(
    world: InstalledCluster, service: str, command: str
) -> None:
    """Its scheduler reads the files later, so nothing is proved at first."""
    world.files.remove(SCHEDULER)
    world.files.write("/etc/rancher/k3s/k3s.yaml", b"")
    if service:
        world.files.write(service, b"")
    assert world.install(this_node="cp") == Exit.DONE, world.screen.text
    assert world.scheduler.did == ["check", "apply", "wait"]
    assert f"  {command}" in world.screen.lines
    assert world.install(this_node="cp") == Exit.DONE
    assert world.scheduler.did[-1] == "probe"
