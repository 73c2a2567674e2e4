"""DRA switched on in the cluster that has all of us in it, and off again."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.cluster.gpus import PLUGIN
from tests.cluster.site import EXTENDER, SYSTEM, Site
from tests.controlplane.claims import HOOKS
from tests.testbed.certificates import certificates
from tests.testbed.credentials import grant
from tests.testbed.kubeadm.files import CDI_OF_CLAIMS
from tests.testbed.manifests import FOLDER, documents, rights
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

DRIVER = "vcuda.baidu.com"
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
TEMPLATES = f"{GROUP}/namespaces/default/resourceclaimtemplates"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:"


@contextmanager
def driver_on(site: Site) -> Iterator[None]:
    """Add the DeviceClass, and give the device plugin its rights and settings.

    It has them from its next start, which is when a test gives it cards.
    """
    rest, gpus = site.cluster.rest, site.gpus["cp"]
    steps = yaml.safe_load((FOLDER / "dra-plugin/rights.yaml").read_text())
    more = [step["value"] for step in steps]
    grant(rest, ACCOUNT + PLUGIN, [*rights(PLUGIN), *more])
    for body in documents("dra/device-class.yaml"):
        rest.must("POST", f"{GROUP}/deviceclasses", body)
    before = gpus.settings
    gpus.stop_offering()
    gpus.settings = {"DRA": "on", "CDI_DIRS": f"/etc/cdi,{CDI_OF_CLAIMS}"}
    yield
    gpus.stop()
    gpus.settings = before
    rest.must("DELETE", f"{GROUP}/deviceclasses")
    rest.must("DELETE", f"{GROUP}/resourceslices")
    grant(rest, ACCOUNT + PLUGIN, rights(PLUGIN))


@contextmanager
def arbiter_on(site: Site, folder: Path) -> Iterator[None]:
    """Let the API server ask the extender of its host about claims."""
    rest, held = site.cluster.rest, certificates(folder / "tls")
    more = documents("dra/extender-rbac.yaml")[0]["rules"]
    grant(rest, ACCOUNT + EXTENDER, [*rights(EXTENDER), *more])
    (hook,) = documents("dra/webhook.yaml")
    authority = base64.b64encode(held.read()["ca.crt"]).decode()
    hook["webhooks"][0]["clientConfig"]["caBundle"] = authority
    _restart_extender(
        site,
        CLAIMS_LISTEN="127.0.0.1:39996",
        CLAIMS_TLS_CERT=held.path("server.crt"),
        CLAIMS_TLS_KEY=held.path("server.key"),
    )
    rest.must("POST", HOOKS, hook)
    wait_until(lambda: _is_asked(site), "the API server to ask the extender")
    yield
    rest.must("DELETE", f"{HOOKS}/{hook['metadata']['name']}")
    _restart_extender(site)
    grant(rest, ACCOUNT + EXTENDER, rights(EXTENDER))


def _restart_extender(site: Site, **settings: str) -> None:
    site.kill_extender()
    site.extender_settings = settings
    site.start_extender()


def _is_asked(site: Site) -> bool:
    """Try to give a claim a card that is not there."""
    name = "no-card"
    status, answer = allocate(site, name, card=name, units=1, query="?dryRun=All")
    site.cluster.rest.must("DELETE", f"{CLAIMS}/{name}")
    return status >= 400 and f'webhook "claims.{DRIVER}" denied' in answer["message"]


def allocate(
    site: Site, name: str, card: str, units: int, query: str = ""
) -> tuple[int, Json]:
    """Create a claim, and allocate it as a scheduler does that knows of nobody else."""
    rest, amounts = site.cluster.rest, {"memory": f"{units * 256}Mi", "cores": "1"}
    exactly = {"deviceClassName": "vcuda", "capacity": {"requests": amounts}}
    spec = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
    claim = rest.must("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
    result = {
        "request": "card",
        "driver": DRIVER,
        "pool": "cp",
        "device": card.lower(),
        "shareID": "8a7ea7a4-4f0f-4c56-a1ef-0c2c8c9a8d11",
        "consumedCapacity": amounts,
    }
    claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    return rest.request("PUT", f"{CLAIMS}/{name}/status{query}", claim)
