"""Claims on a real cluster: kube-scheduler, kubelet, containerd, and our DRA driver."""

import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from gpushare.domain.model import Amount, CardUUID
from gpushare.kube.claims.allocated import device_name, read_claim
from gpushare.kube.claims.templates import template as parts_of_one_card
from tests.cluster.gpus import PLUGIN, ROOT
from tests.cluster.manifests import (
    ONE_CARD_APPS,
    RTX_3090,
    TWO_CARD_APPS,
    TWO_OF_4_GIB,
    TWO_P4,
    container,
    pod,
)
from tests.cluster.seen import ALLOCATION, inside, refused_with, variables
from tests.cluster.site import SYSTEM, Site
from tests.nvml.driver import StubCard
from tests.testbed.credentials import grant
from tests.testbed.kubeadm.files import CDI_OF_CLAIMS
from tests.testbed.manifests import FOLDER, documents, rights
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

GROUP = "/apis/resource.k8s.io/v1"
SLICES = f"{GROUP}/resourceslices"
TEMPLATES = f"{GROUP}/namespaces/default/resourceclaimtemplates"
DRIVER = "vcuda.baidu.com"


def template(units: int, cores: int) -> Json:
    asked = {"memory": f"{units * 256}Mi", "cores": str(cores)}
    exactly = {"deviceClassName": "vcuda", "capacity": {"requests": asked}}
    devices = {"requests": [{"name": "card", "exactly": exactly}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"vcuda-m{units}-c{cores}"},
        "spec": {"spec": {"devices": devices}},
    }


@pytest.fixture
def claims(site: Site) -> Iterator[Site]:
    """The cluster with the DeviceClass, and the device plugin with its rights."""
    rest = site.cluster.rest
    more = [
        step["value"]
        for step in yaml.safe_load((FOLDER / "dra-plugin/rights.yaml").read_text())
    ]
    user = f"system:serviceaccount:{SYSTEM}:{PLUGIN}"
    grant(rest, user, [*rights(PLUGIN), *more])
    for body in documents("dra/device-class.yaml"):
        rest.must("POST", f"{GROUP}/deviceclasses", body)
    yield site
    site.clear()
    rest.must("DELETE", f"{GROUP}/deviceclasses")
    rest.must("DELETE", TEMPLATES)
    site.gpus["cp"].stop()
    rest.must("DELETE", SLICES)


def offer(site: Site, *cards: StubCard) -> None:
    """Put cards into the node, whose plugin has DRA on from now on."""
    gpus = site.gpus["cp"]
    gpus.stop_offering()
    gpus.settings = {"DRA": "on", "CDI_DIRS": f"/etc/cdi,{CDI_OF_CLAIMS}"}
    gpus.set_cards(cards)
    wait_until(lambda: len(devices(site)) == len(cards), "the slice", 30)


@pytest.fixture
def plugin_as_before(site: Site) -> Iterator[None]:
    before = site.gpus["cp"].settings
    yield
    site.gpus["cp"].settings = before


def slices(site: Site) -> list[Json]:
    found: list[Json] = site.cluster.rest.must("GET", SLICES)["items"]
    return [one for one in found if one["spec"]["driver"] == DRIVER]


def devices(site: Site) -> list[Json]:
    return [one for each in slices(site) for one in each["spec"].get("devices", ())]


def by_claim(site: Site, name: str, units: int, cores: int = 1) -> None:
    """Create a pod of one claim, and the template that it needs."""
    body = template(units, cores)
    status, said = site.cluster.rest.request("POST", TEMPLATES, body)
    assert status in {201, 409}, said
    one = container("main", resources={"claims": [{"name": "card"}]})
    asked = {"name": "card", "resourceClaimTemplateName": body["metadata"]["name"]}
    site.create(pod(name, one, resourceClaims=[asked]))


def specifications(site: Site) -> list[str]:
    folder = site.cluster.nodes["cp"].path(CDI_OF_CLAIMS)
    return [path.name for path in folder.glob(f"{DRIVER}-share_*.json")]


