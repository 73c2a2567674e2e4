"""Where the webhook cannot be, or may not be made: words, and nothing changed."""

from pathlib import Path

import pytest

from gpusharectl.installer.options import WebhookOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.webhook.objects import CONFIGURATIONS
from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.gpusharectl.installer.installed_cluster import EVERY_KIND, InstalledCluster

WANTED, OFF = WebhookOptions(wanted=True), WebhookOptions(wanted=False)


def refused(world: InstalledCluster, said: str, webhook: WebhookOptions) -> None:
    before = world.picture(EVERY_KIND)
    assert world.install(webhook=webhook) == Exit.REFUSED
    assert said in world.screen.text
    assert world.picture(EVERY_KIND) == before


@pytest.mark.parametrize("version", ["v1.29.9", "v1.30.0", "of ours"])
def test_below_130_it_would_be_asked_about_every_pod(
    tmp_path: Path, version: str
) -> None:
    objects = FakeObjects(version)
    world = InstalledCluster(objects, tmp_path).populate()
    if version == "v1.29.9":
        said = "the webhook needs Kubernetes 1.30 or newer, and this is 1.29.9"
        refused(world, said, WANTED)
        assert world.install() == Exit.DONE
    else:
        assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
        assert CONFIGURATIONS[0] in objects.kept


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (WebhookOptions(void=True), "--void is a setting of the webhook, which is not"),
        (
            WebhookOptions(set_scheduler="a", bitfusion_quota=True),
            "--set-scheduler, --bitfusion-quota are settings of the webhook, which is",
        ),
    ],
)
def test_a_setting_without_a_webhook(
    world: InstalledCluster, choice: WebhookOptions, said: str
) -> None:
    refused(world, said, choice)
    assert "To go on: add --with-webhook" in world.screen.text
    off = WebhookOptions(wanted=False, void=False, set_scheduler="")
    assert world.install(webhook=off) == Exit.DONE, world.screen.text


CONFIGURATION = "mutatingwebhookconfigurations.admissionregistration.k8s.io"


@pytest.mark.parametrize(
    "right",
    [
        "create secrets",
        f"patch {CONFIGURATION}",
        "create deployments.apps",
        "create services",
        # For the trial.
        "create pods",
        f"delete {CONFIGURATION}",
    ],
)
def test_the_rights_for_it_are_asked_before_anything(
    world: InstalledCluster, objects: FakeObjects, right: str
) -> None:
    """Also where it is there already; without it they are not needed."""
    said = f"you may not {right}"
    objects.denied.add(right)
    refused(world, said, WANTED)
    assert (world.install() == Exit.DONE) == (right != "create pods")
    objects.denied.clear()
    world.install(webhook=WANTED)
    objects.denied.add(right)
    refused(world, said, WebhookOptions())


def test_taking_it_away_takes_rights_too(world: InstalledCluster) -> None:
    world.install(webhook=WANTED)
    world.objects.denied.add("delete secrets")
    refused(world, "you may not delete secrets in kube-system", OFF)
