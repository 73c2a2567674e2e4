"""Claims on a real cluster: kube-scheduler, kubelet, containerd, and our DRA driver.

The first tests have no arbiter: nothing keeps claims and classic pods apart but the
node. The others have all that ``docs/dra.md`` switches on.
"""

import json
import re
import signal
from collections import Counter
from collections.abc import Collection

import pytest

from gpushare.domain.model import Amount, CardUUID
from gpushare.kube.resource_claims.allocated import name_device
from gpushare.kube.resource_claims.templates import write_template as parts_of_one_card
from tests.cluster.dra_on import CLAIMS, DRIVER, GROUP, TEMPLATES
from tests.cluster.gpus import ROOT
from tests.cluster.manifests import (
    ONE_CARD_APPS,
    RTX_3090,
    TWO_CARD_APPS,
    TWO_OF_4_GIB,
    TWO_P4,
    container,
    pod,
)
from tests.cluster.seen import (
    ALLOCATION,
    inside,
    refused_with,
    variables,
)
from tests.cluster.site import Site
from tests.controlplane.claims import results
from tests.nvml.driver import StubCard
from tests.testbed.kubeadm.files import CDI_OF_CLAIMS
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.since("1.36", "claims that share a device")

SLICES = f"{GROUP}/resourceslices"


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


def offer(site: Site, *cards: StubCard) -> None:
    """Put cards into the node, which offers them to claims too."""
    site.gpus["cp"].set_cards(cards)
    names = [name_device(CardUUID(card.uuid)) for card in cards]
    wait_until(
        lambda: [one["name"] for one in devices(site)],
        "the slice",
        accept=lambda found: found == names,
    )


def slices(site: Site) -> list[Json]:
    found: list[Json] = site.cluster.rest.must("GET", SLICES)["items"]
    return [one for one in found if one["spec"]["driver"] == DRIVER]


def devices(site: Site) -> list[Json]:
    return [one for each in slices(site) for one in each["spec"].get("devices", ())]


def memory(site: Site) -> list[str]:
    return [str(one["capacity"]["memory"]["value"]) for one in devices(site)]


def claim_pod(site: Site, name: str, units: int, cores: int = 1) -> Json:
    """Describe a pod of one claim, and create the template that it needs."""
    body = template(units, cores)
    status, said = site.cluster.rest.request("POST", TEMPLATES, body)
    assert status in {201, 409}, said
    one = container("main", resources={"claims": [{"name": "card"}]})
    asked = {"name": "card", "resourceClaimTemplateName": body["metadata"]["name"]}
    return pod(name, one, resourceClaims=[asked])


def by_claim(site: Site, name: str, units: int, cores: int = 1) -> None:
    site.create(claim_pod(site, name, units, cores))


def classic_pod(name: str, units: int) -> Json:
    return pod(name, container("main", units, 1))


def create(site: Site, classic: Collection[str], name: str, units: int) -> None:
    """Create a pod, by the classic way if it is one of those."""
    if name in classic:
        site.create(classic_pod(name, units))
    else:
        by_claim(site, name, units)


def specifications(site: Site) -> list[str]:
    folder = site.cluster.nodes["cp"].path(CDI_OF_CLAIMS)
    return [path.name for path in folder.glob(f"{DRIVER}-share_*.json")]


def nothing_prepared(site: Site) -> None:
    """Wait until nothing is left of any claim on the node.

    A kubelet that was killed takes back the claims of pods that have gone meanwhile
    when it compares what it knows with its pods, once a minute.
    """
    left = site.gpus["cp"].folder / "state" / "claims"
    for files in (lambda: specifications(site), lambda: list(left.iterdir())):
        wait_until(files, "removal of files", 240, accept=lambda has: not has)


def held_units(site: Site) -> Counter[str]:
    """Add up what bound pods and allocated claims have of each card, at one moment."""
    held: Counter[str] = Counter()
    rest, pods = site.cluster.rest, "/api/v1/namespaces/default/pods"
    listed = rest.must("GET", CLAIMS)
    moment = {
        "resourceVersion": listed["metadata"]["resourceVersion"],
        "resourceVersionMatch": "Exact",
    }
    for claim in listed["items"]:
        for name, units in results(claim.get("status") or {}):
            held[name] += units
    for one in rest.items(pods, fieldSelector="spec.nodeName!=", **moment):
        placement = site.placement(one) or {"shares": []}
        if one["status"]["phase"] not in {"Succeeded", "Failed"}:
            for share in placement["shares"]:
                held[share["card"].lower()] += share["units"]
    return held


