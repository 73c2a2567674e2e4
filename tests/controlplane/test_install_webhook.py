"""``install --with-webhook`` against a real API server, without controllers.

What memory cannot tell: how lists are merged when the same hand applies less than
before, and whose a field is. What the webhook answers: ``test_webhook.py``.
"""

import base64
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpushare.kube.facts import SYSTEM
from gpushare.kube.objects import Ref
from gpusharectl.install.manifests import settings_of
from gpusharectl.install.options import WebhookOptions
from gpusharectl.install.progress import Exit
from gpusharectl.install.webhook.objects import CONFIGURATIONS, DEPLOYMENT, SECRET
from gpusharectl.pki import make_authority
from tests.controlplane.installing import ALL_KINDS, Answered, bare, installing, there
from tests.gpusharectl.install.installed_cluster import InstalledCluster
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod
from tests.testbed.operators import CERT_MANAGER, serve_kinds

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

STILL = [one for one in ALL_KINDS if one[1] != "Pod"]
WANTED = WebhookOptions(wanted=True)
SET = WebhookOptions(
    wanted=True, void=True, set_scheduler="vcuda-scheduler", bitfusion_quota=True
)
INJECTED = {"cert-manager.io/inject-ca-from": "kube-system/gpushare-webhook"}


@pytest.fixture
def objects(plane: ControlPlane) -> Iterator[Answered]:
    with installing(plane) as found:
        yield found


@pytest.fixture
def world(objects: Answered, tmp_path: Path) -> InstalledCluster:
    return bare(objects, tmp_path)


def entries(world: InstalledCluster) -> list[str]:
    found = there(world, CONFIGURATIONS[0])["webhooks"]
    return [one["name"].partition(".")[0] for one in found]


def settings(world: InstalledCluster) -> dict[str, str]:
    return dict(settings_of([there(world, DEPLOYMENT)], "webhook"))


def bundles(world: InstalledCluster) -> set[str]:
    return {
        one["clientConfig"].get("caBundle", "")
        for ref in CONFIGURATIONS
        for one in there(world, ref)["webhooks"]
    }


def versions(world: InstalledCluster) -> dict[Ref, str]:
    return {
        Ref.of(body): body["metadata"]["resourceVersion"]
        for kind in STILL
        for body in world.objects.list(*kind)
    }


def test_there_and_back(world: InstalledCluster) -> None:
    """From nothing to a webhook and back: not a field is other than before."""
    before = world.picture(STILL)
    assert world.install(webhook=SET) == Exit.DONE, world.screen.text
    assert entries(world)[-1] == "void"
    assert len(bundles(world)) == 1
    assert there(world, SECRET)["type"] == "kubernetes.io/tls"
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert world.picture(STILL) == before


def test_again_no_resource_version_changes(world: InstalledCluster) -> None:
    assert world.install(webhook=SET) == Exit.DONE, world.screen.text
    before = versions(world)
    assert world.install() == Exit.DONE
    assert versions(world) == before
    assert "none changed" in world.screen.text


def test_a_dry_run_writes_nothing(world: InstalledCluster) -> None:
    before = versions(world)
    assert world.install(webhook=SET, dry_run=True) == Exit.DONE, world.screen.text
    assert versions(world) == before
    assert "its contents are not shown" in world.screen.text
    assert "+  matchPolicy: Equivalent" in world.screen.text


def test_settings_that_are_taken_away_are_gone(world: InstalledCluster) -> None:
    """The same hand applies less: entries and variables are members of lists."""
    assert world.install(webhook=SET) == Exit.DONE, world.screen.text
    less = WebhookOptions(void=False, set_scheduler="", bitfusion_quota=False)
    assert world.install(webhook=less) == Exit.DONE, world.screen.text
    given = {"GPUSHARE_VOID", "GPUSHARE_SET_SCHEDULER", "GPUSHARE_BITFUSION_QUOTA"}
    assert not given & set(settings(world))
    assert "void" not in entries(world)
    ref = Ref("apps/v1", "DaemonSet", "gpushare-device-plugin", SYSTEM)
    assert "GPUSHARE_BITFUSION_QUOTA" not in str(there(world, ref)["spec"])


