"""ResourceClaims of a control plane: what tests put there and what they read back.

The slices are the test's own. Everything is added up from the API server's objects.
"""

import base64
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from gpushare.settings import Address
from tests.controlplane.world import World, node_of, post_all, shares_of
from tests.extender.server.test_resource_claims_app import review
from tests.testbed.certificates import Certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.manifests import documents
from tests.testbed.rest import Json, Rest

DRIVER = "vcuda.baidu.com"
RESOURCE = "/apis/resource.k8s.io/v1"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": "vcuda"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
FULL = {"key": f"{DRIVER}/full", "effect": "NoSchedule"}


@dataclass
class Claims:
    """A world whose API server asks the extender about claims."""

    world: World
    port: int
    tls_files: Certificates

    @property
    def rest(self) -> Rest:
        return self.world.rest

    @property
    def claims(self) -> str:
        return f"{RESOURCE}/namespaces/{self.world.namespace}/resourceclaims"

    def review(self, claim: Json) -> Json:
        """Ask the extender about a claim as the API server does."""
        reviewing = Rest(self.port, tls=self.tls_files.client(None), host="localhost")
        answer: Json = reviewing.must("POST", "/claims", review(claim))["response"]
        return answer

    def node(self, name: str, *units: int) -> None:
        """Add a node with cards, and offer them to claims too."""
        uuids = [f"GPU-{name}-{index}" for index in range(len(units))]
        self.world.node(name, *units, uuids=uuids)
        self.offer(name, dict(zip(uuids, units, strict=True)))

    def offer(self, node: str, left: dict[str, int]) -> None:
        """Write the node's slice: what classic pods leave of each card."""
        self.put_slice(node, [device(uuid, units) for uuid, units in left.items()])

    def put_slice(self, node: str, devices: Sequence[Json]) -> None:
        """Write the node's slice with these devices."""
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
                "devices": list(devices),
            },
        }
        if status == HTTPStatus.OK:
            body["metadata"] = found["metadata"]
            self.rest.must("PUT", f"{path}/{node}", body)
        else:
            self.rest.must("POST", path, body)

    def claim(self, name: str, units: int, cores: int = 1, selector: str = "") -> Json:
        amounts = {"memory": f"{units * 256}Mi", "cores": str(cores)}
        exactly = {"deviceClassName": "vcuda", "capacity": {"requests": amounts}}
        if selector:
            exactly["selectors"] = [{"cel": {"expression": selector}}]
        body = {
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": self.world.namespace},
            "spec": {"devices": {"requests": [{"name": "card", "exactly": exactly}]}},
        }
        return self.rest.must("POST", self.claims, body)

    def pod(self, name: str, units: int, cores: int = 1, selector: str = "") -> Json:
        """Describe a pod with a claim, which is created."""
        self.claim(name, units, cores, selector)
        a_pod = self.world.pod(name)
        a_pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": name}]
        a_pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "card"}]
        return a_pod

    def post(self, name: str, units: int, cores: int = 1, selector: str = "") -> Json:
        return post_all(self.world, [self.pod(name, units, cores, selector)])[0]

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
        units_on: dict[str, int] = defaultdict(int)
        if classic:
            for a_pod in self.world.pods():
                for uuid, _, units in shares_of(a_pod) if node_of(a_pod) else ():
                    units_on[uuid.lower()] += units
        if claimed:
            for claim in self.rest.items(self.claims):
                for name, units in results(claim.get("status") or {}):
                    units_on[name] += units
        return units_on

    def in_the_ledger(self) -> dict[str, int]:
        units_on: dict[str, int] = defaultdict(int)
        snapshot = self.world.extender.rest.must("GET", "/snapshot")
        for node in snapshot["nodes"]:
            for holder in (*node["pods"], *node.get("claims", ())):
                for share in holder["shares"]:
                    units_on[share["card"].lower()] += share["units"]
        return units_on


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
    allocated = []
    for result in devices.get("results") or []:
        text = result["consumedCapacity"]["memory"]
        mib = int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]
        allocated.append((result["device"], mib // 256))
    return allocated


def claims_settings(listen: Address, tls_files: Certificates) -> dict[str, str]:
    """Give the settings of an extender that reviews claims."""
    return {
        "CLAIMS_LISTEN": str(listen),
        "CLAIMS_TLS_CERT": tls_files.path("server.crt"),
        "CLAIMS_TLS_KEY": tls_files.path("server.key"),
    }


@contextmanager
def asked_about_claims(
    plane: ControlPlane, port: int, tls_files: Certificates
) -> Iterator[None]:
    """Apply the DeviceClass and the webhook that we ship, with this port and CA."""
    plane.rest.must("POST", f"{RESOURCE}/deviceclasses", CLASS)
    (hook,) = documents("dra/webhook.yaml")
    config = hook["webhooks"][0]["clientConfig"]
    config["url"] = f"https://localhost:{port}/claims"
    config["caBundle"] = base64.b64encode(tls_files.read()["ca.crt"]).decode()
    plane.rest.must("POST", HOOKS, hook)
    try:
        yield
    finally:
        plane.rest.must("DELETE", f"{HOOKS}/{hook['metadata']['name']}")
        plane.rest.must("DELETE", f"{RESOURCE}/deviceclasses/vcuda")


def sweep_claims(rest: Rest) -> None:
    """Remove all slices and claims."""
    rest.must("DELETE", f"{RESOURCE}/resourceslices")
    for claim in rest.items(f"{RESOURCE}/resourceclaims"):
        name, where = claim["metadata"]["name"], claim["metadata"]["namespace"]
        remove_claim(rest, f"{RESOURCE}/namespaces/{where}/resourceclaims/{name}")


def remove_claim(rest: Rest, path: str) -> None:
    """Free and delete a claim, as kube-controller-manager does after its last pod."""
    empty = {"status": {"reservedFor": None, "allocation": None}}
    rest.must("PATCH", f"{path}/status", empty)
    rest.must("PATCH", path, {"metadata": {"finalizers": None}})
    rest.must("DELETE", path)
