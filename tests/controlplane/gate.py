"""The admission webhook before the real API server, registered as we ship it.

Its configurations are those of ``manifests/webhook``; only where it is found differs:
a URL on loopback, because without nodes no Service leads anywhere.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpushare.addresses import find_free_address
from gpusharectl.installer.manifests import compose_overlay
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.manifests import FOLDER
from tests.testbed.objects import pod, sweep
from tests.testbed.process import Process
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

GROUP = "/apis/admissionregistration.k8s.io/v1"
KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}
POLICY_KINDS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
ACCOUNT = "tried-webhook"
FREE = "kube-public"
"""A namespace that the webhook is never asked about."""
PODS = "pods.vcuda.baidu.com"
DURATION = "apiserver_admission_webhook_admission_duration_seconds_count"


@dataclass
class Webhook:
    """The webhook as a child process: gunicorn, as its Deployment starts it."""

    plane: ControlPlane
    name: str
    command: Sequence[str]
    environment: dict[str, str]
    port: int
    public: Rest
    tls_files: Certificates
    process: Process | None = None

    def start(self) -> None:
        launcher = self.plane.launcher
        self.process = launcher.start(self.name, self.command, self.environment)
        self.process.wait_ready(lambda: self.public.get("/readyz")[0] == 200)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


@dataclass(frozen=True)
class Gate:
    """A cluster whose pods pass our webhook, and a namespace of it."""

    plane: ControlPlane
    webhook: Webhook
    configurations: Sequence[Json]
    namespace: str = "default"

    @property
    def rest(self) -> Rest:
        return self.plane.rest

    def at(self, namespace: str) -> "Gate":
        return replace(self, namespace=namespace)

    def post(self, a_pod: Json, *, dry_run: bool = True) -> tuple[int, Json]:
        """Create a pod here, or see what would become of it."""
        query = "?dryRun=All" if dry_run else ""
        path = f"/api/v1/namespaces/{self.namespace}/pods{query}"
        metadata = {**a_pod["metadata"], "namespace": self.namespace}
        return self.rest.post(path, {**a_pod, "metadata": metadata})

    def admitted(self, a_pod: Json, *, dry_run: bool = True) -> Json:
        """Insist that a pod is taken, and give it as the API server keeps it."""
        status, answer = self.post(a_pod, dry_run=dry_run)
        assert status == 201, answer.get("message", answer)
        return answer

    def denied(self, a_pod: Json) -> str:
        """Insist that a pod is refused, and give the API server's words."""
        status, answer = self.post(a_pod)
        assert 400 <= status < 500, (status, answer.get("message", answer))
        return str(answer["message"])

    def pods(self) -> list[Json]:
        return self.rest.items(f"/api/v1/namespaces/{self.namespace}/pods")

    def events(self, reason: str) -> list[str]:
        """Give the messages of all events here that have this reason."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        events = self.rest.items(path, fieldSelector=f"reason={reason}")
        return [event["message"] for event in events]

    def debug(self, a_pod: Json, **fields: object) -> tuple[int, Json]:
        """Add a container to a pod that is there, as ``kubectl debug`` does."""
        extra = {"name": "debug", "image": "local.test/pause:1", **fields}
        name = a_pod["metadata"]["name"]
        return self.rest.patch(
            f"/api/v1/namespaces/{self.namespace}/pods/{name}/ephemeralcontainers",
            {"spec": {"ephemeralContainers": [extra]}},
            "application/strategic-merge-patch+json",
        )

    def reviews(self, name: str = PODS) -> dict[str, int]:
        """How often the API server has asked this entry: ``admit``, ``validating``."""
        text = str(self.rest.get("/metrics")[1]["text"])
        counts = {"admit": 0, "validating": 0}
        for labels, number in re.findall(DURATION + r"\{(.*)\} (\S+)", text):
            by_name = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if by_name["name"] == name:
                counts[by_name["type"]] += int(float(number))
        return counts

    def kubectl(
        self, *arguments: str, stdin: Json | str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl in this namespace; look at its ``returncode``."""
        text = stdin if isinstance(stdin, str) else json.dumps(stdin)
        config = self.plane.kubeconfig(self.plane.admin.token, "kubectl")
        own = [f"--kubeconfig={config}", f"--namespace={self.namespace}"]
        return subprocess.run(
            [self.plane.binaries.path("kubectl"), *own, *arguments],
            input="" if stdin is None else text,
            capture_output=True,
            text=True,
            check=False,
        )

    def register(self, ca: bytes | None = None) -> None:
        """Register the webhook, or replace what is registered: by this CA bundle."""
        bundle = ca or self.webhook.tls_files.read()["ca.crt"]
        for body in self.configurations:
            path = f"{GROUP}/{KINDS[body['kind']]}"
            ours = pointing(body, self.webhook.port, bundle)
            status, answer = self.rest.get(f"{path}/{body['metadata']['name']}")
            if status == 200:
                version = answer["metadata"]["resourceVersion"]
                ours["metadata"]["resourceVersion"] = version
                self.rest.must("PUT", f"{path}/{body['metadata']['name']}", ours)
            else:
                self.rest.must("POST", path, ours)

    def unregister(self) -> None:
        for body in self.configurations:
            path = f"{GROUP}/{KINDS[body['kind']]}/{body['metadata']['name']}"
            assert self.rest.delete(path)[0] in {200, 404}
        wait_until(lambda: not self._stands(), "end of the webhook")

    def wait_standing(self) -> None:
        """Wait until the API server asks it, for both kinds."""
        before = self.reviews()
        wait_until(self._stands, "webhook to be asked")

        def both() -> bool:
            self.post(pod("asked", units=4, cores=1))
            now = self.reviews()
            return all(now[kind] > before[kind] for kind in before)

        wait_until(both, "both kinds of reviews")

    def _stands(self) -> bool:
        status, answer = self.post(pod("asked", units=4, cores=150))
        return status >= 400 and PODS in answer["message"]


