"""The API server's way to the webhook: proved before anybody's pods depend on it."""

from collections.abc import Callable

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden
from gpushare.kube.facts import is_narrowed
from gpusharectl.installer.options import WebhookOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.webhook.apply import (
    NAME,
    ProbeResult,
    probe_webhook,
    webhook_probe_pod,
)
from gpusharectl.installer.webhook.objects import CONFIGURATIONS
from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.gpusharectl.installer.installed_cluster import EVERY_KIND, InstalledCluster

WANTED = WebhookOptions(wanted=True)
LOST = 'failed calling webhook "pods.vcuda.baidu.com": context deadline exceeded'
CHANGED = "the probe pod was changed by another webhook"
TRY = f"try to create Pod default/{NAME}"


def test_a_moment_is_waited_for(world: InstalledCluster, objects: FakeObjects) -> None:
    """A Service knows of a replica that is Ready a little later."""
    objects.unreachable = LOST
    pause = world.nodes.step

    def step() -> None:
        pause()
        if objects.calls[-1] == TRY and objects.calls.count(TRY) > 2:
            objects.unreachable = ""

    world.nodes.step = step
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    assert objects.calls.count(TRY) > 2


def test_one_that_was_asked_before_goes_on_being_asked(world: InstalledCluster) -> None:
    """To let pods through unseen is the operator's to say, and how, he is told."""
    world.install(webhook=WANTED)
    before = world.picture(EVERY_KIND)
    world.objects.unreachable = LOST
    assert world.install() == Exit.STOPPED
    assert world.picture(EVERY_KIND) == before
    assert "The API server still asks it, so no pod with cards is created" in (
        world.screen.text
    )
    assert "install --no-webhook would let them through" in world.screen.text


def test_a_configuration_that_believes_nobody_is_mended_first(
    world: InstalledCluster, objects: FakeObjects
) -> None:
    """Then it is the way that is probed, not the broken belief."""
    world.install(webhook=WANTED)
    whole = world.picture(EVERY_KIND)
    for one in objects.kept[CONFIGURATIONS[0]]["webhooks"]:
        one["clientConfig"]["caBundle"] = "eA=="
    admit = objects.admit

    def judged(pod: Json) -> Json:
        good = whole[CONFIGURATIONS[0]]["webhooks"]
        found = objects.kept[CONFIGURATIONS[0]]["webhooks"]
        objects.unreachable = "" if found == good else "x509: unknown authority"
        return admit(pod)

    objects.admit = judged
    assert world.install() == Exit.DONE, world.screen.text
    assert world.picture(EVERY_KIND) == whole


def test_one_that_is_not_asked_at_all_is_no_way(world: InstalledCluster) -> None:
    """Somebody's tool may narrow what is asked about; nothing would be put right."""
    world.objects.admit = lambda pod: pod
    assert world.install(webhook=WANTED) == Exit.STOPPED
    assert "it creates pods without asking the webhook" in world.screen.text
    (container,) = webhook_probe_pod()["spec"]["containers"]
    assert container["resources"] == {"limits": {names.MEMORY: "1"}}


def forbid(pod: Json) -> Json:
    raise Forbidden("no pods in default, says a policy")


def with_containers(containers: list[Json] | None) -> Callable[[Json], Json]:
    return lambda pod: {**pod, "spec": {**pod["spec"], "containers": containers}}


@pytest.mark.parametrize(
    ("admit", "said"),
    [
        (forbid, "the probe pod was refused: no pods in default, says a policy"),
        *(
            (with_containers(containers), CHANGED)
            for containers in (
                None,
                [],
                [{"name": "another"}],
                [{"name": "probe"}],
                [{"name": "probe", "resources": {"limits": {}}}],
            )
        ),
    ],
)
def test_who_refuses_or_changes_such_pods_hides_the_way(
    world: InstalledCluster,
    objects: FakeObjects,
    admit: Callable[[Json], Json],
    said: str,
) -> None:
    """It is said, and is no reason to stop."""
    objects.admit = admit
    assert probe_webhook(objects) == ProbeResult(None, said)
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    assert not any(is_narrowed(objects.kept[ref]) for ref in CONFIGURATIONS)
    assert f"reaches the webhook: {said}" in world.screen.text


def beside(pod: Json) -> Json:
    """A sidecar, which comes first."""
    sidecar = {"name": "istio-proxy", "resources": {}}
    return with_containers([sidecar, *pod["spec"]["containers"]])(pod)


def test_a_sidecar_is_no_answer(world: InstalledCluster, objects: FakeObjects) -> None:
    """The container that the webhook puts right is known by its name."""
    admit = objects.admit
    objects.admit = lambda pod: beside(admit(pod))
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    assert "is not known" not in world.screen.text
    objects.admit = beside
    assert probe_webhook(objects).reached is False
