"""cert-manager's own controllers make, trust and renew the webhook's certificate.

``make certmanager`` builds them and runs this; ``make test`` does not. The API server
calls the webhook by its Service's name, which is the name that the certificate has. The
Service leads to loopback, because there are no pods.
"""

import base64
import os
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event

import pytest
import yaml
from cryptography import x509

from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SYSTEM
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.options import WebhookOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.webhook.objects import (
    CERTIFICATE,
    CONFIGURATIONS,
    SECRET,
    SECRETS,
    read_bundle,
    secret_files,
)
from tests.controlplane.gate import (
    GROUP,
    KINDS,
    Gate,
    asking,
    container,
    limits_of,
    shipped,
    webhook,
)
from tests.gpusharectl.installer.installed_cluster import InstalledCluster
from tests.machine import needs
from tests.testbed.certmanager import CertManager
from tests.testbed.controlplane import ControlPlane
from tests.testbed.helm import CHART, Helm, settings
from tests.testbed.manifests import FOLDER
from tests.testbed.objects import CORE, MEMORY, new_namespace, sweep
from tests.testbed.waiting import wait_until

# Of the test bed's certificate.
pytestmark = pytest.mark.filterwarnings(
    "ignore::urllib3.exceptions.InsecureRequestWarning"
)

OVERLAY = str(FOLDER / "webhook-cert-manager")
VALUES = settings(
    {"webhook.enabled": "true", "webhook.certificate.source": "cert-manager"}
)
AUTHORITY = Ref("cert-manager.io/v1", "Certificate", f"{CERTIFICATE.name}-ca", SYSTEM)
SERVICE = Ref("v1", "Service", CERTIFICATE.name, SYSTEM)
HOST = "127.77.4.43"
"""Of loopback, so that nobody else listens on its port 443, the Service's."""
NAME = f"{SERVICE.name}.{SYSTEM}.svc"
SHARE = asking(container({MEMORY: 4}))
OFTEN = {"duration": "1h", "renewBefore": "59m55s"}
"""Renewed after five seconds, which cert-manager's webhook would not refuse."""


