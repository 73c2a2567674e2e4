"""Where the webhook cannot be, or may not be made: words, and nothing changed."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusharectl.install.command import install
from gpusharectl.install.options import InstallOptions, WebhookOptions
from gpusharectl.install.progress import Exit
from gpusharectl.install.webhook.objects import CONFIGURATIONS
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.installed_cluster import EVERY_KIND, InstalledCluster

WANTED = WebhookOptions(wanted=True)


def made(
    folder: Path, version: str = "v1.36.3"
) -> tuple[InstalledCluster, FakeObjects]:
    objects = FakeObjects(version)
    return InstalledCluster(objects, folder).populate(), objects


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("v1.29.9", Exit.REFUSED),
        ("v1.30.0", Exit.DONE),
        ("of ours", Exit.DONE),
    ],
)
def test_below_130_it_would_be_asked_about_every_pod(
    tmp_path: Path, version: str, code: Exit
) -> None:
    world, objects = made(tmp_path, version)
    before = world.picture(EVERY_KIND)
    assert world.install(webhook=WANTED) == code, world.screen.text
    if code is Exit.REFUSED:
        assert world.picture(EVERY_KIND) == before
        said = "the webhook needs Kubernetes 1.30 or newer, and this is 1.29.9"
        assert said in world.screen.text
        assert world.install() == Exit.DONE
    assert (CONFIGURATIONS[0] in objects.kept) == (code is Exit.DONE)


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
    tmp_path: Path, choice: WebhookOptions, said: str
) -> None:
    world, _ = made(tmp_path)
    assert world.install(webhook=choice) == Exit.REFUSED
    assert said in world.screen.text
    assert "To go on: add --with-webhook" in world.screen.text


def test_none_taken_from_none_is_well(tmp_path: Path) -> None:
    world, _ = made(tmp_path)
    off = WebhookOptions(wanted=False, void=False, set_scheduler="")
    assert world.install(webhook=off) == Exit.DONE, world.screen.text


@pytest.mark.parametrize(
    "right",
    [
        "create secrets",
        "patch mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "create deployments.apps",
        "create services",
    ],
)
def test_the_rights_for_it_are_asked_before_anything(
    tmp_path: Path, right: str
) -> None:
    """Also where it is there already; without it they are not needed."""
    world, objects = made(tmp_path)
    objects.denied.add(right)
    before = world.picture(EVERY_KIND)
    assert world.install(webhook=WANTED) == Exit.REFUSED
    assert f"you may not {right}" in world.screen.text
    assert world.picture(EVERY_KIND) == before
    assert world.install() == Exit.DONE
    objects.denied.clear()
    world.install(webhook=WANTED)
    objects.denied.add(right)
    assert world.install() == Exit.REFUSED
    assert f"you may not {right}" in world.screen.text


def test_taking_it_away_takes_rights_too(tmp_path: Path) -> None:
    world, objects = made(tmp_path)
    world.install(webhook=WANTED)
    objects.denied.add("delete secrets")
    before = world.picture(EVERY_KIND)
    assert world.install(webhook=WebhookOptions(wanted=False)) == Exit.REFUSED
    assert "you may not delete secrets in kube-system" in world.screen.text
    assert world.picture(EVERY_KIND) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-webhook", "--void"], "--void is a setting of the webhook, which --no-"),
        (["--set-scheduler", "A b"], "'A b' is no valid name in Kubernetes"),
        (["--set-scheduler", "-a"], "'-a' is no valid name in Kubernetes"),
        (["--set-runtime-class", "a" * 254], "is no valid name in Kubernetes"),
        (
            ["--env-from", "never"],
            "'never' is none of auto, deny, allow",
        ),
        (["--bitfusion-card-mib", "0"], "'0' is neither auto nor a number of MiB"),
        (["--bitfusion-card-mib", "16G"], "'16G' is neither auto nor a number of MiB"),
        (["--bitfusion-card-mib", "٣"], "is neither auto nor a number of MiB"),
        (["--bitfusion-shell", "bash"], "'bash' is no path of a shell"),
        (["--bitfusion-shell", "/bin/sh -e"], "'/bin/sh -e' is no path of a shell"),
    ],
)
def test_a_command_line_that_is_not_understood(words: list[str], said: str) -> None:
    ran = CliRunner().invoke(install, words)
    assert ran.exit_code == 2, ran.output
    assert said in " ".join(ran.output.split())


def test_the_command_that_goes_on_has_what_was_given_and_no_more() -> None:
    choice = WebhookOptions(
        wanted=True, void=False, set_scheduler="", bitfusion_quota=True
    )
    assert shlex.split(InstallOptions(ui=True, webhook=choice).again()) == [
        *("gpusharectl", "install", "--ui", "--with-webhook", "--no-void"),
        *("--set-scheduler", "", "--bitfusion-quota"),
    ]
    off = InstallOptions(ui=False, webhook=WebhookOptions(wanted=False))
    assert off.again() == "gpusharectl install --no-ui --no-webhook"
