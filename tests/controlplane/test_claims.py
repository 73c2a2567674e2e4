"""ResourceClaims and classic pods on the same cards, by real kube-scheduler.

The slices are the test's own. Everything is added up from the API server's objects.
"""

import base64
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus

import pytest
from click.testing import CliRunner

from gpushare.addresses import free_address
from gpushare.domain.model import Amount
from gpushare.kube.claims.templates import template
from gpushare.kube.facts import scheduler_says
from gpusharectl.commands import main
from tests.controlplane.world import World, beside, node_of, post_all, shares_of
from tests.extender.server.test_claims_app import review
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.manifests import documents
from tests.testbed.objects import read_pod
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

DRIVER = "vcuda.baidu.com"
RESOURCE = "/apis/resource.k8s.io/v1"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": "vcuda"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
FULL = {"key": f"{DRIVER}/full", "effect": "NoSchedule"}
CORRECTED_EVERY_S = 0.3


@dataclass
class Claims:
    """A world whose API server asks the extender about claims."""

    world: World
    port: int
    held: Certificates

    @property
    def rest(self) -> Rest:
        return self.world.rest

    @property
    def claims(self) -> str:
        return f"{RESOURCE}/namespaces/{self.world.namespace}/resourceclaims"

    def review(self, claim: Json) -> Json:
        """Ask the extender about a claim as the API server does."""
        reviewing = Rest(self.port, tls=self.held.client(None), host="localhost")
        answer: Json = reviewing.must("POST", "/claims", review(claim))["response"]
        return answer

    def node(self, name: str, *units: int) -> None:
        """Add a node with cards, and offer them to claims too."""
        uuids = [f"GPU-{name}-{index}" for index in range(len(units))]
        self.world.node(name, *units, uuids=uuids)
        self.offer(name, dict(zip(uuids, units, strict=True)))

    def offer(self, node: str, left: dict[str, int]) -> None:
        """Write the node's slice: what classic pods leave of each card."""
        path = f"{RESOURCE}/resourceslices"
        status, found = self.rest.get(f"{path}/{node}")
        generation = found["spec"]["pool"]["generation"] + 1 if status == 200 else 1
        body = {
            "kind": "ResourceSlice",
            "metadata": {"name": node},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {
                    "name": node,
                    "generation": generation,
                    "resourceSliceCount": 1,
                },
                "devices": [device(uuid, units) for uuid, units in left.items()],
            },
        }
        if status == HTTPStatus.OK:
            body["metadata"] = found["metadata"]
            self.rest.must("PUT", f"{path}/{node}", body)
        else:
            self.rest.must("POST", path, body)

    def claim(self, name: str, units: int) -> Json:
        amounts = {"memory": f"{units * 256}Mi", "cores": "1"}
        exactly = {"deviceClassName": "vcuda", "capacity": {"requests": amounts}}
        body = {
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": self.world.namespace},
            "spec": {"devices": {"requests": [{"name": "card", "exactly": exactly}]}},
        }
        return self.rest.must("POST", self.claims, body)

    def pod(self, name: str, units: int) -> Json:
        """Describe a pod with a claim, which is created."""
        self.claim(name, units)
        a_pod = self.world.pod(name)
        a_pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": name}]
        a_pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "card"}]
        return a_pod

    def post(self, name: str, units: int) -> Json:
        return post_all(self.world, [self.pod(name, units)])[0]

    def end(self, a_pod: Json) -> None:
        """Delete the pod of a claim and the claim."""
        name = a_pod["metadata"]["name"]
        self.world.delete(a_pod)
        remove_claim(self.rest, f"{self.claims}/{name}")

    def allocated(self, name: str) -> list[tuple[str, int]]:
        """Device and units of a claim's allocation, by the API server."""
        status = self.rest.must("GET", f"{self.claims}/{name}").get("status") or {}
        return results(status)

    def on_cards(self, *, classic: bool = True, claimed: bool = True) -> dict[str, int]:
        """Units on each card by the device's name, from the API server's objects."""
        found: dict[str, int] = defaultdict(int)
        if classic:
            for a_pod in self.world.pods():
                for uuid, _, units in shares_of(a_pod) if node_of(a_pod) else ():
                    found[uuid.lower()] += units
        if claimed:
            for claim in self.rest.items(self.claims):
                for name, units in results(claim.get("status") or {}):
                    found[name] += units
        return found

    def in_the_ledger(self) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        snapshot = self.world.extender.rest.must("GET", "/snapshot")
        for node in snapshot["nodes"]:
            for one in (*node["pods"], *node.get("claims", ())):
                for share in one["shares"]:
                    found[share["card"].lower()] += share["units"]
        return found