def shipped(kind: str, components: Sequence[str] = ()) -> Json:
    """Give the one object of this kind that the webhook is installed by."""
    bodies = compose_overlay(FOLDER, "webhook", components=components)
    (shipped_body,) = (body for body in bodies if body["kind"] == kind)
    return shipped_body


def pointing(configuration: Json, port: int, ca: bytes) -> Json:
    """Give a configuration that leads to this port instead of to a Service."""
    ours: Json = json.loads(json.dumps(configuration))
    for entry in ours["webhooks"]:
        service = entry["clientConfig"]["service"]
        url = f"https://127.0.0.1:{port}{service['path']}"
        bundle = base64.b64encode(ca).decode()
        entry["clientConfig"] = {"url": url, "caBundle": bundle}
    return ours


def webhook(
    plane: ControlPlane, folder: Path, components: Sequence[str], settings: Json
) -> Webhook:
    """Prepare a webhook with certificates and an account of its own."""
    rules = shipped("ClusterRole")["rules"]
    grant(plane.rest, f"system:serviceaccount:default:{ACCOUNT}", rules)
    token = service_account_token(plane.rest, "default", ACCOUNT)
    tls_files = certificates(folder / "tls")
    port, public_port = find_free_address().port, find_free_address().port
    pods = shipped("Deployment", components)["spec"]["template"]["spec"]
    (server,) = pods["containers"]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONWARNINGS": "ignore",  # urllib3 warns of the test bed's certificate
        **{each["name"]: each["value"] for each in server["env"]},
        "GPUSHARE_LISTEN": f"127.0.0.1:{port}",
        "GPUSHARE_PUBLIC_LISTEN": f"127.0.0.1:{public_port}",
        "GPUSHARE_KUBECONFIG": str(plane.kubeconfig(token, folder.name)),
        "GPUSHARE_LOG_FORMAT": "text",
        "GPUSHARE_TLS_CERT": tls_files.path("server.crt"),
        "GPUSHARE_TLS_KEY": tls_files.path("server.key"),
        **settings,
    }
    command = [sys.executable, "-m", *server["command"]]
    public = Rest(public_port, tls=False)
    return Webhook(plane, folder.name, command, environment, port, public, tls_files)


@contextmanager
def raised(
    plane: ControlPlane, folder: Path, *components: str, **settings: str
) -> Iterator[Gate]:
    """Run the webhook and have the API server ask it; afterwards neither is left.

    ``components`` are laid over its manifests; ``settings`` are whole names of
    variables.
    """
    made = webhook(plane, folder, components, settings)
    gate = Gate(plane, made, [shipped(kind, components) for kind in KINDS])
    try:
        made.start()
        gate.register()
        gate.wait_standing()
        yield gate
    finally:
        gate.unregister()
        made.stop()


@contextmanager
def policies_in_force(rest: Rest, bodies: Sequence[Json]) -> Iterator[None]:
    """Create admission policies and their bindings; afterwards they are removed."""
    for body in bodies:
        rest.must("POST", f"{GROUP}/{POLICY_KINDS[body['kind']]}", body)
    yield
    for body in bodies:
        path = f"{GROUP}/{POLICY_KINDS[body['kind']]}/{body['metadata']['name']}"
        rest.must("DELETE", path)


def asked_of_bindings(name: str, namespace: str, url: str) -> Json:
    """Describe a webhook at ``url`` that each Binding of a namespace waits for."""
    rule: Json = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods/binding"],
    }
    labels = {"kubernetes.io/metadata.name": namespace}
    entry = {
        "name": "bindings.example.com",
        "clientConfig": {"url": url},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": labels},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }
    return {"metadata": {"name": name}, "webhooks": [entry]}


@contextmanager
def space_named(plane: ControlPlane, name: str) -> Iterator[str]:
    """Make a namespace of this name; afterwards it is gone, with all that is in it."""
    path = f"/api/v1/namespaces/{name}"
    plane.rest.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    sweep(plane.rest)
    plane.rest.must("DELETE", path)
    # What the namespace controller, which does not run here, would do at the end.
    finalized = {"metadata": {"name": name}, "spec": {"finalizers": []}}
    plane.rest.put(f"{path}/finalize", finalized)


def container(
    limits: dict[str, object] | None = None, name: str = "main", **other: object
) -> Json:
    """Describe a container that asks this; requests follow limits by themselves."""
    asked = {"limits": {key: str(value) for key, value in (limits or {}).items()}}
    return {"name": name, "image": "local.test/pause:1", "resources": asked, **other}


def asking(
    *containers: Json, annotations: dict[str, str] | None = None, **spec: object
) -> Json:
    """Describe a pod of these containers."""
    made = pod("tried", annotations=annotations)
    del made["metadata"]["namespace"]
    made["spec"] = {
        "automountServiceAccountToken": False,
        "containers": list(containers),
        **spec,
    }
    return made


def limits_of(a_pod: Json, number: int = 0, kind: str = "containers") -> dict[str, str]:
    """Give what a container asks, insisting that it requests the same."""
    resources = a_pod["spec"][kind][number]["resources"]
    limits: dict[str, str] = resources.get("limits", {})
    assert resources.get("requests", {}) == limits
    return limits
