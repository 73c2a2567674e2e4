"""``install`` and ``uninstall`` against a real API server, without controllers.

The stand-ins of the unit tests play DaemonSet controller and kubelets here too, so what
memory promises there is held to what etcd and kube-apiserver do.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushare.kube import names
from gpushare.kube.api import ApiObjects
from gpushare.kube.facts import OURS, SYSTEM
from gpushare.kube.objects import Ref
from gpusharectl.install.command import install, uninstall
from gpusharectl.install.progress import Exit
from tests.gpusharectl.install.installed_cluster import (
    AFTER,
    BEFORE,
    KINDS,
    OPERATORS_KINDS,
    SCHEDULER,
    InstalledCluster,
)
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.objects import pod, sweep
from tests.testbed.operators import PROMETHEUS, forget_kinds, serve_kinds

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

# Neither escalate nor bind, which cluster-admin has by its asterisk.
ALL = ["get", "list", "watch", "create", "patch", "update", "delete"]
STILL = [one for one in KINDS if one[1] != "Pod"]


@pytest.fixture
def objects(plane: ControlPlane) -> Iterator[ApiObjects]:
    kubeconfig = plane.kubeconfig(plane.admin.token, "installer")
    found = ApiObjects.connect(str(kubeconfig))
    yield found
    for api_version, kind in reversed(KINDS):
        for body in found.list(api_version, kind, label_selector=OURS):
            found.delete(Ref.of(body), grace_period_s=0)
    forget_kinds(found, PROMETHEUS)
    sweep(plane.rest)
    found.close()


@pytest.fixture
def world(objects: ApiObjects, tmp_path: Path) -> InstalledCluster:
    # Others on this control plane have spoken for our accounts.
    for name in ("gpushare-extender", "gpushare-device-plugin", "gpushare-exporter"):
        objects.delete(Ref("v1", "ServiceAccount", name, "kube-system"))
    return InstalledCluster(objects, tmp_path).populate()


def test_there_and_back(world: InstalledCluster) -> None:
    """From nothing to cards and back: not a field is other than before."""
    before = world.picture(STILL)
    assert world.install() == Exit.DONE, world.screen.text
    assert world.label("gpu-1") == "true"
    assert "gpu-1: 1 card, 29 units" in world.screen.text
    assert world.files.read(SCHEDULER) == AFTER
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert world.picture(STILL) == before
    assert world.ours() == []
    assert world.files.read(SCHEDULER) == BEFORE


def test_again_no_resource_version_changes(world: InstalledCluster) -> None:
    assert world.install() == Exit.DONE, world.screen.text
    before = world.versions()
    assert len(before) > 10
    assert world.install() == Exit.DONE
    assert world.versions() == before
    assert "none changed" in world.screen.text


def test_there_and_back_with_monitoring(world: InstalledCluster) -> None:
    """Where Prometheus Operator's kinds are served and where not; twice is once."""
    before = world.picture(STILL)
    for served in (False, True):
        if served:
            serve_kinds(world.objects, PROMETHEUS)
        kinds = [*STILL, *OPERATORS_KINDS] if served else STILL
        assert world.install(with_monitoring=True) == Exit.DONE, world.screen.text
        assert "gpushare-exporter: running" in world.screen.text
        assert ("Prometheus Operator is not installed" in world.screen.text) != served
        there = world.picture(kinds)
        assert {"Service", "ConfigMap"} < {ref.kind for ref in there}
        assert world.install(with_monitoring=True) == Exit.DONE
        assert "none changed" in world.screen.text
        assert world.picture(kinds) == there
        assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
        assert world.picture(STILL) == before
        assert not served or not any(
            world.objects.list(*kind) for kind in OPERATORS_KINDS
        )


def test_a_dry_run_is_the_api_servers_own(world: InstalledCluster) -> None:
    """Nothing is written, and what is shown has the API server's defaults in it."""
    before = world.versions()
    assert world.install(dry_run=True) == Exit.DONE, world.screen.text
    assert world.versions() == before
    assert "+++ DaemonSet kube-system/gpushare-extender" in world.screen.text
    assert "+      terminationGracePeriodSeconds: 30" in world.screen.text
    assert world.install() == Exit.DONE
    assert world.install(dry_run=True) == Exit.DONE
    assert "+++" not in world.screen.text
    assert world.install(dry_run=True, image="gpushare:9") == Exit.DONE
    changed = [line for line in world.screen.lines if line[:2] in ("+ ", "- ")]
    assert [line.split()[1:] for line in changed] == [
        ["image:", "gpushare:0.1.0"],
        ["image:", "gpushare:9"],
    ] * 2


def test_over_objects_that_kubectl_put_there(world: InstalledCluster) -> None:
    """What ``apply -k`` or a hand has changed becomes ours again, in place.

    But for the image, which is the operator's, and stays until another is asked for.
    """
    assert world.install() == Exit.DONE
    ref = Ref("apps/v1", "DaemonSet", "gpushare-extender", SYSTEM)
    world.objects.merge(ref, {"spec": {"minReadySeconds": 7}})
    container = "/spec/template/spec/containers/0"
    changes = {
        f"{container}/image": "x:1",
        f"{container}/securityContext/readOnlyRootFilesystem": False,
    }
    world.objects.json_patch(
        ref,
        [
            {"op": "replace", "path": path, "value": value}
            for path, value in changes.items()
        ],
    )
    for asked, runs in (("", "x:1"), ("gpushare:9", "gpushare:9")):
        assert world.install(image=asked) == Exit.DONE
        spec = (world.objects.get(ref) or {})["spec"]
        (found,) = spec["template"]["spec"]["containers"]
        assert found["image"] == runs
        assert found["securityContext"]["readOnlyRootFilesystem"] is True
        assert spec["minReadySeconds"] == 7