@dataclass(frozen=True)
class Site:
    """A webhook installed with cert-manager, whose files a test mounts as kubelet does.

    That is a while after the Secret has changed.
    """

    gate: Gate
    objects: Objects
    mounted: Path
    numbers: Iterator[int]

    def secret(self, ref: Ref = SECRET) -> Mapping[str, bytes]:
        return secret_files(self.objects.get(ref))

    def serial(self, ref: Ref = SECRET) -> int:
        """Give that of the Secret's certificate; 0 while there is none."""
        text = self.secret(ref).get("tls.crt")
        return x509.load_pem_x509_certificate(text).serial_number if text else 0

    def mount(self) -> int:
        """Write the Secret's files, all at once, and give the certificate's serial."""
        files = self.secret()
        now = self.mounted / f"..{next(self.numbers)}"
        now.mkdir(parents=True)
        for name, content in files.items():
            (now / name).write_bytes(content)
            if not (self.mounted / name).is_symlink():
                (self.mounted / name).symlink_to(f"..data/{name}")
        new = self.mounted / "..data_tmp"
        new.symlink_to(now.name)
        new.rename(self.mounted / "..data")
        return x509.load_pem_x509_certificate(files["tls.crt"]).serial_number

    def shown(self) -> x509.Certificate:
        """Give what the webhook shows who trusts the configurations' authorities."""
        context = ssl.create_default_context(cadata=self.bundle().decode())
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        with (
            socket.create_connection((HOST, 443), timeout=10) as link,
            context.wrap_socket(link, server_hostname=NAME) as tls,
        ):
            found = tls.getpeercert(binary_form=True)
        assert found
        return x509.load_der_x509_certificate(found)

    def configurations(self) -> Sequence[Json]:
        found = [self.objects.get(ref) for ref in CONFIGURATIONS]
        return [body for body in found if body is not None]

    def bundle(self) -> bytes:
        return read_bundle(self.configurations())

    def injected(self) -> bool:
        """Whether each entry trusts the Secret's authority."""
        authority = self.secret().get("ca.crt", b"nothing").strip()
        return all(
            authority in base64.b64decode(entry["clientConfig"].get("caBundle", ""))
            for body in self.configurations()
            for entry in body["webhooks"]
        )

    def ready(self, *refs: Ref) -> bool:
        return all(
            conditions(self.objects.get(ref)).get("Ready") == "True" for ref in refs
        )

    def renew(self, ref: Ref) -> None:
        """Ask for a new certificate as ``cmctl renew`` does."""
        body = self.objects.get(ref)
        assert body is not None
        now = body["status"]["conditions"]
        issuing = {
            "type": "Issuing",
            "status": "True",
            "reason": "ManuallyTriggered",
            "message": "asked for by hand",
            "lastTransitionTime": now[0]["lastTransitionTime"],
        }
        patch = {"status": {"conditions": [*now, issuing]}}
        self.objects.merge(ref, patch, subresource="status")

    def asked_anew(self) -> None:
        """Have the API server connect once more, and insist that it gets an answer.

        It keeps its connections for each entry, so this is an entry of another name.
        """
        again = f"again-{next(self.numbers)}.vcuda.baidu.com"
        body = self.configurations()[0]
        entry = {**body["webhooks"][0], "name": again}
        path = f"{GROUP}/{KINDS[body['kind']]}"
        made = {"metadata": {"name": again}, "webhooks": [entry]}
        self.gate.rest.must("POST", path, made)
        try:
            wait_until(
                lambda: self.admits() and self.gate.reviews(again)["admit"], again
            )
        finally:
            self.gate.rest.must("DELETE", f"{path}/{again}")

    def admits(self) -> bool:
        return limits_of(self.gate.admitted(SHARE))[CORE] == "1"

    def served(self, serial: int) -> None:
        """Wait until new connections get this certificate; the metric is of it too."""
        wait_until(lambda: self.shown().serial_number == serial, "new certificate")
        ends = self.shown().not_valid_after_utc.astimezone(UTC).timestamp()
        _, metrics = self.gate.webhook.public.get("/metrics")
        name = "vcuda_webhook_certificate_not_after_timestamp_seconds"
        lines = metrics["text"].splitlines()
        (line,) = [line for line in lines if line.startswith(name)]
        assert float(line.rpartition(" ")[2]) == ends

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Create pods all the time; each has to be reviewed."""
        stop = Event()

        def make() -> int:
            made = 0
            while not stop.is_set():
                assert self.admits()
                made += 1
            return made

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(make) for _ in range(2)]
            try:
                yield
            finally:
                stop.set()
            assert all(future.result() > 5 for future in running)


def conditions(body: Json | None) -> dict[str, str]:
    found = (body or {}).get("status", {}).get("conditions", ())
    return {condition["type"]: condition["status"] for condition in found}


@pytest.fixture(scope="module")
def objects(
    alone: ControlPlane, cert_manager_program: CertManager
) -> Iterator[Objects]:
    """The objects of a cluster with cert-manager."""
    made = ApiObjects.connect(str(alone.kubeconfig(alone.admin.token, "objects")))
    for path in cert_manager_program.definitions.glob("*.yaml"):
        for body in yaml.safe_load_all(path.read_text()):
            made.apply(body)
    for kind in ("Issuer", "Certificate", "CertificateRequest"):
        wait_until(partial(made.serves, CERTIFICATE.api_version, kind), kind)
    with cert_manager_program.start(alone):
        yield made
    made.close()


@pytest.fixture
def helm(alone: ControlPlane, helm_program: str, tmp_path: Path) -> Helm:
    return Helm(helm_program, tmp_path, alone.kubeconfig(alone.admin.token, "helm"))


@pytest.fixture
def bare(alone: ControlPlane, objects: Objects, tmp_path: Path) -> Iterator[Site]:
    """The webhook before it is installed; afterwards nothing of it is left."""
    needs(os.geteuid() == 0, "root, for a server on port 443", "run it as root")
    mounted = tmp_path / "mounted"
    (one,) = shipped("Deployment")["spec"]["template"]["spec"]["containers"]
    (mount,) = [each for each in one["volumeMounts"] if each["name"] == "tls"]
    here = {
        each["name"]: each["value"].replace(mount["mountPath"], str(mounted))
        for each in one["env"]
        if each["value"].startswith(mount["mountPath"])
    }
    made = webhook(alone, tmp_path, (), {**here, "GPUSHARE_LISTEN": f"{HOST}:443"})
    gate = Gate(alone, made, (), new_namespace(alone.rest))
    yield Site(gate, objects, mounted, count())
    for ref in CONFIGURATIONS:
        objects.delete(ref)
    made.stop()
    by_kubectl(gate, "delete", "--ignore-not-found")
    # The garbage collector, which does not run, would delete these.
    requests = objects.list(CERTIFICATE.api_version, "CertificateRequest")
    for ref in (*SECRETS, *map(Ref.of, requests)):
        objects.delete(ref)
    sweep(alone.rest)


def by_kubectl(gate: Gate, *arguments: str) -> None:
    done = gate.at(SYSTEM).kubectl(*arguments, "-k", OVERLAY)
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=["manifests", "chart"])
def site(request: pytest.FixtureRequest, bare: Site) -> Iterator[Site]:
    """The webhook, installed in one of the two ways, and the API server asks it."""
    if request.param == "chart":
        helm: Helm = request.getfixturevalue("helm")
        helm.must("install", "gpushare", CHART, *VALUES)
        stand(bare)
        yield bare
        helm.must("uninstall", "gpushare", "--no-hooks")
        return
    by_kubectl(bare.gate, "apply")
    stand(bare)
    yield bare


def stand(site: Site) -> None:
    """Lead the Service to the webhook, and start that once cert-manager is done."""
    # Without an address of the cluster, the API server connects to this name itself.
    there = {"type": "ExternalName", "externalName": HOST, "clusterIP": None}
    site.objects.merge(SERVICE, {"spec": {**there, "clusterIPs": None}})
    wait_until(lambda: site.ready(AUTHORITY, CERTIFICATE), "Certificates")
    wait_until(site.injected, "caBundle")
    site.mount()
    site.gate.webhook.start()
    site.gate.wait_standing()


def test_it_is_made_and_trusted(site: Site) -> None:
    """The Secret has what the pods mount, for the name that the API server calls."""
    assert set(site.secret()) == {"ca.crt", "tls.crt", "tls.key"}
    site.served(site.serial())
    authority = x509.load_pem_x509_certificate(site.secret()["ca.crt"])
    site.shown().verify_directly_issued_by(authority)
    assert site.admits()
    site.asked_anew()


def test_it_is_renewed_by_the_clock(site: Site) -> None:
    """Also after its Secret was deleted; no pod fails, and the webhook goes on running.

    Between Secret and mounted files the API server trusts what the webhook still shows.
    """
    process = site.gate.webhook.process
    assert process
    with site.busy():
        site.objects.merge(CERTIFICATE, {"spec": OFTEN})
        site.objects.delete(SECRET)
        for _ in range(3):
            old = site.shown().serial_number
            wait_until(lambda old=old: site.serial() not in (0, old), "renewal")
            assert site.shown().serial_number == old
            site.asked_anew()
            site.served(site.mount())
            site.asked_anew()
    assert process.running


def test_the_authority_is_renewed_without_a_gap(site: Site) -> None:
    """It keeps its key, so that both certificates are trusted by old and new bundle."""
    with site.busy():
        old, leaf, bundle = site.serial(SECRETS[1]), site.serial(), site.bundle()
        key = site.secret(SECRETS[1])["tls.key"]
        site.renew(AUTHORITY)
        wait_until(lambda: site.serial(SECRETS[1]) != old, "new authority")
        wait_until(lambda: site.ready(AUTHORITY), "new authority to be ready")
        assert site.secret(SECRETS[1])["tls.key"] == key
        assert (site.serial(), site.bundle()) == (leaf, bundle)
        site.renew(CERTIFICATE)
        wait_until(lambda: site.serial() != leaf, "its certificate")
        wait_until(site.injected, "new authority to be trusted")
        assert site.bundle() != bundle
        site.asked_anew()
        site.served(site.mount())
        site.asked_anew()


def test_an_upgrade_by_helm_changes_nothing_of_it(bare: Site, helm: Helm) -> None:
    """Nor does a rollback; its two Secrets stay after ``helm uninstall``."""
    helm.must("install", "gpushare", CHART, *VALUES)
    stand(bare)
    before = bare.secret(), bare.bundle()
    with bare.busy():
        helm.must("upgrade", "gpushare", CHART, *VALUES, "--set=webhook.replicas=3")
        helm.must("rollback", "gpushare", "1")
    assert (bare.secret(), bare.bundle()) == before
    helm.must("uninstall", "gpushare", "--no-hooks")
    assert bare.objects.get(CERTIFICATE) is None
    assert all(bare.secret(ref) for ref in SECRETS)


def test_the_installer_leaves_it_and_takes_all_of_it_away(
    bare: Site, tmp_path: Path
) -> None:
    """cert-manager makes none of it again after ``uninstall``."""
    by_kubectl(bare.gate, "apply")
    stand(bare)
    world = InstalledCluster(bare.objects, tmp_path / "hosts").populate()
    before = bare.secret(), bare.bundle()
    wanted = WebhookOptions(wanted=True)
    assert world.install(webhook=wanted) == Exit.DONE, world.screen.text
    assert "cert-manager makes the webhook's certificate" in world.screen.text
    assert (bare.secret(), bare.bundle()) == before
    assert world.uninstall() == Exit.DONE, world.screen.text
    gone = (*SECRETS, *CONFIGURATIONS, CERTIFICATE, AUTHORITY)
    with another_certificate(bare.objects):
        assert not [ref for ref in gone if bare.objects.get(ref)]


@contextmanager
def another_certificate(objects: Objects) -> Iterator[None]:
    """Have cert-manager make one, so that it has come round to all before it."""
    metadata = {"name": "another", "namespace": SYSTEM}
    issuer = {"kind": "Issuer", "spec": {"selfSigned": {}}}
    spec = {"secretName": "another", "dnsNames": ["another"]}
    signed = {**spec, "issuerRef": {"kind": "Issuer", "name": "another"}}
    bodies = [issuer, {"kind": "Certificate", "spec": signed}]
    version = CERTIFICATE.api_version
    made = [{"apiVersion": version, "metadata": metadata, **body} for body in bodies]
    for body in made:
        objects.create(body)
    refs = [Ref.of(body) for body in made]
    ready = partial(objects.get, refs[1])
    wait_until(lambda: conditions(ready()).get("Ready") == "True", "another one")
    yield
    for ref in (*reversed(refs), Ref("v1", "Secret", "another", SYSTEM)):
        objects.delete(ref)
