"""A cluster that looks, after every write, whether its API server would be answered."""

import base64
from datetime import datetime

from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from gpushare.kube.cluster import Json
from gpushare.kube.facts import is_narrowed
from gpushare.kube.objects import Ref
from gpusharectl.installer.webhook.objects import CONFIGURATIONS, DEPLOYMENT, SECRET
from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.gpusharectl.installer.installed_cluster import MOUNTED

NAME = x509.DNSName("gpushare-webhook.kube-system.svc")


class TrustCheckingObjects(FakeObjects):
    """Fails where it would ask a webhook that is not there, or not believed.

    ``moments`` counts the writes after which it was asked.
    """

    def __init__(self, now: datetime) -> None:
        super().__init__()
        self.now = now
        self.moments = 0

    def apply(self, body: Json, *, dry_run: bool = False) -> Json:
        found = super().apply(body, dry_run=dry_run)
        self.look()
        return found

    def delete(self, ref: Ref, *, grace_period_s: int | None = None) -> bool:
        found = super().delete(ref, grace_period_s=grace_period_s)
        self.look()
        return found

    def look(self) -> None:
        """Judge the moment as the API server would, should a pod come now."""
        there = [self.kept[ref] for ref in CONFIGURATIONS if ref in self.kept]
        asking = [body for body in there if not is_narrowed(body)]
        if not asking:
            return
        self.moments += 1
        assert DEPLOYMENT in self.kept
        replicas = [
            pod
            for ref, pod in self.kept.items()
            if ref.kind == "Pod" and ref.name.startswith(f"{DEPLOYMENT.name}-")
        ]
        ready = [pod for pod in replicas if pod.get("status", {}).get("conditions")]
        assert ready, "nobody would answer"
        # kubelet renews what is mounted by itself, at some time.
        shown = {pod["metadata"]["annotations"][MOUNTED] for pod in replicas}
        shown.add(self.kept[SECRET]["data"]["tls.crt"])
        for body in asking:
            for one in body["webhooks"]:
                for certificate in shown:
                    self._believes(one["clientConfig"]["caBundle"], certificate)

    def _believes(self, bundle: str, certificate: str) -> None:
        authorities = x509.load_pem_x509_certificates(base64.b64decode(bundle))
        leaf = x509.load_pem_x509_certificate(base64.b64decode(certificate))
        policy = PolicyBuilder().store(Store(authorities)).time(self.now)
        policy.build_server_verifier(NAME).verify(leaf, [])


def bundle(objects: FakeObjects) -> list[x509.Certificate]:
    """The authorities that are believed, which all entries must agree on."""
    found = {
        one["clientConfig"]["caBundle"]
        for ref in CONFIGURATIONS
        for one in objects.kept[ref]["webhooks"]
    }
    (text,) = found
    return x509.load_pem_x509_certificates(base64.b64decode(text))


def shown(objects: FakeObjects) -> str:
    """The certificate in the Secret."""
    return str(objects.kept[SECRET]["data"]["tls.crt"])