@pytest.mark.usefixtures("plugin_as_before")
def test_each_container_has_its_part_of_one_card(claims: Site) -> None:
    """As the webhook writes pods of several containers: each sees its own amount."""
    offer(claims, *TWO_OF_4_GIB)
    parts = {"main": Amount(20, 9), "second": Amount(1, 4)}
    body = parts_of_one_card(list(parts.values()))
    claims.cluster.rest.must("POST", TEMPLATES, body)
    both = [
        container(
            name, resources={"claims": [{"name": "vcuda", "request": f"card-{number}"}]}
        )
        for number, name in enumerate(parts, 1)
    ]
    asked = {"name": "vcuda", "resourceClaimTemplateName": body["metadata"]["name"]}
    claims.create(pod("both", *both, resourceClaims=[asked]))
    claims.wait_running("both")
    seen = {
        name: variables(inside(claims, "both", "env", container=name)) for name in parts
    }
    for name, part in parts.items():
        assert seen[name]["VCUDA_MEMORY_LIMIT_MIB"] == str(part.units * 256)
        assert seen[name]["VCUDA_CORES"] == str(part.cores)
    assert seen["main"]["VCUDA_CARDS"] == seen["second"]["VCUDA_CARDS"]


@pytest.mark.usefixtures("plugin_as_before")
def test_three_apps_on_two_p4(claims: Site) -> None:
    """Seed 001 by claims alone: 4 and 20 share a card, the other 20 has the other.

    Each container sees one card and its share. A restart of kubelet takes the slice,
    which comes back; the pods go on, another starts, and nothing is left of them.
    """
    offer(claims, *TWO_P4)
    for name, units in TWO_CARD_APPS.items():
        by_claim(claims, name, units)
    claims.wait_running(*TWO_CARD_APPS)
    groups: dict[str, list[int]] = {}
    for name, units in TWO_CARD_APPS.items():
        (uuid,) = claims.visible(name)
        groups.setdefault(uuid, []).append(units)
        env = variables(inside(claims, name, "env"))
        assert env["VCUDA_MEMORY_LIMIT_MIB"] == str(units * 256)
        assert env["VCUDA_CARDS"] == uuid
        (share,) = json.loads(inside(claims, name, "cat", ALLOCATION))["cards"]
        assert (share["uuid"], share["units"], share["cores"]) == (uuid, units, 1)
    assert sorted(map(sorted, groups.values())) == [[4, 20], [20]]
    assert len(specifications(claims)) == 3

    (before,) = slices(claims)
    claims.cluster.nodes["cp"].restart_kubelet()
    wait_until(
        lambda: [
            one for one in slices(claims) if one["metadata"] != before["metadata"]
        ],
        "the slice, written again",
        60,
    )
    (after,) = slices(claims)
    assert after["spec"]["pool"]["generation"] > before["spec"]["pool"]["generation"]
    assert [one["capacity"] for one in devices(claims)] == [
        one["capacity"] for one in before["spec"]["devices"]
    ]
    by_claim(claims, "later", 5)
    claims.wait_running("later", *TWO_CARD_APPS)
    claims.kubectl("delete", "pod", "later", *TWO_CARD_APPS)
    wait_until(lambda: not specifications(claims), "no specification", 60)


@pytest.mark.usefixtures("plugin_as_before")
def test_one_card_for_both(claims: Site) -> None:
    """Seed 001's 50, 40 and 1 on 94 units, the first by the classic way.

    10 more wait by whichever way, and run when the classic pod has ended.
    """
    offer(claims, RTX_3090)
    first, *others = ONE_CARD_APPS.items()
    claims.create(pod(first[0], container("main", first[1], 1)))
    claims.wait_running(first[0])
    wait_until(lambda: memory(claims) == ["11Gi"], "the card's room", 30)
    for name, units in others:
        by_claim(claims, name, units)
    claims.wait_running(*ONE_CARD_APPS)
    assert {tuple(claims.visible(name)) for name in ONE_CARD_APPS} == {(RTX_3090.uuid,)}
    by_claim(claims, "waits", 10)
    refused_with(claims, "waits", "cannot allocate all claims")
    claims.kubectl("delete", "pod", first[0])
    claims.wait_running("waits")
    claims.kubectl("create", "-f", "-", stdin=example())
    claims.wait_running("by-claim")
    assert variables(inside(claims, "by-claim", "env"))["VCUDA_CORES"] == "20"


