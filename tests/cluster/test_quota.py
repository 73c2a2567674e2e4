"""Quotas on Bitfusion's resource, and on ours, with a real kubelet and controller."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from gpushare.kube.names import BITFUSION_GPU, CORE
from gpusharectl.commands import main
from tests.cluster.gpus import Gpus
from tests.cluster.manifests import container, pod
from tests.cluster.seen import card_of
from tests.cluster.site import Site
from tests.nvml.driver import stub_card
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.filterwarnings(
    # Of the test bed's certificate.
    "ignore::urllib3.exceptions.InsecureRequestWarning"
)

CARDS = [stub_card(0), stub_card(1)]
FIRST, SECOND = (card.uuid for card in CARDS)
OLD, NEW = f"requests.{BITFUSION_GPU}", f"requests.{CORE}"


@pytest.fixture
def gpus(site: Site) -> Iterator[Gpus]:
    """Two cards, a plugin that offers Bitfusion's resource, a quota of one card."""
    found = site.gpus["cp"]
    found.set_cards(CARDS)
    with found.reconfigured(BITFUSION_QUOTA="on"):
        wait_offered(site, 200)
        site.kubectl("create", "quota", "gpu", f"--hard={OLD}=100")
        yield found
        site.kubectl("delete", "quota", "gpu")
        site.clear()


def offered(site: Site, resource: str = BITFUSION_GPU) -> int:
    found = site.get("node", "cp")["status"]["allocatable"]
    return int(found.get(resource, 0))


def wait_offered(site: Site, count: int, resource: str = BITFUSION_GPU) -> None:
    wait_until(lambda: offered(site, resource) == count, f"{count} of {resource}", 120)


def shared(name: str, percent: int) -> Json:
    """A pod as the webhook leaves it where it keeps the resource for quotas."""
    asking = container("main", 29 * percent // 100, percent)
    asking["resources"]["limits"][BITFUSION_GPU] = str(percent)
    return pod(name, asking)


def described(site: Site) -> dict[str, tuple[str, ...]]:
    """``kubectl describe quota``: used and hard, by resource."""
    lines = site.kubectl("describe", "quota", "gpu").splitlines()
    rows = [line.split() for line in lines if line.startswith("requests.")]
    return {row[0]: tuple(row[1:]) for row in rows}


def wait_used(site: Site, resource: str, used: str) -> None:
    wait_until(
        lambda: described(site),
        f"{used} of 100",
        120,
        accept=lambda seen: seen == {resource: (used, "100")},
    )


def ran(site: Site, *words: str) -> Result:
    config = str(site.cluster.kubeconfig)
    return CliRunner().invoke(main, [*words, "--kubeconfig", config])


def refused(site: Site, body: Json) -> str:
    done = site.cluster.try_kubectl("create", "-f", "-", stdin=json.dumps(body))
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_a_quota_counts_what_the_pod_kept(site: Site, gpus: Gpus) -> None:
    """50 of 100 and its card; a pod over it is denied in the API server's words."""
    site.create(shared("half", 50))
    site.wait_running("half")
    card = card_of(site, "half")
    wait_used(site, OLD, "50")
    said = refused(site, shared("more", 60))
    assert f"exceeded quota: gpu, requested: {OLD}=60, used: {OLD}=50" in said
    data = json.loads(ran(site, "inspect", "-o", "json").stdout)
    (mine,) = (one for one in data["namespaces"] if one["name"] == "default")
    assert mine["allotted"]["cores"] == 50
    assert mine["quotas"] == [
        {"name": "gpu", "resource": BITFUSION_GPU, "hard": 100, "used": 50}
    ]

    site.cluster.nodes["cp"].restart_kubelet()
    site.cluster.wait_node_ready("cp")
    wait_offered(site, 200)
    gpus.kill()
    gpus.start()
    wait_offered(site, 200)
    assert card_of(site, "half") == card

    # Its numbers belong to no card, so a sick one takes none away; its cores do go.
    other = SECOND if card == FIRST else FIRST
    gpus.driver.xid(other, 79)
    wait_offered(site, 100, CORE)
    assert offered(site) == 200
    assert site.phase("half") == "Running"
    assert ran(site, "clear-card", "cp", other).exit_code == 0
    wait_offered(site, 200, CORE)


def test_a_quota_that_was_moved_counts_ours(site: Site, gpus: Gpus) -> None:
    """The controller counts anew by itself, what runs already included."""
    site.create(shared("half", 50))
    site.wait_running("half")
    moved = ran(site, "migrate-quota", "--from", OLD)
    assert moved.exit_code == 0, moved.output
    wait_used(site, NEW, "50")
    said = refused(site, shared("more", 60))
    assert f"exceeded quota: gpu, requested: {NEW}=60, used: {NEW}=50" in said