def test_both_kinds_without_an_arbiter(claims: Site) -> None:
    """Whoever allocates without knowing of the other: no card is ever above its units.

    Nothing arbitrates here but the node itself, whose plugin is killed in between.
    Afterwards nothing is left of any claim.
    """
    offer(claims, *TWO_P4)
    names = [f"{kind}-{number}" for number in range(8) for kind in ("classic", "claim")]
    for name in names:
        create(claims, names[::2], name, 5)
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
    nothing_prepared(claims)


def running_units(site: Site) -> Counter[str]:
    """The units of each card that running pods have, by either way."""
    held: Counter[str] = Counter()
    running = {
        one["metadata"]["uid"]: one
        for one in site.get("pods")["items"]
        if one["status"]["phase"] == "Running"
    }
    for claim in site.cluster.rest.items(CLAIMS):
        status = claim.get("status") or {}
        users = {one["uid"] for one in status.get("reservedFor", ())}
        if users & running.keys():
            for name, units in results(status):
                held[name] += units
    for one in running.values():
        for share in (site.placement(one) or {"shares": []})["shares"]:
            held[share["card"].lower()] += share["units"]
    return held


BY_CLAIMS = pytest.mark.parametrize("classic", [(), (0, 2)], ids=["claims", "mixed"])
"""Which of an exercise's pods, by number, ask by the classic way. Where all of them do:
``test_one_card.py`` and ``test_two_cards.py``."""


@BY_CLAIMS
@pytest.mark.usefixtures("arbiter")
def test_three_apps_on_two_p4(claims: Site, classic: tuple[int, ...]) -> None:
    """Seed 001: 4 and 20 share a card, the other 20 has the other.

    Each container sees one card and its share. A restart of kubelet takes the slice,
    which comes back; the pods go on, another starts, and nothing is left of them.
    """
    offer(claims, *TWO_P4)
    names = [*TWO_CARD_APPS]
    for name, units in TWO_CARD_APPS.items():
        create(claims, [names[number] for number in classic], name, units)
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
    assert len(specifications(claims)) == len(names) - len(classic)
    assert sorted(held_units(claims).values()) == [20, 24]

    if not classic:
        restart_kubelet(claims)
        by_claim(claims, "later", 5)
        claims.wait_running("later", *TWO_CARD_APPS)
    claims.kubectl("delete", "pod", "--all")
    nothing_prepared(claims)


def restart_kubelet(site: Site) -> None:
    """kubelet deletes the slices of its node when it starts."""
    (before,) = slices(site)
    site.cluster.nodes["cp"].restart_kubelet()
    (after,) = wait_until(
        lambda: slices(site),
        "the slice, written again",
        60,
        accept=lambda found: (
            [one["metadata"]["uid"] for one in found]
            not in ([], [before["metadata"]["uid"]])
        ),
    )
    assert after["spec"]["pool"]["generation"] > before["spec"]["pool"]["generation"]
    assert after["spec"]["devices"] == before["spec"]["devices"]


@BY_CLAIMS
@pytest.mark.usefixtures("arbiter")
def test_two_cards_of_4_gib(claims: Site, classic: tuple[int, ...]) -> None:
    """Seed 001: 2 and 2 GiB share card 1; 2 and 3 GiB have a card each."""
    offer(claims, *TWO_OF_4_GIB)
    one, two = (card.uuid for card in TWO_OF_4_GIB)
    names = ["ai-1", "ai-2", "ai-3"]
    other = [names[number] for number in classic]
    create(claims, other, "ai-1", 8)
    create(claims, other, "ai-2", 8)
    claims.wait_running("ai-1", "ai-2")
    assert claims.visible("ai-1") == claims.visible("ai-2") == [one]
    claims.kubectl("delete", "pod", "ai-2")
    create(claims, other, "ai-3", 12)
    claims.wait_running("ai-3")
    assert (claims.visible("ai-1"), claims.visible("ai-3")) == ([one], [two])