@pytest.mark.usefixtures("plugin_as_before")
def test_two_cards_of_4_gib(claims: Site) -> None:
    """Seed 001: 2 and 2 GiB share card 1; 2 and 3 GiB have a card each.

    kubelet tells a pod's status of a fault. While DRA is off, pods can still end.
    """
    offer(claims, *TWO_OF_4_GIB)
    one, two = (card.uuid for card in TWO_OF_4_GIB)
    by_claim(claims, "ai-1", 8)
    by_claim(claims, "ai-2", 8)
    claims.wait_running("ai-1", "ai-2")
    assert claims.visible("ai-1") == claims.visible("ai-2") == [one]
    claims.kubectl("delete", "pod", "ai-2")
    by_claim(claims, "ai-2", 12)
    claims.wait_running("ai-2")
    assert (claims.visible("ai-1"), claims.visible("ai-2")) == ([one], [two])

    gpus = claims.gpus["cp"]
    well = [("Healthy", "")]
    for name in ("ai-1", "ai-2"):
        wait_until(lambda name=name: health(claims, name) == well, f"{name}'s health")
    gpus.driver.xid(one, 79)
    wait_until(lambda: health(claims, "ai-1")[0][0] == "Unhealthy", "the fault", 30)
    assert "XID 79" in health(claims, "ai-1")[0][1]
    assert health(claims, "ai-2") == well
    claims.kubectl("annotate", "node", "cp", f"baidu.com/vcuda-clear={one}")
    wait_until(lambda: health(claims, "ai-1") == well, "it to be well again", 30)

    gpus.stop()
    gpus.settings = {**gpus.settings, "DRA": "off"}
    gpus.start()
    wait_until(lambda: not slices(claims), "the slices to go", 30)
    claims.kubectl("delete", "pod", "ai-1", "ai-2")
    wait_until(lambda: not specifications(claims), "no specification", 60)


def health(site: Site, name: str) -> list[tuple[str, str]]:
    """The health of a pod's claims, and the reason, as kubelet tells the API server."""
    (status,) = site.get("pod", name)["status"]["containerStatuses"]
    return [
        (one["health"], one.get("message", ""))
        for claim in status.get("allocatedResourcesStatus", ())
        for one in claim["resources"]
    ]


def example() -> str:
    """The template and the pod that docs/dra.md shows."""
    page = (ROOT / "docs/dra.md").read_text()
    (found,) = re.findall(r"```yaml\n(\S[^`]*kind: Pod\n[^`]*)```", page)
    return str(found)


def memory(site: Site) -> list[str]:
    return [str(one["capacity"]["memory"]["value"]) for one in devices(site)]


@pytest.mark.usefixtures("plugin_as_before")
def test_both_kinds_at_once(claims: Site) -> None:
    """Whoever allocates without knowing of the other: no card is ever above its units.

    Nothing arbitrates here but the node itself, whose plugin is killed in between.
    Afterwards nothing is left of any claim.
    """
    offer(claims, *TWO_P4)
    names = [f"{kind}-{number}" for number in range(8) for kind in ("classic", "claim")]
    for name in names:
        if name.startswith("claim"):
            by_claim(claims, name, 5)
        else:
            claims.create(pod(name, container("main", 5, 1)))
    gpus = claims.gpus["cp"]

    def running() -> int:
        held = running_units(claims)
        assert max(held.values(), default=0) <= 29, held
        return sum(held.values())

    for _ in range(20):
        running()
    gpus.kill()
    gpus.start(wait=False)
    wait_until(lambda: running() >= 40, "eight of the pods to run", 120)
    claims.kubectl("delete", "pod", "--wait=false", *names)
    wait_until(lambda: not specifications(claims), "no specification", 60)
    left = gpus.folder / "state" / "claims"
    wait_until(lambda: not list(left.iterdir()), "no record", 30)


def running_units(site: Site) -> Counter[str]:
    """The units of each card that running pods have, by either way."""
    held: Counter[str] = Counter()
    path = f"{GROUP}/namespaces/default/resourceclaims"
    allocated = site.cluster.rest.must("GET", path)["items"]
    running = {
        one["metadata"]["uid"]: one
        for one in site.get("pods")["items"]
        if one["status"]["phase"] == "Running"
    }
    cards = {device_name(CardUUID(card.uuid)): card.uuid for card in TWO_P4}
    for body in allocated:
        claim = read_claim(body)
        if claim and any(user.uid in running for user in claim.reserved_for):
            for one in claim.devices:
                held[cards[one.name]] += one.amount.units
    for one in running.values():
        for share in (site.placement(one) or {"shares": []})["shares"]:
            held[share["card"]] += sum(u for _, u in share["containers"].values())
    return held
