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
    rest, name = site.cluster.rest, "no-card"
    exactly = {"deviceClassName": "vcuda"}
    spec = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
    made = rest.must("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
    result = {
        "request": "card",
        "driver": DRIVER,
        "pool": "cp",
        "device": name,
        "shareID": "8a7ea7a4-4f0f-4c56-a1ef-0c2c8c9a8d11",
        "consumedCapacity": {"memory": "256Mi", "cores": "1"},
    }
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    path = f"{CLAIMS}/{name}"
    status, said = rest.request("PUT", f"{path}/status?dryRun=All", made)
    rest.must("DELETE", path)
    return status >= 400 and f'webhook "claims.{DRIVER}" denied' in said["message"]