def device(uuid: str, units: int) -> Json:
    def amount(value: str, default: str, least: str) -> Json:
        valid = {"min": least, "step": default}
        return {
            "value": value,
            "requestPolicy": {"default": default, "validRange": valid},
        }

    return {
        "name": uuid.lower(),
        "allowMultipleAllocations": True,
        "attributes": {"uuid": {"string": uuid}},
        "capacity": {
            "memory": amount(f"{max(1, units) * 256}Mi", "256Mi", "0"),
            "cores": amount("100", "1", "1"),
        },
        **({} if units > 0 else {"taints": [FULL]}),
    }


def results(status: Json) -> list[tuple[str, int]]:
    devices = (status.get("allocation") or {}).get("devices") or {}
    found = []
    for result in devices.get("results") or []:
        text = result["consumedCapacity"]["memory"]
        mib = int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]
        found.append((result["device"], mib // 256))
    return found


@contextmanager
def asked_about_claims(
    plane: ControlPlane, port: int, held: Certificates
) -> Iterator[None]:
    """Apply what we ship, with this port and authority."""
    (hook,) = documents("dra/webhook.yaml")
    config = hook["webhooks"][0]["clientConfig"]
    config["url"] = f"https://localhost:{port}/claims"
    config["caBundle"] = base64.b64encode(held.read()["ca.crt"]).decode()
    plane.rest.must("POST", HOOKS, hook)
    try:
        yield
    finally:
        plane.rest.must("DELETE", f"{HOOKS}/{hook['metadata']['name']}")


@pytest.fixture(scope="module")
def shared_claims(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Claims]:
    held = certificates(tmp_path_factory.mktemp("claims") / "tls")
    listen = free_address()
    settings = {
        "CLAIMS_LISTEN": str(listen),
        "CLAIMS_TLS_CERT": held.path("server.crt"),
        "CLAIMS_TLS_KEY": held.path("server.key"),
    }
    plane.rest.must("POST", f"{RESOURCE}/deviceclasses", CLASS)
    with (
        beside(plane, "claims", **settings) as world,
        asked_about_claims(plane, listen.port, held),
    ):
        yield Claims(world, listen.port, held)
    plane.rest.must("DELETE", f"{RESOURCE}/deviceclasses/vcuda")


@pytest.fixture
def site(shared_claims: Claims, space: str) -> Iterator[Claims]:
    world = replace(shared_claims.world, namespace=space, nodes=set())
    yield replace(shared_claims, world=world)
    world.rest.must("DELETE", f"{RESOURCE}/resourceslices")
    for claim in world.rest.items(f"{RESOURCE}/resourceclaims"):
        name, where = claim["metadata"]["name"], claim["metadata"]["namespace"]
        path = f"{RESOURCE}/namespaces/{where}/resourceclaims/{name}"
        remove_claim(world.rest, path)


def remove_claim(rest: Rest, path: str) -> None:
    """Free and delete a claim, as kube-controller-manager does after its last pod."""
    empty = {"status": {"reservedFor": None, "allocation": None}}
    rest.must("PATCH", f"{path}/status", empty)
    rest.must("PATCH", path, {"metadata": {"finalizers": None}})
    rest.must("DELETE", path)


def test_a_denial_is_the_event_of_the_pod(site: Claims) -> None:
    """Word for word; the claim stays as it was, and gets the room when it is free."""
    site.node("edge", 20)
    hog = site.world.post("hog", 11, 1)
    site.world.bound(hog)
    waits = site.post("waits", 20)
    sentence = "card GPU-edge-0 of node edge has 9 units left, not 20"
    event = wait_until(
        lambda: site.world.messages(waits),
        "denial in the pod's event",
        accept=lambda texts: any(sentence in text for text in texts),
    )
    assert 'admission webhook "claims.vcuda.baidu.com" denied' in " ".join(event)
    assert site.allocated("waits") == []
    assert_explained(site, waits, sentence)
    site.world.delete(hog)
    site.world.bound(waits)
    assert site.allocated("waits") == [("gpu-edge-0", 20)]


def assert_explained(site: Claims, waits: Json, sentence: str) -> None:
    """``why`` has the arbiter's words, and reads slices and the class as they are."""
    wait_until(
        lambda: scheduler_says(read_pod(site.rest, waits)),
        "condition of the pod",
        accept=lambda told: sentence in told,
    )
    plane = site.world.plane
    config = str(plane.kubeconfig(plane.admin.token, "why", insecure=False))
    pod = f"{site.world.namespace}/{waits['metadata']['name']}"
    words = ["why", "--kubeconfig", config, "-o", "json", pod]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 3, found.output
    answer = json.loads(found.stdout)
    (claim,) = answer["claims"]
    assert sentence in claim["refusals"]
    assert claim["room"] == []
    assert claim["not_judged"] == answer["not_judged"] == []
    assert sentence in answer["kube_scheduler"]


def test_a_claim_counts_for_classic_pods(site: Claims) -> None:
    """They are refused while it has the card, and placed when it ends."""
    site.node("edge", 20)
    first = site.post("first", 15)
    site.world.bound(first)
    second = site.world.post("second", 10, 1)
    assert "Insufficient baidu.com/vcuda-memory on one card" in (
        site.world.verdict(second).event
    )
    site.end(first)
    assert site.world.bound(second).cards == ("GPU-edge-0",)


def test_the_parts_of_a_template_are_of_one_card(site: Claims) -> None:
    """The containers of a pod share a card; one part alone would fit on the first."""
    site.node("edge", 10, 20)
    parts = [Amount(cores=20, units=8), Amount(cores=1, units=4)]
    body = template(parts)["spec"]
    body |= {"kind": "ResourceClaim", "metadata": {"name": "both"}}
    site.rest.must("POST", site.claims, body)
    both = site.world.pod("both")
    both["spec"]["resourceClaims"] = [{"name": "vcuda", "resourceClaimName": "both"}]
    main = both["spec"]["containers"][0]
    both["spec"]["containers"] = [
        {**main, "name": name, "resources": {"claims": [used(name)]}}
        for name in ("card-1", "card-2")
    ]
    (posted,) = post_all(site.world, [both])
    site.world.bound(posted)
    assert site.allocated("both") == [("gpu-edge-1", 8), ("gpu-edge-1", 4)]
    wait_until(
        site.in_the_ledger,
        "both parts in the ledger",
        accept=lambda found: found == {"gpu-edge-1": 12},
    )


def used(request: str) -> Json:
    return {"name": "vcuda", "request": request}


def test_an_extender_that_dies_loses_nothing(site: Claims) -> None:
    """What is allocated is read again; a reservation that was never written is free."""
    site.node("edge", 20)
    first = site.post("first", 8)
    meant = site.claim("meant", 12)
    meant["status"] = {"allocation": allocation("gpu-edge-0", 12)}
    wait_until(lambda: site.allocated("first"), "allocation")
    assert site.review(meant)["allowed"] is True
    assert site.in_the_ledger()["gpu-edge-0"] == 20
    site.world.extender.kill()
    site.world.extender.start()
    assert site.in_the_ledger() == site.on_cards() == {"gpu-edge-0": 8}
    assert site.review(meant)["allowed"] is True
    meant["metadata"]["uid"] = "another"
    assert "has 0 units left, not 12" in site.review(meant)["status"]["message"]
    site.world.bound(first)


def allocation(name: str, units: int) -> Json:
    amounts = {"memory": f"{units * 256}Mi", "cores": "1"}
    result = {
        "request": "card",
        "driver": DRIVER,
        "pool": "edge",
        "device": name,
        "consumedCapacity": amounts,
    }
    return {"devices": {"results": [result]}}


def test_the_race(site: Claims) -> None:
    """Claims and classic pods for the same cards: all fill up, none is above."""
    names, units, each = ("one", "two"), 20, 2
    for name in names:
        site.node(name, units, units)
    cards = {f"gpu-{name}-{index}" for name in names for index in (0, 1)}
    over = threading.Event()
    stop = threading.Event()
    highest: list[dict[str, int]] = []

    def correct() -> None:
        """Correct the slices, as the device plugin does, and look at each card."""
        while not stop.wait(CORRECTED_EVERY_S):
            now = site.on_cards()
            highest.append(now)
            if max(now.values(), default=0) > units:
                over.set()
            classic = site.on_cards(claimed=False)
            for name in names:
                uuids = [f"GPU-{name}-{index}" for index in (0, 1)]
                left = {uuid: units - classic[uuid.lower()] for uuid in uuids}
                site.offer(name, left)

    corrector = threading.Thread(target=correct)
    corrector.start()
    try:
        mixed = []
        for number in range(30):
            mixed.append(site.pod(f"claim-{number}", each))
            mixed.append(site.world.pod(f"classic-{number}", each, 1))
        posted = post_all(site.world, mixed)
        wait_until(
            site.on_cards,
            "full cards",
            timeout_s=40,
            accept=lambda now: sum(now.values()) >= len(cards) * units,
            every_s=0.2,
        )
    finally:
        stop.set()
        corrector.join()
    assert not over.is_set(), json.dumps(highest[-1])
    assert site.on_cards() == dict.fromkeys(cards, units)
    both = site.on_cards(claimed=False), site.on_cards(classic=False)
    assert all(sum(part.values()) for part in both)
    wait_until(site.in_the_ledger, "ledger", accept=lambda now: now == site.on_cards())
    assert any(not node_of(read_pod(site.rest, one)) for one in posted)
