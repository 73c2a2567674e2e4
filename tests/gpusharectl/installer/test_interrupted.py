"""Whatever call fails, and however: words, and the same command again goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Unavailable, Unreachable
from gpushare.kube.facts import WEBHOOK
from gpushare.kube.objects import Ref
from gpusharectl.installer.options import WebhookOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.webhook.objects import DEPLOYMENT, STAMP
from tests.gpusharectl.installer.fake_objects import FakeObjects, copied
from tests.gpusharectl.installer.installed_cluster import (
    AFTER,
    BEFORE,
    EVERY_KIND,
    SCHEDULER,
    InstalledCluster,
)

Act = Callable[[InstalledCluster], Exit]
FAILURES: dict[str, tuple[Callable[[], BaseException], bool, bool]] = {
    "ctrl-c before": (KeyboardInterrupt, False, False),
    "ctrl-c after": (KeyboardInterrupt, True, True),
    "no answer": (lambda: Unavailable("no answer"), True, True),
    "refused": (lambda: ClusterError("no"), False, True),
    "down": (lambda: Unreachable("refused"), False, True),
}
"""What happens, whether the call took effect, and whether only writes are tried.

The last one lasts until the next run.
"""
WANTED = WebhookOptions(wanted=True, bitfusion_quota=True)
ALL: dict[str, Any] = {"with_monitoring": True, "webhook": WANTED, "dra": True}
ACTS: dict[str, tuple[Act, list[Act]]] = {
    # It sets up all that it can, so each call of an install is made.
    "install": (lambda w: w.install(**ALL), []),
    "uninstall": (lambda w: w.uninstall(wait=True), [lambda w: w.install(**ALL)]),
    # Whatever of it went already: its Deployment tells nobody that there was one.
    "no webhook": (
        lambda w: w.install(webhook=WebhookOptions(wanted=False)),
        [lambda w: w.install(), lambda w: w.install(webhook=WANTED)],
    ),
    "no dra": (
        lambda w: w.install(dra=False),
        [lambda w: w.install(tls=True), lambda w: w.install(dra=True)],
    ),
}
"""What is cut off, and what was done before."""


def fresh(folder: Path) -> tuple[InstalledCluster, FakeObjects]:
    objects = FakeObjects()
    return InstalledCluster(objects, folder).populate(), objects


def calls_of(
    act: Act, world: InstalledCluster, objects: FakeObjects, *, writes: bool
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


@pytest.fixture(scope="module")
def tried() -> set[tuple[str, str]]:
    """What was run again, and from which state: the next failure may leave the same."""
    return set()


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("what", ACTS)
def test_the_same_command_goes_on_from_any_call(
    tmp_path: Path,
    what: str,
    how: str,
    tried: set[tuple[str, str]],
    sampled: Callable[[list[int]], list[int]],
) -> None:
    act, first = ACTS[what]
    failure, done, writes = FAILURES[how]
    world, objects = fresh(tmp_path / "whole")
    untouched = world.picture(EVERY_KIND)
    for one in first:
        assert one(world) == Exit.DONE
    kept, file = copies(objects.kept), world.files.read(SCHEDULER)
    only_writes = writes or what == "no webhook"
    numbers = calls_of(act, world, objects, writes=only_writes)
    assert len(numbers) > 8
    whole, left = picture(world), world.files.read(SCHEDULER)
    assert left == (BEFORE if what == "uninstall" else AFTER)
    assert (world.picture(EVERY_KIND) == untouched) == (what == "uninstall")
    for number in sampled(numbers):
        world, objects = fresh(tmp_path / str(number))
        objects.kept.clear()
        objects.kept.update(copies(kept))
        world.files.write(SCHEDULER, file)
        objects.fails(number, failure, done=done)
        objects.down = how == "down"
        _ends_in_words(act, world, objects.calls)
        objects.down = False
        if (state := (what, _state(world))) in tried:
            continue
        tried.add(state)
        assert act(world) == Exit.DONE, (objects.calls[-1], world.screen.text)
        assert world.files.read(SCHEDULER) == left
        assert picture(world) == whole, number


def copies(kept: dict[Ref, Json]) -> dict[Ref, Json]:
    return {ref: copied(body) for ref, body in kept.items()}


@pytest.mark.parametrize("step", ["check", "apply", "wait", "probe", "roll back"])
def test_interrupted_at_the_scheduler(world: InstalledCluster, step: str) -> None:
    """Each thing done to kube-scheduler, cut off before it took effect."""
    said, pulled = world.scheduler._said, []

    def once(what: str) -> str:
        if what == step and not pulled:
            pulled.append(what)
            raise KeyboardInterrupt
        return said(what)

    world.scheduler._said = once
    if step == "roll back":
        world.scheduler.ill["wait"] = "it crashed"
    assert world.install() == Exit.STOPPED
    assert "interrupted" in world.screen.text
    world.scheduler.ill.clear()
    assert world.install() == Exit.DONE
    assert world.files.read(SCHEDULER) == AFTER


def _ends_in_words(act: Act, world: InstalledCluster, calls: list[str]) -> None:
    """What a retryable failure in a wait does is to wait on; all else must be told."""
    code, text = act(world), world.screen.text
    if code != Exit.DONE:
        assert code == Exit.STOPPED, calls[-1]
        assert "Stopped at " in text
        assert "Not done: " in text
        assert "To go on: gpusharectl " in text


def _state(world: InstalledCluster) -> str:
    """All that the same command reads when it is run again, so once from each state."""
    objects = [_without_keys(body) for body in world.picture(EVERY_KIND).values()]
    files = {
        path.relative_to(world.root): path.read_bytes()
        for path in sorted(world.root.rglob("*"))
        if path.is_file()
    }
    return repr((objects, files))


def picture(world: InstalledCluster) -> dict[Ref, Json]:
    """What there is, without uids and keys: made at another time it has others."""
    world.nodes.step()
    found = {}
    for ref, body in world.picture(EVERY_KIND).items():
        if not ref.name.startswith(f"{WEBHOOK}-") or ref.kind != "Pod":
            found[ref] = _without_keys(body)
            found[ref]["metadata"].pop("uid", None)
            for owner in found[ref]["metadata"].get("ownerReferences", ()):
                owner.pop("uid")
    return found


def _without_keys(body: Json) -> Json:
    """Keys are random: only whether they are there can be compared."""
    found: Json = copied(body)
    if body["kind"] == "Secret":
        found["data"] = sorted(found["data"])
    for one in found.get("webhooks", ()):
        one["clientConfig"]["caBundle"] = bool(one["clientConfig"].get("caBundle"))
    if Ref.of(body) == DEPLOYMENT:
        stamped = found["spec"]["template"]["metadata"]["annotations"]
        stamped[STAMP] = bool(stamped.get(STAMP))
    return found
