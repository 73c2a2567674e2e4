"""Seed 001, one machine with one card, done literally."""

from tests.cluster.cards import RTX_3090
from tests.cluster.seen import inside, refused_with, statuses
from tests.cluster.site import (
    MEMORY,
    SEED_COMMAND,
    Site,
    container,
    deployment,
    pod,
)
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

APPS = ("nvidia-cuda11-base-1", "nvidia-cuda11-base-2", "nvidia-cuda11-base-3")
THIRD = APPS[2]
LINGER = "until [ -e /tmp/end ]; do sleep 0.2; done; exit"
ONE_SHORT = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory."


def app(name: str, units: int) -> Json:
    """An application that gives up its old pod before the new one runs.

    As the seed's platform does: else the new pod would wait for room, and the old one
    would stay until then. Its end takes as long as the test wants it to.
    """
    one = container("main", units, 1, script=f"trap '{LINGER}' TERM; {SEED_COMMAND}")
    made = deployment(name, None, containers=[one], terminationGracePeriodSeconds=120)
    made["spec"]["strategy"] = {"rollingUpdate": {"maxUnavailable": 1}}
    return made


def set_limit(site: Site, name: str, units: int) -> None:
    site.kubectl("set", "resources", f"deployment/{name}", f"--limits={MEMORY}={units}")


def let_end(site: Site, name: str) -> None:
    """Let the pod end as soon as it is told to, which may have been already."""
    inside(site, name, "touch", "/tmp/end")


def test_limit_raised_and_put_back(site: Site) -> None:
    """94 units: 50, 40 and 1 run and see the one card; 10 instead of 1 has to wait.

    The old pod is Terminating beside the new one, Pending, which says why; it is
    Pending still when the old one has gone, though others run in what is left. With
    the limit put back it runs.
    """
    site.gpus["cp"].set_cards([RTX_3090])
    assert site.allocatable("cp") == (100, 94)
    site.create(deployment(APPS[0], 50), deployment(APPS[1], 40), app(THIRD, 1))
    wait_until(lambda: site.ready(*APPS), "all three apps", 120)
    for each in APPS:
        assert site.visible(site.pod_of(each)) == [RTX_3090.uuid]

    old = site.pod_of(THIRD)
    set_limit(site, THIRD, 10)
    shown = wait_until(
        lambda: statuses(site, THIRD), "two pods", accept=lambda all_: len(all_) == 2
    )
    wait_until(lambda: statuses(site, THIRD).get(old) == "Terminating", "the old one")
    (new,) = shown.keys() - {old}
    refused_with(site, new, ONE_SHORT)
    assert statuses(site, THIRD) == {old: "Terminating", new: "Pending"}

    let_end(site, old)
    site.kubectl("wait", "--for=delete", f"pod/{old}", "--timeout=60s")
    assert statuses(site, THIRD) == {new: "Pending"}
    site.create(pod("small", container("main", 3, 1)))
    site.wait_running("small")
    assert statuses(site, THIRD) == {new: "Pending"}
    assert ONE_SHORT in site.kubectl("describe", "pod", new)

    set_limit(site, THIRD, 1)
    wait_until(lambda: site.ready(THIRD), "the third app again", 120)
    assert site.visible(site.pod_of(THIRD)) == [RTX_3090.uuid]
    let_end(site, site.pod_of(THIRD))
