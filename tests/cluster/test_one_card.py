"""Seed 001, one machine with one card, done literally."""

from tests.cluster.manifests import (
    MEMORY,
    ONE_CARD_APPS,
    RTX_3090,
    SEED_COMMAND,
    container,
    deployment,
    lingering,
    pod,
)
from tests.cluster.seen import inside, refused_with, statuses
from tests.cluster.site import Site
from tests.testbed.waiting import wait_until

THIRD = "nvidia-cuda11-base-3"
ONE_SHORT = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory."


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
    *others, third = ONE_CARD_APPS.items()
    literal = [deployment(*one, script=SEED_COMMAND) for one in others]
    site.create(*literal, lingering(*third))
    wait_until(lambda: site.ready(*ONE_CARD_APPS), "all three apps", 120)
    for each in ONE_CARD_APPS:
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
