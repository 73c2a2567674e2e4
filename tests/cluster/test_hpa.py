"""Seed 002: a service scales by its share of a card, under the real HPA controller.

The exporter, Prometheus, the adapter's rules, the API of custom metrics (served here)
and the controller are one chain; at its beginning stands the driver's stub, which says
how busy each process is. The processes are those of real containers.
"""

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.names import MEMORY
from gpusharectl.installer.pki import (
    SERVER_SIDE,
    WantedCert,
    issue_certificate,
    make_authority,
)
from tests.cluster.exporter import Exporter, process_of
from tests.cluster.manifests import IDLE, IMAGE, RTX_3090
from tests.cluster.site import Site
from tests.monitoring.adapter import GROUP, ROOT, Adapter, MetricsApi, rules_of
from tests.monitoring.pages import PageServer
from tests.monitoring.scene import MEM_USED, MENDED, RATIO, SM_UTIL
from tests.testbed.fixtures import StartPrometheus
from tests.testbed.kubeadm import Cluster
from tests.testbed.manifests import FOLDER, documents
from tests.testbed.prometheus import Prometheus
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
            wait_until(lambda: _available(cluster.rest), "the API of metrics")
            yield
        finally:
            for path, body in reversed(made):
                cluster.rest.delete(f"{path}/{body['metadata']['name']}")


def _credentials(cluster: Cluster, folder: Path) -> tuple[ssl.SSLContext, bytes]:
    now = datetime.now(UTC)
    authority = make_authority(now)
    host = f"{NAME}.{SPACE}.svc"
    pair = issue_certificate(
        authority, WantedCert(NAME, host, SERVER_SIDE, (host,)), now
    )
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
        "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
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


APP = "bert-intent-detection"
SERVICE = FOLDER / "autoscaling" / f"{APP}.yaml"
HPA = FOLDER / "autoscaling" / "gpu-hpa.yaml"
SOON = {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}
"""In place of the 300 seconds that the controller waits by itself."""
USED_MIB = 512
ROUNDS_S = 120
"""The controller looks every 15 seconds."""