def test_tls_stays_until_it_is_taken_away(world: InstalledCluster) -> None:
    """The API server takes the certificates' variables and folder out again."""
    assert world.install(image="x/gpushare:1", tls=True) == Exit.DONE
    before = world.versions()
    assert world.install() == Exit.DONE, world.screen.text
    assert world.versions() == before
    ref = Ref("apps/v1", "DaemonSet", "gpushare-extender", SYSTEM)
    assert "GPUSHARE_TLS_CERT" in str(world.objects.get(ref))
    assert world.install(tls=False) == Exit.DONE
    body = world.objects.get(ref) or {}
    assert "tls" not in str(body["spec"]["template"]["spec"]).lower()
    assert "x/gpushare:1" in str(body["spec"])


def test_a_weaker_user_hears_all_that_is_missing(
    plane: ControlPlane, world: InstalledCluster
) -> None:
    """Also that RBAC lets nobody give rights that he has not: before anything is done.

    The first round lacks verbs; the second has them all but for what the roles hold.
    """
    token = service_account_token(plane.rest, "default", "weak")
    user = "system:serviceaccount:default:weak"
    grant(plane.rest, user, [_rule("", "nodes", "pods", verbs=["get", "list"])])
    weak = ApiObjects.connect(str(plane.kubeconfig(token, "weak")))
    strong, world.objects = world.objects, weak
    assert world.install() == Exit.REFUSED
    text = world.screen.text
    assert "you may not patch nodes, create pods in kube-system, " in text
    assert "patch daemonsets.apps in kube-system" in text
    grant(
        plane.rest,
        user,
        [
            _rule("", "nodes", "pods", "pods/log", "events", "serviceaccounts"),
            _rule("apps", "daemonsets", "deployments"),
            _rule("batch", "jobs"),
            _rule("coordination.k8s.io", "leases"),
            _rule("node.k8s.io", "runtimeclasses"),
            _rule("rbac.authorization.k8s.io", "clusterroles", "clusterrolebindings"),
            _rule(
                "admissionregistration.k8s.io",
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
            ),
        ],
    )
    assert world.install() == Exit.STOPPED, world.screen.text
    assert "attempting to grant RBAC permissions not currently held" in (
        world.screen.text
    )
    assert "Done: the checks, the choice of nodes. Not done: the dry run" in (
        world.screen.text
    )
    world.objects = strong
    assert world.ours() == []
    weak.close()


def test_pods_with_cards_are_listed(
    plane: ControlPlane, world: InstalledCluster
) -> None:
    assert world.install() == Exit.DONE
    pods = "/api/v1/namespaces/default/pods"
    plane.rest.must("POST", pods, pod("app-1", "default", units=4, cores=1))
    target = {
        "metadata": {"name": "app-1"},
        "target": {"kind": "Node", "name": "gpu-1"},
    }
    plane.rest.must("POST", f"{pods}/app-1/binding", target)
    assert world.uninstall() == Exit.REFUSED
    assert "  default/app-1 on gpu-1" in world.screen.lines
    assert world.uninstall(force=True) == Exit.DONE, world.screen.text


def test_zeros_are_taken_from_a_nodes_status(world: InstalledCluster) -> None:
    world.install()
    world.uninstall()
    body = world.objects.get(Ref("v1", "Node", "gpu-1")) or {}
    assert body["status"]["capacity"][names.MEMORY] == "0"
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    body = world.objects.get(Ref("v1", "Node", "gpu-1")) or {}
    assert sorted(body["status"]["capacity"]) == ["cpu", "memory", "pods"]
    assert sorted(body["status"]["allocatable"]) == ["cpu", "memory", "pods"]


def test_the_second_scheduler_is_taken_by_the_api_server(
    world: InstalledCluster,
) -> None:
    code = world.install(dry_run=True, second_scheduler=True, scheduler_image="ks:1")
    assert code == Exit.DONE, world.screen.text
    assert "+++ Deployment kube-system/gpushare-scheduler" in world.screen.text
    assert "+        image: ks:1" in world.screen.text


def _rule(
    group: str, *resources: str, verbs: list[str] | None = None
) -> dict[str, object]:
    return {
        "apiGroups": [group],
        "resources": list(resources),
        "verbs": verbs or ALL,
    }


def test_the_command_line_all_the_way(
    plane: ControlPlane, world: InstalledCluster
) -> None:
    """With the real wiring: on a host without a control plane, on this API server."""
    assert world.label("gpu-1") is None
    path = plane.kubeconfig(plane.admin.token, "by-command")
    words = ["--kubeconfig", str(path), "--nodes", "gpu-1", "--dry-run"]
    words += ["--second-scheduler", "--scheduler-image", "ks:1"]
    ran = CliRunner().invoke(install, words)
    assert ran.exit_code == Exit.DONE, ran.output
    assert "+++ Deployment kube-system/gpushare-scheduler" in ran.output
    assert ran.output.rstrip().endswith(
        f"To install: gpusharectl install --kubeconfig {path} --nodes gpu-1 "
        "--second-scheduler --scheduler-image ks:1"
    )
    ran = CliRunner().invoke(uninstall, ["--kubeconfig", str(path), "--yes"])
    assert (ran.exit_code, ran.output.splitlines()[-1]) == (
        Exit.DONE,
        "Nothing of gpushare is installed here.",
    )
