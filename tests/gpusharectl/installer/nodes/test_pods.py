"""A new image is tried on its nodes before anything that runs is replaced."""

from collections.abc import Sequence

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.facts import SYSTEM
from gpushare.kube.objects import Ref
from gpusharectl.installer.nodes.pods import short_lived_pod
from gpusharectl.installer.progress import Exit
from tests.gpusharectl.installer.installed_cluster import InstalledCluster

TRIAL = "gpushare-image-trial"
TYPO, NEXT = "gpushare:0.1.O", "gpushare:next"
EXTENDER = Ref("v1", "Pod", "gpushare-extender-cp", SYSTEM)
WHY = "the image gpushare:0.1.O cannot be pulled"


def tried(world: InstalledCluster) -> Sequence[str]:
    """The nodes on which a trial began since the last call."""
    start = f"create Pod {SYSTEM}/{TRIAL}-"
    found = [one.removeprefix(start) for one in world.objects.writes if start in one]
    world.objects.writes.clear()
    return found


def left(world: InstalledCluster) -> list[Json]:
    pods = world.objects.list("v1", "Pod", namespace=SYSTEM)
    return [pod for pod in pods if pod["metadata"]["name"].startswith(TRIAL)]


def test_each_node_of_a_daemonset_tries_it_once(world: InstalledCluster) -> None:
    """And only an image that is new there."""
    assert world.install() == Exit.DONE
    assert tried(world) == ["cp", "gpu-1"]
    assert world.install(ui=True) == Exit.DONE
    assert tried(world) == []
    assert world.install(image=NEXT) == Exit.DONE
    assert f"{NEXT} starts on cp, gpu-1" in world.screen.lines
    assert tried(world) == ["cp", "gpu-1"]
    # The extender has the image already; only the exporter is new.
    assert world.install(with_monitoring=True) == Exit.DONE
    assert tried(world) == ["gpu-1"]
    assert left(world) == []


def test_what_runs_stays_if_the_new_image_cannot_be_pulled(
    world: InstalledCluster,
) -> None:
    """Told within half a minute; the command to go on does not name it again."""
    assert world.install() == Exit.DONE
    before, began = world.picture(), world.clock.now_s
    world.nodes.unpullable = TYPO
    assert world.install(image=TYPO, ui=True) == Exit.STOPPED
    assert world.clock.now_s - began < 60
    assert world.picture() == before
    text = " ".join(world.screen.text.split())
    assert f"cp, gpu-1: {WHY}" in text
    assert "Nothing was changed; what runs stays as it is." in text
    ways = [line for line in world.screen.lines if line.startswith("To ")]
    assert [TYPO in line for line in ways] == [False]
    assert "install --nodes gpu-1 --ui --yes --image IMAGE" in text


def test_a_first_install_tells_it_too(world: InstalledCluster) -> None:
    world.nodes.unpullable = "gpushare:0.1.0"
    before = world.picture()
    assert world.install() == Exit.STOPPED
    assert world.picture() == before
    assert "what runs stays" not in world.screen.text


def test_the_way_back_names_the_image_before(world: InstalledCluster) -> None:
    """If the image starts, and the extender in it does not become Ready.

    Also in a second run, which finds the new image installed.
    """
    assert world.install(image="gpushare:1") == Exit.DONE
    world.objects.delete(EXTENDER)
    world.nodes.stuck.add(EXTENDER.name)
    again = "gpusharectl install --nodes gpu-1 --yes"
    back = [
        f"To go back: {again} --image gpushare:1",
        "To undo all: gpusharectl uninstall",
    ]
    for asked, on in ((NEXT, f"{again} --image {NEXT}"), ("", again)):
        assert world.install(image=asked) == Exit.STOPPED
        ways = [line for line in world.screen.lines if line.startswith("To ")]
        assert ways == [f"To go on: {on}", *back]
        if asked:
            for number, image in enumerate(("gpushare:0", "gpushare:1", NEXT), 1):
                remember(world, number, image)


def remember(world: InstalledCluster, number: int, image: str) -> None:
    """Let the DaemonSet controller keep a revision of the extender's template."""
    ref = Ref("apps/v1", "DaemonSet", "gpushare-extender", SYSTEM)
    owner = {"uid": world.objects.get(ref)["metadata"]["uid"]}
    pod = {"spec": {"containers": [{"image": image}]}}
    world.objects.create(
        {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": f"gpushare-extender-{number}",
                "namespace": SYSTEM,
                "ownerReferences": [owner],
            },
            "revision": number,
            "data": {"spec": {"template": pod}},
        }
    )


def test_a_killed_runs_trial_is_removed(world: InstalledCluster) -> None:
    """By the next install, whatever it is run for, and by an uninstall."""
    assert world.install() == Exit.DONE
    for act in (world.install, world.uninstall):
        world.objects.create(short_lived_pod(TRIAL, "gone", {"image": TYPO}))
        assert act() == Exit.DONE, world.screen.text
        assert left(world) == []


@pytest.mark.parametrize("there", [False, True])
def test_it_is_pulled_with_the_workloads_credentials(
    world: InstalledCluster, there: bool
) -> None:
    """An account that is not there yet would keep the pod from being created."""
    if there:
        assert world.install() == Exit.DONE
    specs, create = {}, world.objects.create

    def spy(body: Json) -> Json:
        specs[body["metadata"]["name"]] = body["spec"]
        return create(body)

    world.objects.create = spy
    assert world.install(image=NEXT) == Exit.DONE
    accounts = [spec.get("serviceAccountName") for spec in specs.values()]
    own = ["gpushare-extender", "gpushare-device-plugin"]
    assert accounts == (own if there else [None, None])
    assert all(one["automountServiceAccountToken"] is False for one in specs.values())