@dataclass
class Scaled:
    """The service, the autoscaler and the load that is put on it."""

    site: Site
    prometheus: Prometheus

    @property
    def pods(self) -> list[Json]:
        """The service's pods that run, oldest first."""
        found = self.site.pods_of(APP)
        return [
            pod
            for pod in found
            if pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def wait_pods(self, count: int) -> list[Json]:
        return wait_until(
            lambda: self.pods,
            f"{count} pods that run",
            ROUNDS_S,
            accept=lambda pods: len(pods) == count,
            every_s=1,
        )

    def load(self, percent: int) -> list[int]:
        """Spread requests over the pods, in percent of the card; give their shares."""
        gpus = self.site.gpus["cp"]
        pods = self.pods
        each, rest = divmod(percent, len(pods))
        shares = [each + (number < rest) for number in range(len(pods))]
        for pod, share in zip(pods, shares, strict=True):
            process = process_of(gpus.node, pod)
            gpus.driver.process(RTX_3090.uuid, process, mib=USED_MIB)
            gpus.driver.busy(RTX_3090.uuid, process, sm=share)
        return shares

    def seen(self, metric: str) -> dict[str, float]:
        found = self.prometheus.query(f'{metric}{{NamespaceName="default"}}')
        return {one.labels["PodName"]: one.value for one in found}

    def wait_row(self, targets: str, replicas: int) -> None:
        wait_until(
            self._row,
            f"{targets} and {replicas} replicas of the HPA",
            ROUNDS_S,
            accept=lambda row: row == (targets, str(replicas)),
            every_s=1,
        )

    def wait_verdict(self, average: str, wanted: int) -> None:
        """Wait until the controller has seen this average and wants so many pods.

        By its own status: the column REPLICAS is a round behind.
        """
        wait_until(
            self._verdict,
            f"an average of {average} and {wanted} pods wanted",
            ROUNDS_S,
            accept=lambda seen: seen == (average, wanted),
            every_s=1,
        )

    def _row(self) -> tuple[str, ...]:
        shown = self.site.kubectl("get", "hpa", "gpu-hpa", "--no-headers").split()
        return shown[2], shown[5]

    def _verdict(self) -> tuple[str, int]:
        status = self.site.get("hpa", "gpu-hpa")["status"]
        # None of them while the API of metrics does not answer.
        seen = [
            one["pods"]["current"]["averageValue"]
            for one in status.get("currentMetrics") or ()
        ]
        return "".join(seen), status["desiredReplicas"]


def service() -> list[Json]:
    """The demo workload as it is shipped, with an image that is at hand.

    That one takes no more than it is told to, so that two share the only card.
    """
    deployment, svc = documents(f"autoscaling/{APP}.yaml")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container |= {"image": IMAGE, "command": ["/bin/sh", "-c", IDLE]}
    container["resources"]["limits"][MEMORY] = 20
    spec["terminationGracePeriodSeconds"] = 1
    return [deployment, svc]


@pytest.fixture
def exporter(site: Site) -> Iterator[Exporter]:
    site.gpus["cp"].set_cards([RTX_3090])
    made = Exporter(site.gpus["cp"])
    made.start()
    yield made
    made.stop()


@pytest.fixture
def scaled(
    site: Site, exporter: Exporter, prometheus: StartPrometheus, tmp_path: Path
) -> Iterator[Scaled]:
    server = prometheus(targets={"exporter": [exporter.address]})
    server.wait_scraped()

    def names(resource: str, namespace: str, selector: str) -> list[str]:
        path = f"/api/v1/namespaces/{namespace}/{resource}"
        found = site.cluster.rest.items(path, labelSelector=selector)
        return [one["metadata"]["name"] for one in found]

    api = MetricsApi(Adapter(server, rules_of(MENDED)), names)
    with registered(site.cluster, api, tmp_path):
        site.create(*service())
        yield Scaled(site, server)
        site.kubectl("delete", "--ignore-not-found", "-f", str(HPA))
        site.kubectl("delete", "service", f"{APP}-svc")


def test_the_service_scales_by_its_use_of_the_card(scaled: Scaled, site: Site) -> None:
    """0/20; 23 and two are wanted; half the load each, still two; 0/20 and one."""
    (first,) = scaled.wait_pods(1)
    name = str(first["metadata"]["name"])
    scaled.load(0)
    use_is_the_pods(scaled, name)
    strangers_use_is_nobodys(scaled)
    assert listed(site, f"pods/{SM_UTIL}")
    # 512 of 5120 MiB.
    assert asked(site, f"namespaces/default/pods/{name}/{RATIO}") == {name: "100m"}

    site.kubectl("apply", "-f", str(HPA))
    site.kubectl("patch", "hpa", "gpu-hpa", "-p", json.dumps({"spec": SOON}))
    scaled.wait_row("0/20", 1)

    scaled.load(23)
    scaled.wait_verdict("23", 2)
    two = scaled.wait_pods(2)
    assert scaled.load(23) == [12, 11]
    shares = {str(pod["metadata"]["name"]): 12 - n for n, pod in enumerate(two)}
    wait_until(lambda: scaled.seen(SM_UTIL), "shares", accept=shares.__eq__)
    # The average of both is well below: two are enough, and both are needed.
    scaled.wait_row("11500m/20", 2)
    assert asked(site, f"namespaces/default/pods/*/{SM_UTIL}") == {
        pod: str(share) for pod, share in shares.items()
    }

    scaled.load(0)
    scaled.wait_row("0/20", 1)
    (left,) = scaled.wait_pods(1)
    one = str(left["metadata"]["name"])
    wait_until(lambda: scaled.seen(SM_UTIL), "one pod", accept={one: 0}.__eq__)


def use_is_the_pods(scaled: Scaled, name: str) -> None:
    """What a container's process uses is told of its pod, by its real cgroup."""
    wait_until(lambda: scaled.seen(MEM_USED), "use", accept={name: USED_MIB}.__eq__)
    assert scaled.seen(SM_UTIL) == {name: 0}
    (sample,) = scaled.prometheus.query(f'{MEM_USED}{{PodName!=""}}')
    told = ("NodeName", "NamespaceName", "PodName", "ContainerName", "UUID")
    assert [sample.labels[label] for label in told] == [
        "cp",
        "default",
        name,
        "bert-container",
        RTX_3090.uuid,
    ]


def strangers_use_is_nobodys(scaled: Scaled) -> None:
    """A process outside Kubernetes is told of with no pod's name."""
    gpus = scaled.site.gpus["cp"]
    gpus.driver.process(RTX_3090.uuid, kubelet(scaled.site), mib=100)
    wait_until(
        lambda: scaled.prometheus.value(f'sum({MEM_USED}{{PodName=""}})'),
        "kubelet's use of the card",
        60,
        accept=(100.0).__eq__,
    )
    assert len(scaled.seen(MEM_USED)) == 1


def kubelet(site: Site) -> int:
    """Give a process that belongs to no pod, as the node counts it."""
    lines = site.gpus["cp"].node.command_lines().items()
    (found,) = (pid for pid, line in lines if line[0].endswith("/kubelet"))
    return found


def listed(site: Site, name: str) -> bool:
    found: Any = json.loads(site.kubectl("get", "--raw", ROOT))
    return name in {one["name"] for one in found["resources"]}


def asked(site: Site, path: str) -> dict[str, str]:
    found: Any = json.loads(site.kubectl("get", "--raw", f"{ROOT}/{path}"))
    return {one["describedObject"]["name"]: one["value"] for one in found["items"]}
