"""Where the webhook's certificate is cert-manager's: left to it, never forgotten."""

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.installer.manifests import load_manifests
from gpusharectl.installer.options import WebhookOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.webhook.objects import (
    CERTIFICATE,
    CONFIGURATIONS,
    DEPLOYMENT,
    SECRET,
    SECRETS,
)
from tests.gpusharectl.installer.fake_objects import copied
from tests.gpusharectl.installer.installed_cluster import EVERY_KIND, InstalledCluster
from tests.gpusharectl.installer.trust_checking_objects import (
    TrustCheckingObjects,
    bundle,
)

NOW = InstalledCluster.now
WANTED = WebhookOptions(wanted=True)
OFF = WebhookOptions(wanted=False)
INJECTED = {"cert-manager.io/inject-ca-from": "kube-system/gpushare-webhook"}
ISSUED = {"cert-manager.io/certificate-name": "gpushare-webhook"}
ITS_KINDS = [("cert-manager.io/v1", kind) for kind in ("Issuer", "Certificate")]
SAID = "cert-manager makes the webhook's certificate, and goes on doing so   ok"


@pytest.fixture
def objects() -> TrustCheckingObjects:
    return TrustCheckingObjects(NOW)


@pytest.fixture
def world(objects: TrustCheckingObjects, world: InstalledCluster) -> InstalledCluster:
    """A cluster whose webhook came by ``kubectl apply -k``: cert-manager did its part.

    What it writes is that of an install of ours, with its marks.
    """
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    for ref in CONFIGURATIONS:
        objects.merge(ref, {"metadata": {"annotations": INJECTED}})
    objects.merge(SECRET, {"metadata": {"annotations": ISSUED, "labels": None}})
    authority: Json = copied(objects.kept[SECRET])
    authority["metadata"]["name"] = SECRETS[1].name
    objects.create(authority)
    for body in load_manifests("webhook-cert-manager"):
        if body["apiVersion"] == CERTIFICATE.api_version:
            objects.create(body)
    return world


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ((), WANTED),
        ((), WebhookOptions()),
        ((DEPLOYMENT,), WANTED),
        ((CERTIFICATE,), WebhookOptions()),
        ((CERTIFICATE, DEPLOYMENT), WANTED),
        ((SECRET, DEPLOYMENT), WANTED),
    ],
)
def test_it_is_known_when_the_configurations_are_gone(
    world: InstalledCluster,
    objects: TrustCheckingObjects,
    lost: tuple[Ref, ...],
    said: WebhookOptions,
) -> None:
    """In need they are to be deleted; cert-manager would write over a Secret of ours.

    Its own Secret says whose it is, and its Certificate where that is gone for now.
    """
    secret = copied(objects.kept[SECRET])
    for ref in (*CONFIGURATIONS, *lost):
        del objects.kept[ref]
    make_again(world, objects, secret)
    assert world.install(webhook=said) == Exit.DONE, world.screen.text
    assert objects.kept[SECRET]["data"] == secret["data"]
    assert f"apply {SECRET}" not in objects.writes
    assert SAID in world.screen.lines
    for ref in CONFIGURATIONS:
        assert objects.kept[ref]["metadata"]["annotations"] == INJECTED


def make_again(
    world: InstalledCluster, objects: TrustCheckingObjects, secret: Json
) -> None:
    """Play cert-manager: the Secret, and its authority into each configuration."""
    apply, step = objects.apply, world.nodes.step

    def injecting(body: Json, *, dry_run: bool = False) -> Json:
        if Ref.of(body) in CONFIGURATIONS:
            body = copied(body)
            for one in body["webhooks"]:
                one["clientConfig"].setdefault("caBundle", secret["data"]["ca.crt"])
        return apply(body, dry_run=dry_run)

    def issuing() -> None:
        objects.kept.setdefault(SECRET, secret)
        step()

    objects.apply = injecting
    world.nodes.step = issuing


@pytest.mark.parametrize("asked", [WANTED, WebhookOptions()], ids=["asked", "kept"])
def test_without_its_kinds_nobody_would_renew(
    world: InstalledCluster, objects: TrustCheckingObjects, asked: WebhookOptions
) -> None:
    """cert-manager was taken away: words, and two ways on, the second of which goes."""
    objects.unserved |= {kind for _, kind in ITS_KINDS}
    for ref in [ref for ref in objects.kept if "cert-manager" in ref.api_version]:
        del objects.kept[ref]
    before = world.picture(EVERY_KIND)
    assert world.install(webhook=asked) == Exit.REFUSED
    assert world.picture(EVERY_KIND) == before
    text = world.screen.text
    assert "certificate, but it is no longer installed" in text
    assert "does not know Certificate of cert-manager.io/v1" in text
    assert world.install(webhook=OFF) == Exit.DONE, world.screen.text
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    assert "cert-manager" not in world.screen.text
    assert len(bundle(objects)) == 1


@pytest.mark.parametrize("how", ["uninstall", "no-webhook"])
def test_all_of_it_goes(
    world: InstalledCluster, objects: TrustCheckingObjects, how: str
) -> None:
    """Both Secrets, which cert-manager leaves when its Certificates are deleted."""
    objects.writes.clear()
    taken = world.install(webhook=OFF) if how == "no-webhook" else world.uninstall()
    assert taken == Exit.DONE, world.screen.text
    gone = (*SECRETS, *CONFIGURATIONS, CERTIFICATE)
    assert not [ref for ref in gone if ref in objects.kept]
    assert not [kind for kind in ITS_KINDS if objects.list(*kind)]
    # Or cert-manager would make it again.
    order = [one for one in objects.writes if one.startswith("delete")]
    for ref in SECRETS:
        assert order.index(f"delete {CERTIFICATE}") < order.index(f"delete {ref}")
