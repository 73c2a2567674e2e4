"""Each part ends the hard way, alone and all at once; nothing moves or doubles."""

import pytest

from tests.cluster.manifests import container, deployment, pod
from tests.cluster.site import Site
from tests.cluster.sums import within_capacity
from tests.nvml.driver import stub_card
from tests.testbed.waiting import wait_until

CARDS = [stub_card(0), stub_card(1)]
RUNNING = {"a": 20, "b": 4, "c": 20}

Identity = tuple[str, int, tuple[str, ...]]


def identity(site: Site, name: str) -> Identity:
    """A running container: its id, its restarts, the cards it sees."""
    status = site.get("pod", name)["status"]["containerStatuses"][0]
    seen = tuple(site.visible(name))
    return str(status["containerID"]), int(status["restartCount"]), seen


def plugin(site: Site) -> None:
    site.gpus["cp"].kill()
    site.gpus["cp"].start()


def kubelet(site: Site) -> None:
    site.cluster.nodes["cp"].restart_kubelet()
    site.cluster.wait_node_ready("cp")


def containerd(site: Site) -> None:
    node = site.cluster.nodes["cp"]
    node.kill_containerd()
    node.start_containerd()


def extender(site: Site) -> None:
    assert site.extender is not None
    site.kill_extender()
    site.start_extender()


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


ENDS = [plugin, kubelet, containerd, extender, socket, everything]


@pytest.fixture
def running(site: Site) -> Site:
    site.gpus["cp"].set_cards(CARDS)
    site.create(*(pod(n, container("main", u, 1)) for n, u in RUNNING.items()))
    site.wait_running(*RUNNING)
    return site


def test_restarts(running: Site) -> None:
    """Containers keep their cards, and the next pod gets what is really free."""
    site = running
    before = {name: identity(site, name) for name in RUNNING}
    for number, end in enumerate(ENDS):
        end(site)
        site.gpus["cp"].wait_offered()
        name = f"after-{number}"
        site.create(pod(name, container("main", 5, 1)))
        site.wait_running(name)
        placement = site.placement(site.get("pod", name))
        assert placement is not None
        assert site.visible(name) == [placement["shares"][0]["card"]], end.__name__
        now = {name: identity(site, name) for name in RUNNING}
        assert now == before, end.__name__
        assert within_capacity(site)
        site.kubectl("delete", "pod", name, "--grace-period=1")


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

    def both_run() -> bool:
        alive = [
            [p for p in site.pods_of(app) if p["status"]["phase"] == "Running"]
            for app in apps
        ]
        return all(len(pods) == 1 for pods in alive)

    wait_until(both_run, "both apps again", 180)
    cards = set()
    for app in apps:
        (found,) = (p for p in site.pods_of(app) if p["status"]["phase"] == "Running")
        name = found["metadata"]["name"]
        wait_until(
            lambda name=name: (
                site.cluster.try_kubectl("exec", name, "--", "true").returncode == 0
            ),
            "exec",
            60,
        )
        placement = site.placement(found)
        assert placement is not None
        assert site.visible(name) == [placement["shares"][0]["card"]]
        cards |= set(site.visible(name))
    assert len(cards) == 2
    assert within_capacity(site)
