"""The webhook's certificate: made, renewed and left, and believed at every moment."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpushare.kube.errors import Unavailable
from gpusharectl.install.options import WebhookOptions
from gpusharectl.install.progress import Exit
from gpusharectl.install.webhook.objects import DEPLOYMENT, SECRET, SECRETS, STAMP
from tests.gpusharectl.install.installed_cluster import EVERY_KIND, InstalledCluster
from tests.gpusharectl.install.trust_checking_objects import (
    TrustCheckingObjects,
    bundle,
    shown,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DAY = timedelta(days=1)
WANTED = WebhookOptions(wanted=True)


@pytest.fixture
def objects() -> TrustCheckingObjects:
    return TrustCheckingObjects(NOW)


@pytest.fixture
def world(objects: TrustCheckingObjects, tmp_path: Path) -> InstalledCluster:
    return InstalledCluster(objects, tmp_path, now=NOW).populate()


def later(world: InstalledCluster, days: float) -> None:
    assert isinstance(world.objects, TrustCheckingObjects)
    world.now = world.objects.now = NOW + days * DAY


def stamp(objects: TrustCheckingObjects) -> str:
    template = objects.kept[DEPLOYMENT]["spec"]["template"]
    return str(template["metadata"]["annotations"][STAMP])


def test_the_first_is_believed_from_the_first_moment(
    world: InstalledCluster, objects: TrustCheckingObjects
) -> None:
    """The API server asks when a replica is Ready, not before; and one key is kept."""
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    assert objects.moments
    assert len(bundle(objects)) == 1
    held = objects.kept[SECRET]["data"]
    assert set(held) == {"ca.crt", "tls.crt", "tls.key"}
    (authority,) = bundle(objects)
    key = load_pem_private_key(base64.b64decode(held["tls.key"]), None)
    assert key.public_key() != authority.public_key()
    assert "written: Secret kube-system/gpushare-webhook-tls" in world.screen.lines
    lines = world.screen.lines
    asked = "from now on the API server asks the webhook about pods with cards"
    assert lines.index("gpushare-webhook: running") < lines.index(asked)


def test_a_good_one_stays(
    world: InstalledCluster, objects: TrustCheckingObjects
) -> None:
    world.install(webhook=WANTED)
    before = world.picture(EVERY_KIND)
    later(world, 240)
    objects.writes.clear()
    assert world.install() == Exit.DONE
    assert world.picture(EVERY_KIND) == before
    assert objects.writes == []
    assert (
        "as before the API server asks the webhook about pods with cards"
        in world.screen.lines
    )


def test_one_that_is_due_is_renewed_without_a_gap(
    world: InstalledCluster, objects: TrustCheckingObjects
) -> None:
    """Whatever the install is run for; each replica is made anew."""
    world.install(webhook=WANTED)
    first, old, (authority,) = shown(objects), stamp(objects), bundle(objects)
    later(world, 250)
    before = objects.moments
    assert world.install() == Exit.DONE, world.screen.text
    assert objects.moments > before
    assert shown(objects) != first
    assert stamp(objects) != old
    (renewed,) = bundle(objects)
    assert renewed != authority


def test_cut_off_at_any_write_it_goes_on_without_a_gap(tmp_path: Path) -> None:
    """A renewal, interrupted where it is worst, and run again."""
    numbers = _renewal(tmp_path / "whole", 0)
    assert len(numbers) > 5
    for number in numbers:
        _renewal(tmp_path / str(number), number)


def _renewal(folder: Path, cut_off: int) -> list[int]:
    """Renew after a first try that lost one answer; give the calls that write."""
    objects = TrustCheckingObjects(NOW)
    world = InstalledCluster(objects, folder, now=NOW).populate()
    world.install(webhook=WANTED)
    later(world, 250)
    if cut_off:
        objects.fails(cut_off, lambda: Unavailable("no answer"), done=True)
        assert world.install() in (Exit.STOPPED, Exit.DONE)
        objects.look()
    before = len(objects.calls)
    objects.writes.clear()
    assert world.install() == Exit.DONE, world.screen.text
    assert len(bundle(objects)) == 1
    return [
        at for at, one in enumerate(objects.calls[before:], 1) if one in objects.writes
    ]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda held: held.pop("tls.key"),
        lambda held: held.pop("ca.crt"),
        lambda held: held.update({"tls.crt": base64.b64encode(b"x").decode()}),
        lambda held: held.update({"tls.crt": "~"}),
        lambda held: held.update({"ca.crt": held["tls.crt"]}),
        lambda held: held.clear(),
    ],
)
def test_a_broken_one_is_made_anew(
    world: InstalledCluster, objects: TrustCheckingObjects, spoil: object
) -> None:
    world.install(webhook=WANTED)
    first = shown(objects)
    spoil(objects.kept[SECRET]["data"])
    objects.look = lambda: None
    assert world.install() == Exit.DONE, world.screen.text
    del objects.look
    objects.look()
    assert len(bundle(objects)) == 1
    assert shown(objects) != first


def test_of_all_secrets_it_reads_its_own(
    world: InstalledCluster, objects: TrustCheckingObjects
) -> None:
    """And shows nothing of it."""
    world.install(webhook=WANTED, dry_run=True)
    assert "Secret kube-system/gpushare-webhook-tls: its contents are not shown" in (
        world.screen.lines
    )
    assert "tls.key:" not in world.screen.text
    world.install(webhook=WANTED)
    world.install()
    asked = {one for one in objects.calls if "ecret" in one and "may " not in one}
    assert {one.split(" ", 1)[1] for one in asked} == {str(SECRET)}
    world.uninstall()
    asked = {one for one in objects.calls if "ecret" in one and "may " not in one}
    assert {one.split(" ", 1)[1] for one in asked} == set(map(str, SECRETS))


def test_without_the_webhook_no_secret_is_read(
    world: InstalledCluster, objects: TrustCheckingObjects
) -> None:
    world.install()
    assert not [one for one in objects.calls if "ecret" in one]
