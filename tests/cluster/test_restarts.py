"""Parts end the hard way, alone and all at once; nothing moves or doubles."""

from collections.abc import Callable

import pytest

from tests.cluster.manifests import container, deployment, pod
from tests.cluster.seen import within_capacity
from tests.cluster.site import Site
from tests.nvml.driver import stub_card
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

CARDS = [stub_card(0), stub_card(1)]
RUNNING = {"a": 20, "b": 4, "c": 20}

Identity = tuple[str, int, tuple[str, ...]]


def identity(site: Site, name: str) -> Identity:
    """A running container: its id, its restarts, the cards it sees."""
    status = site.get("pod", name)["status"]["containerStatuses"][0]
    seen = tuple(site.visible(name))
    return str(status["containerID"]), int(status["restartCount"]), seen


def containerd(site: Site) -> None:
    node = site.cluster.nodes["cp"]
    node.kill_containerd()
    node.start_containerd()


def socket(site: Site) -> None:
    folder = site.cluster.nodes["cp"].path("/var/lib/kubelet/device-plugins")
    for path in folder.glob("baidu.com_*.sock"):
        path.unlink()
    wait_until(
        lambda: len(list(folder.glob("baidu.com_*.sock"))) == 2, "new sockets", 30
    )


def everything(site: Site) -> None:
    node = site.cluster.nodes["cp"]
    site.gpus["cp"].kill()
    site.kill_extender()
    node.kill_kubelet()
    node.kill_containerd()
    node.start_containerd()
    node.start_kubelet()
    site.gpus["cp"].start(wait=False)
    site.start_extender()


ENDS = [containerd, socket, everything]
"""Each of the others alone: ``test_dra_race.py``."""


@pytest.fixture
def running(site: Site) -> Site:
    """Three pods on two cards, each in its place."""
    site.gpus["cp"].set_cards(CARDS)
    site.create(*(pod(n, container("main", u, 1)) for n, u in RUNNING.items()))
    site.wait_running(*RUNNING)
    return site


@pytest.mark.parametrize("end", ENDS, ids=lambda end: str(end.__name__))
def test_restarts(running: Site, end: Callable[[Site], None]) -> None:
    """Amid the admission of eight pods: what runs keeps its card, and those get theirs.

    A pod that kubelet fails meanwhile is replaced by its controller.
    """
    site = running
    before = {name: identity(site, name) for name in RUNNING}
    site.create(deployment("amid", 1, 1, replicas=8))
    end(site)
    site.gpus["cp"].wait_offered()
    wait_until(lambda: len(running_of(site, "amid")) == 8, "eight pods", 120)
    for found in running_of(site, "amid"):
        placement = site.placement(found)
        assert placement is not None
        seen = site.visible(found["metadata"]["name"])
        assert seen == [placement["shares"][0]["card"]]
    assert {name: identity(site, name) for name in RUNNING} == before
    assert within_capacity(site)


def running_of(site: Site, app: str) -> list[Json]:
    """The pods of a Deployment that run, and are not on their way out."""
    return [
        found
        for found in site.pods_of(app)
        if found["status"]["phase"] == "Running"
        and "deletionTimestamp" not in found["metadata"]
    ]


def test_reboot(site: Site) -> None:
    """Old pods may fail before a plugin is there; then their cards are free again."""
    site.gpus["cp"].set_cards(CARDS)
    apps = {"big-1": 20, "big-2": 20}
    site.create(*(deployment(name, units) for name, units in apps.items()))
    wait_until(lambda: site.ready(*apps), "both apps", 120)
    site.gpus["cp"].kill()
    site.cluster.reboot("cp")
    site.start_extender()
    site.gpus["cp"].start()

    # What the API server calls Running may be from before the reboot.
    wait_until(lambda: all(answers(site, app) for app in apps), "both apps again", 180)
    cards = set()
    for app in apps:
        (found,) = running_of(site, app)
        placement = site.placement(found)
        assert placement is not None
        seen = site.visible(found["metadata"]["name"])
        assert seen == [placement["shares"][0]["card"]]
        cards |= set(seen)
    assert len(cards) == 2
    assert within_capacity(site)


def answers(site: Site, app: str) -> bool:
    """Tell whether an app's one pod runs a program that is asked."""
    names = [found["metadata"]["name"] for found in running_of(site, app)]
    return len(names) == 1 and (
        site.cluster.try_kubectl("exec", names[0], "--", "true").returncode == 0
    )
