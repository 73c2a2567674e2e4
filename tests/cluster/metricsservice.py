"""An API of custom metrics behind the real API server, served by the test itself."""

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gpusharectl.pki import SERVER_SIDE, Wanted, issue, make_authority
from tests.monitoring.adapter import GROUP, MetricsApi
from tests.monitoring.pages import PageServer
from tests.testbed.kubeadm import Cluster
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

NAME, SPACE = "custom-metrics", "kube-system"
SERVICES = f"/api/v1/namespaces/{SPACE}/services"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{SPACE}/endpointslices"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
FRONT_PROXY = "/etc/kubernetes/pki/front-proxy-ca.crt"


@contextmanager
def registered(cluster: Cluster, api: MetricsApi, folder: Path) -> Iterator[None]:
    """Serve it under its APIService, by a Service that leads to this machine.

    With a certificate that the API server has to trust; and it answers nobody but the
    API server itself, which shows its own.
    """
    tls, bundle = _credentials(cluster, folder)
    address = cluster.machine_address
    with PageServer(api.answer, address, tls) as server:
        made = _objects(address, server.port, bundle)
        try:
            for path, body in made:
                cluster.rest.must("POST", path, body)
            wait_until(lambda: _available(cluster.rest), "the API of metrics", 60)
            yield
        finally:
            for path, body in reversed(made):
                cluster.rest.delete(f"{path}/{body['metadata']['name']}")


def _credentials(cluster: Cluster, folder: Path) -> tuple[ssl.SSLContext, bytes]:
    now = datetime.now(UTC)
    authority = make_authority(now)
    host = f"{NAME}.{SPACE}.svc"
    pair = issue(authority, Wanted(NAME, host, SERVER_SIDE, (host,)), now)
    both = folder / "metrics-api.pem"
    both.touch(0o600)
    both.write_bytes(pair.certificate_pem + pair.key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(both)
    tls.load_verify_locations(cadata=cluster.nodes["cp"].path(FRONT_PROXY).read_text())
    tls.verify_mode = ssl.CERT_REQUIRED
    return tls, authority.certificate_pem


def _objects(address: str, port: int, bundle: bytes) -> list[tuple[str, Json]]:
    ports = [{"name": "https", "port": 443, "targetPort": port, "protocol": "TCP"}]
    service = {"metadata": {"name": NAME}, "spec": {"ports": ports}}
    slice_ = {
        "metadata": {
            "name": NAME,
            "labels": {"kubernetes.io/service-name": NAME},
        },
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }
    registration = {
        "metadata": {"name": f"v1beta1.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": NAME, "namespace": SPACE, "port": 443},
            "caBundle": base64.b64encode(bundle).decode(),
        },
    }
    return [(SERVICES, service), (SLICES, slice_), (API_SERVICES, registration)]


def _available(rest: Rest) -> bool:
    status, found = rest.get(f"{API_SERVICES}/v1beta1.{GROUP}")
    conditions = found.get("status", {}).get("conditions", [])
    available = [one["status"] for one in conditions if one["type"] == "Available"]
    return status == 200 and available == ["True"]