@pytest.mark.usefixtures("arbiter")
def test_a_denial_is_the_event_of_the_pod(claims: Site) -> None:
    """kube-scheduler believes in room that a classic pod has got meanwhile.

    The driver hangs, so the slice is old. As soon as it goes on, both pods run.
    """
    offer(claims, *TWO_OF_4_GIB)
    one, two = (card.uuid for card in TWO_OF_4_GIB)
    plugin = claims.gpus["cp"].process
    assert plugin is not None
    plugin.send(signal.SIGSTOP)
    try:
        claims.create(classic_pod("first", 10))
        wait_until(lambda: held_units(claims)[one.lower()] == 10, "the classic pod")
        by_claim(claims, "second", 12)
        refused_with(
            claims,
            "second",
            f'webhook "claims.{DRIVER}" denied the request: card {one} of node cp has '
            "6 units left, not 12",
        )
    finally:
        plugin.send(signal.SIGCONT)
    claims.wait_running("first", "second")
    assert (claims.visible("first"), claims.visible("second")) == ([one], [two])


@pytest.mark.usefixtures("arbiter")
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


@pytest.mark.usefixtures("arbiter")
def test_health_and_the_end_while_dra_is_off(claims: Site) -> None:
    """kubelet tells a pod's status of a fault. While DRA is off, pods can still end."""
    offer(claims, *TWO_OF_4_GIB)
    pods = {"ai-1": 8, "ai-2": 12}
    for name, units in pods.items():
        by_claim(claims, name, units)
    claims.wait_running(*pods)
    gpus, well = claims.gpus["cp"], [("Healthy", "")]
    for name in pods:
        wait_until(lambda name=name: health(claims, name) == well, f"{name}'s health")
    (sick,) = claims.visible("ai-1")
    gpus.driver.xid(sick, 79)
    wait_until(lambda: health(claims, "ai-1")[0][0] == "Unhealthy", "the fault")
    assert "XID 79" in health(claims, "ai-1")[0][1]
    assert health(claims, "ai-2") == well
    claims.kubectl("annotate", "node", "cp", f"baidu.com/vcuda-clear={sick}")
    wait_until(lambda: health(claims, "ai-1") == well, "it to be well again")

    on = gpus.settings
    gpus.stop()
    gpus.settings = {**on, "DRA": "off"}
    try:
        gpus.start()
        wait_until(lambda: not slices(claims), "the slices to go")
        claims.kubectl("delete", "pod", *pods)
        nothing_prepared(claims)
    finally:
        gpus.stop()
        gpus.settings = on


def health(site: Site, name: str) -> list[tuple[str, str]]:
    """The health of a pod's claims, and the reason, as kubelet tells the API server."""
    (status,) = site.get("pod", name)["status"]["containerStatuses"]
    return [
        (one["health"], one.get("message", ""))
        for claim in status.get("allocatedResourcesStatus", ())
        for one in claim["resources"]
    ]


@BY_CLAIMS
@pytest.mark.usefixtures("arbiter")
def test_one_card(claims: Site, classic: tuple[int, ...]) -> None:
    """Seed 001's 50, 40 and 1 on 94 units; 10 more wait, and run when 50 have ended.

    So do 10 of the other kind: each is counted by whoever gives cards to the other.
    """
    offer(claims, RTX_3090)
    names = [*ONE_CARD_APPS]
    for name, units in ONE_CARD_APPS.items():
        create(claims, [names[number] for number in classic], name, units)
    claims.wait_running(*ONE_CARD_APPS)
    assert {tuple(claims.visible(name)) for name in ONE_CARD_APPS} == {(RTX_3090.uuid,)}
    by_claim(claims, "waits", 10)
    refused_with(claims, "waits", "cannot allocate all claims")
    claims.create(classic_pod("waits-too", 10))
    refused_with(claims, "waits-too", "Insufficient baidu.com/vcuda-memory on one card")
    claims.kubectl("delete", "pod", names[0])
    claims.wait_running("waits", "waits-too")
    if classic:
        claims.kubectl("create", "-f", "-", stdin=example())
        claims.wait_running("by-claim")
        assert variables(inside(claims, "by-claim", "env"))["VCUDA_CORES"] == "20"


def example() -> str:
    """The template and the pod that docs/dra.md shows."""
    page = (ROOT / "docs/dra.md").read_text()
    (found,) = re.findall(r"```yaml\n(\S[^`]*kind: Pod\n[^`]*)```", page)
    return str(found)