def test_what_somebody_has_set_by_hand_stays(world: InstalledCluster) -> None:
    """``kubectl set env`` is another's field."""
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    path = "/spec/template/spec/containers/0/env/-"
    one = {"name": "TOTAL_GPU_MEMORY", "value": "16000"}
    step = {"op": "add", "path": path, "value": one}
    world.objects.json_patch(DEPLOYMENT, [step])
    assert world.install(webhook=SET) == Exit.DONE, world.screen.text
    assert settings(world)["TOTAL_GPU_MEMORY"] == "16000"
    assert settings(world)["GPUSHARE_VOID"] == "on"


def test_a_due_certificate_is_renewed(world: InstalledCluster) -> None:
    """Whatever the install is run for; one authority is left at the end."""
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    first, before = bundles(world), there(world, SECRET)["data"]
    world.now += timedelta(days=250)
    assert world.install() == Exit.DONE, world.screen.text
    assert len(bundles(world)) == 1
    assert bundles(world) != first
    after = there(world, SECRET)["data"]
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())


def test_what_cert_manager_has_written_stays(world: InstalledCluster) -> None:
    """Neither its annotation nor its authorities nor its Secret are touched."""
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    serve_kinds(world.objects, CERT_MANAGER)
    for ref in CONFIGURATIONS:
        world.objects.merge(ref, {"metadata": {"annotations": INJECTED}})
    ours, secret = bundles(world), there(world, SECRET)["data"]
    # Also before cert-manager has come round to it.
    assert world.install() == Exit.DONE, world.screen.text
    assert bundles(world) == ours
    authority = make_authority(world.now).certificate_pem
    before = {base64.b64encode(authority).decode()}
    for ref in CONFIGURATIONS:
        _injected(world, ref, before)
    assert bundles(world) == before != ours
    world.now += timedelta(days=250)
    assert world.install() == Exit.DONE, world.screen.text
    assert "cert-manager makes the webhook's certificate" in world.screen.text
    assert bundles(world) == before
    assert there(world, SECRET)["data"] == secret
    for kind in ("Issuer", "Certificate"):
        for name in ("gpushare-webhook", "gpushare-webhook-ca"):
            there(world, Ref("cert-manager.io/v1", kind, name, SYSTEM))
    # Deleted in need, as docs/webhook.md tells: the Certificates say whose it is.
    for ref in CONFIGURATIONS:
        world.objects.delete(ref)
    assert world.install() == Exit.DONE, world.screen.text
    assert there(world, SECRET)["data"] == secret
    assert bundles(world) == {""}
    assert world.uninstall() == Exit.DONE, world.screen.text
    assert not world.objects.list("cert-manager.io/v1", "Certificate")


def _injected(world: InstalledCluster, ref: Ref, authorities: set[str]) -> None:
    """Write authorities as cert-manager does, so that they are no fields of ours."""
    (text,) = authorities
    body = there(world, ref)
    steps = [
        {
            "op": "replace",
            "path": f"/webhooks/{at}/clientConfig/caBundle",
            "value": text,
        }
        for at in range(len(body["webhooks"]))
    ]
    world.objects.json_patch(ref, steps)


def test_pods_that_ask_for_nothing_are_made_while_it_is_away(
    plane: ControlPlane, world: InstalledCluster
) -> None:
    """There is no process behind its Service here. With cards they are refused."""
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    where = "/api/v1/namespaces/default/pods"
    plain = pod("plain", "default", units=0, cores=0)
    plain["spec"]["containers"][0].pop("resources", None)
    plane.rest.must("POST", where, plain)
    asking = pod("asking", "default", units=4, cores=1)
    status, answer = plane.rest.post(where, asking)
    assert status == 500, answer
    assert 'failed calling webhook "pods.vcuda.baidu.com"' in answer["message"]
    assert world.install(webhook=WebhookOptions(wanted=False)) == Exit.DONE
    plane.rest.must("POST", where, asking)
