"""Whatever call fails, and however: words, and the same command again goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Unavailable
from gpushare.kube.facts import WEBHOOK
from gpushare.kube.objects import Ref
from gpusharectl.install.options import WebhookOptions
from gpusharectl.install.progress import Exit
from gpusharectl.install.webhook.objects import DEPLOYMENT, STAMP
from tests.gpusharectl.install.fake_objects import FakeObjects, copied
from tests.gpusharectl.install.installed_cluster import EVERY_KIND, InstalledCluster
from tests.gpusharectl.install.stand_ins import AFTER, BEFORE, SCHEDULER

FAILURES: dict[str, tuple[Callable[[], BaseException], bool, bool]] = {
    "ctrl-c before": (KeyboardInterrupt, False, False),
    "ctrl-c after": (KeyboardInterrupt, True, True),
    "no answer": (lambda: Unavailable("no answer"), True, True),
    "refused": (lambda: ClusterError("no"), False, True),
}
"""What happens, whether the call took effect, and whether only writes are tried."""


def fresh(folder: Path) -> tuple[InstalledCluster, FakeObjects]:
    objects = FakeObjects()
    return InstalledCluster(objects, folder).populate(), objects


def calls_of(
    act: Callable[[InstalledCluster], Exit],
    world: InstalledCluster,
    objects: FakeObjects,
    *,
    writes: bool,
) -> list[int]:
    """Number the calls that write, or those and others.

    Of many questions of one kind in a row, such as of rights, the first and the last:
    nothing is otherwise at those between.
    """
    before = len(objects.calls)
    objects.writes.clear()
    assert act(world) == Exit.DONE, world.screen.text
    made = objects.calls[before:]
    written = set(objects.writes)
    kinds = ["", *(one.partition(" ")[0] for one in made), ""]
    among = [len(set(kinds[at - 1 : at + 2])) == 1 for at in range(1, len(made) + 1)]
    return [
        at
        for at, one in enumerate(made, 1)
        if one in written or not (writes or among[at - 1])
    ]


def install(world: InstalledCluster) -> Exit:
    return world.install()


def with_everything(world: InstalledCluster) -> Exit:
    """Make each call that an install can make: it sets up all that it can."""
    webhook = WebhookOptions(wanted=True, bitfusion_quota=True)
    return world.install(with_monitoring=True, webhook=webhook)


def with_webhook(world: InstalledCluster) -> Exit:
    return world.install(webhook=WebhookOptions(wanted=True, bitfusion_quota=True))


def without_webhook(world: InstalledCluster) -> Exit:
    return world.install(webhook=WebhookOptions(wanted=False))


def uninstall(world: InstalledCluster) -> Exit:
    return world.uninstall(wait=True)


@pytest.fixture(scope="module")
def tried() -> set[tuple[str, str]]:
    """What was run again, and from which state: the next failure may leave the same."""
    return set()


@pytest.mark.parametrize("how", FAILURES)
def test_install_goes_on_from_any_call(
    tmp_path: Path, how: str, tried: set[tuple[str, str]]
) -> None:
    act = with_everything
    world, objects = fresh(tmp_path / "whole")
    failure, done, writes = FAILURES[how]
    numbers = calls_of(act, world, objects, writes=writes)
    whole = world.picture(EVERY_KIND)
    assert len(numbers) > 10
    for number in numbers:
        world, objects = fresh(tmp_path / str(number))
        objects.fails(number, failure, done=done)
        _ends_in_words(act, world, objects.calls)
        if (state := ("install", _state(world))) in tried:
            continue
        tried.add(state)
        assert act(world) == Exit.DONE, (objects.calls[-1], world.screen.text)
        assert world.files.read(SCHEDULER) == AFTER
        again = world.picture(EVERY_KIND)
        assert _uids_apart(again) == _uids_apart(whole), number


@pytest.mark.parametrize("how", FAILURES)
def test_uninstall_goes_on_from_any_call(
    tmp_path: Path, how: str, tried: set[tuple[str, str]]
) -> None:
    world, objects = fresh(tmp_path / "whole")
    before = world.picture(EVERY_KIND)
    with_everything(world)
    installed = {ref: copied(body) for ref, body in objects.kept.items()}
    failure, done, writes = FAILURES[how]
    numbers = calls_of(uninstall, world, objects, writes=writes)
    assert world.picture(EVERY_KIND) == before
    assert len(numbers) > 10
    for number in numbers:
        world, objects = fresh(tmp_path / str(number))
        objects.kept.clear()
        objects.kept.update({ref: copied(body) for ref, body in installed.items()})
        world.files.write(SCHEDULER, AFTER)
        objects.fails(number, failure, done=done)
        _ends_in_words(uninstall, world, objects.calls)
        if (state := ("uninstall", _state(world))) in tried:
            continue
        tried.add(state)
        assert uninstall(world) == Exit.DONE, (number, world.screen.text)
        assert world.picture(EVERY_KIND) == before, number
        assert world.files.read(SCHEDULER) == BEFORE


@pytest.mark.parametrize("how", ["ctrl-c after", "refused"])
def test_taking_the_webhook_away_goes_on_from_any_write(
    tmp_path: Path, how: str
) -> None:
    """Whatever of it went already: its Deployment tells nobody that there was one."""
    world, objects = fresh(tmp_path / "whole")
    install(world)
    plain = set(world.picture(EVERY_KIND))
    with_webhook(world)
    installed = {ref: copied(body) for ref, body in objects.kept.items()}
    failure, done, writes = FAILURES[how]
    numbers = calls_of(without_webhook, world, objects, writes=writes)
    assert len(numbers) > 8
    for number in numbers:
        world, objects = fresh(tmp_path / str(number))
        objects.kept.clear()
        objects.kept.update({ref: copied(body) for ref, body in installed.items()})
        world.files.write(SCHEDULER, AFTER)
        objects.fails(number, failure, done=done)
        _ends_in_words(without_webhook, world, objects.calls)
        assert without_webhook(world) == Exit.DONE, (number, world.screen.text)
        world.nodes.step()
        assert set(world.picture(EVERY_KIND)) == plain, number


@pytest.mark.parametrize("step", ["check", "apply", "wait", "probe", "roll back"])
def test_interrupted_at_the_scheduler(tmp_path: Path, step: str) -> None:
    """Each thing done to kube-scheduler, cut off before it took effect."""
    world, _ = fresh(tmp_path)
    said = world.scheduler._said
    pulled = []

    def once(what: str) -> str:
        if what == step and not pulled:
            pulled.append(what)
            raise KeyboardInterrupt
        return said(what)

    world.scheduler._said = once
    if step == "roll back":
        world.scheduler.ill["wait"] = "it crashed"
    assert install(world) == Exit.STOPPED
    assert "interrupted" in world.screen.text
    world.scheduler.ill.clear()
    assert install(world) == Exit.DONE
    assert world.files.read(SCHEDULER) == AFTER


def _ends_in_words(
    act: Callable[[InstalledCluster], Exit], world: InstalledCluster, calls: list[str]
) -> None:
    """What a retryable failure in a wait does is to wait on; all else must be told."""
    code = act(world)
    text = world.screen.text
    if code == Exit.DONE:
        return
    assert code == Exit.STOPPED, calls[-1]
    assert "Stopped at " in text
    assert "Not done: " in text
    assert "To go on: gpusharectl " in text


def _state(world: InstalledCluster) -> str:
    """All that the same command reads when it is run again, so once from each state.

    Keys are random: only whether they are there can be compared.
    """
    objects = []
    for ref, body in world.picture(EVERY_KIND).items():
        found = copied(body)
        if "data" in found and ref.kind == "Secret":
            found["data"] = sorted(found["data"])
        for one in found.get("webhooks", ()):
            one["clientConfig"]["caBundle"] = bool(one["clientConfig"].get("caBundle"))
        if ref == DEPLOYMENT:
            stamped = found["spec"]["template"]["metadata"]["annotations"]
            stamped[STAMP] = bool(stamped.get(STAMP))
        objects.append(found)
    files = {
        path.relative_to(world.root): path.read_bytes()
        for path in sorted(world.root.rglob("*"))
        if path.is_file()
    }
    return repr((objects, files))


def _uids_apart(picture: dict[Ref, dict[str, object]]) -> dict[Ref, dict[str, object]]:
    """The picture without uids and keys: what was made at another time has others."""
    return {
        ref: {
            **_keys_apart(body),
            "metadata": {k: v for k, v in body["metadata"].items() if k != "uid"},
        }
        for ref, body in picture.items()
        if not ref.name.startswith(f"{WEBHOOK}-") or ref.kind != "Pod"
    }


def _keys_apart(body: Json) -> Json:
    found = copied(body)
    if "data" in found:
        found["data"] = dict.fromkeys(found["data"])
    for one in found.get("webhooks", ()):
        assert one["clientConfig"].pop("caBundle")
    if Ref.of(body) == DEPLOYMENT:
        del found["spec"]["template"]["metadata"]["annotations"][STAMP]
    return found
