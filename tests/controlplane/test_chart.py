"""The chart on a real API server, by the real Helm: one release's life, and its edges.

No kubelet runs, so nothing is waited for. What the chart renders for which values is
tested without a cluster, in ``tests/charts``.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.facts import OURS, SYSTEM, WEBHOOK_CONFIGURATIONS
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.manifests import WORKLOADS, load_manifests
from gpusharectl.installer.survey import owned_objects
from gpusharectl.installer.webhook.objects import (
    SECRET,
    certificate_secret,
    read_bundle,
    secret_files,
    with_bundle,
)
from tests.testbed.controlplane import ControlPlane
from tests.testbed.helm import CHART, Helm, settings
from tests.testbed.operators import CERT_MANAGER, serve_kinds

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

POLICY = Ref(
    "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicy",
    "gpushare-node-name",
)
"""That the version before did not have."""
PLUGIN = Ref("apps/v1", "DaemonSet", "gpushare-device-plugin", SYSTEM)
BEFORE = "0.0.9"
CERTIFICATE = (("ca", "crt"), ("tls", "crt"), ("tls", "key"))
MANAGER = "app.kubernetes.io/managed-by"


@pytest.fixture(scope="module")
def objects(alone: ControlPlane) -> Iterator[Objects]:
    made = ApiObjects.connect(str(alone.kubeconfig(alone.admin.token, "objects")))
    yield made
    made.close()


@pytest.fixture
def helm(
    alone: ControlPlane, helm_program: str, objects: Objects, tmp_path: Path
) -> Iterator[Helm]:
    """Helm's user; nothing of ours is left afterwards."""
    user = Helm(helm_program, tmp_path, alone.kubeconfig(alone.admin.token, "helm"))
    yield user
    for name in yaml.safe_load(user.must("list", "-o=json")):
        user.must("uninstall", name["name"], "--no-hooks")
    for overlay in ("kubeadm", "monitoring", "webhook"):
        for body in load_manifests(overlay):
            if body["kind"] not in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
                objects.delete(Ref.of(body))
    objects.delete(SECRET)


def earlier(folder: Path) -> Path:
    """The chart as a version before may have been: one policy less, another image."""
    chart = folder / "gpushare"
    shutil.copytree(CHART, chart)
    about = chart / "Chart.yaml"
    now = yaml.safe_load(about.read_text())
    about.write_text(yaml.safe_dump({**now, "version": BEFORE, "appVersion": BEFORE}))
    guard = chart / "templates/base/annotation-guard.yaml"
    head, *parts = guard.read_text().split("\n---\n")
    kept = [head, *(part for part in parts if f"name: {POLICY.name}\n" not in part)]
    assert len(kept) == len(parts) - 1
    guard.write_text("\n---\n".join(kept))
    return chart


def plain(body: Json) -> Json:
    """An object without what Helm and the API server add."""
    metadata = body["metadata"]
    labels = {k: v for k, v in metadata["labels"].items() if k != MANAGER}
    rest = {k: v for k, v in body.items() if k not in ("metadata", "status")}
    if body["kind"] == "Service":
        rest["spec"] = {
            k: v
            for k, v in body["spec"].items()
            if k not in ("clusterIP", "clusterIPs")
        }
    return {**rest, "name": metadata["name"], "labels": labels}


def there(objects: Objects, *overlays: str) -> dict[Ref, Json]:
    """The objects of these overlays as the API server has them."""
    found = {}
    for ref in (
        Ref.of(body) for overlay in overlays for body in load_manifests(overlay)
    ):
        body = objects.get(ref)
        if body is not None:
            found[ref] = body
    return found


def lost(wanted: Any, kept: Any, path: str = "") -> list[str]:
    """The paths at which the API server keeps something else than was rendered."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        return [
            lost_path
            for key, value in wanted.items()
            for lost_path in lost(value, kept.get(key), f"{path}/{key}")
        ]
    if isinstance(wanted, list) and isinstance(kept, list):
        pairs = zip(wanted, kept, strict=False)
        inner = [
            lost_path
            for number, pair in enumerate(pairs)
            for lost_path in lost(*pair, f"{path}/{number}")
        ]
        return inner if len(wanted) == len(kept) else [path]
    return [] if wanted == kept else [path]


def versions(bodies: Mapping[Ref, Json]) -> dict[Ref, str]:
    return {ref: body["metadata"]["resourceVersion"] for ref, body in bodies.items()}


def generations(bodies: Mapping[Ref, Json]) -> dict[Ref, int]:
    return {
        ref: body["metadata"]["generation"]
        for ref, body in bodies.items()
        if ref.kind in WORKLOADS
    }


def image(objects: Objects) -> str:
    plugin = objects.get(PLUGIN)
    assert plugin is not None
    (container,) = plugin["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def test_a_release_lives_as_any_other(
    helm: Helm, objects: Objects, tmp_path: Path
) -> None:
    """Installed, upgraded from the version before, rolled back, and uninstalled.

    What is there after an upgrade is what ``gpusharectl install`` applies, and the
    webhook's certificate stays the same in the next ones.
    """
    said = helm.must("install", "gpushare", earlier(tmp_path))
    assert "gpusharectl install --host-only" in said
    assert "kubectl label node NAME baidu.com/vcuda=true" in said
    # Afterwards no object tells the image any more.
    assert f"gpusharectl uninstall --image gpushare:{BEFORE}" in said
    assert image(objects) == f"gpushare:{BEFORE}"
    assert objects.get(POLICY) is None

    more = settings({"webhook.enabled": "true", "monitoring.enabled": "true"})
    helm.must("upgrade", "gpushare", CHART, *more)
    parts = ("kubeadm", "exporter", "webhook")
    installed = there(objects, *parts)
    assert installed.keys() == {
        Ref.of(b) for part in parts for b in load_manifests(part)
    }
    # So a tool that compares the two sees no difference.
    for body in yaml.safe_load_all(helm.must("get", "manifest", "gpushare")):
        kept = objects.get(Ref.of(body))
        assert not lost(body, kept), Ref.of(body)
    secret = objects.get(SECRET)
    helm.must("upgrade", "gpushare", CHART, "--reuse-values")
    again = there(objects, *parts)
    assert generations(again) == generations(installed)
    assert secret_files(objects.get(SECRET)) == secret_files(secret)
    asked = [again[ref] for ref in WEBHOOK_CONFIGURATIONS]
    assert read_bundle(asked).strip() == secret_files(secret)["ca.crt"].strip()

    helm.must("rollback", "gpushare", "1")
    assert image(objects) == f"gpushare:{BEFORE}"
    left = {ref.kind for ref in there(objects, "exporter", "webhook")}
    assert left == set()
    assert objects.get(POLICY) is None
    assert objects.get(SECRET) is None

    helm.must("rollback", "gpushare", "3")
    assert there(objects, *parts).keys() == installed.keys()
    helm.must("uninstall", "gpushare")
    assert there(objects, *parts) == {}
    assert objects.get(SECRET) is None
    left_over = objects.list("apps/v1", "DaemonSet", label_selector=OURS)
    assert not left_over


def test_a_release_can_take_over_an_install(helm: Helm, objects: Objects) -> None:
    """Helm refuses that by itself, until it is told to.

    The API server keeps the same of both, so no pod is replaced; the webhook keeps its
    certificate.
    """
    parts = ("kubeadm", "webhook")
    authority = {f"{name}.{end}": b"PEM" for name, end in CERTIFICATE}
    objects.create(certificate_secret(authority))
    for body in (body for part in parts for body in load_manifests(part)):
        hooks = "webhooks" in body
        objects.apply(with_bundle(body, b"PEM") if hooks else body)
    ours = there(objects, *parts)
    on = "--set=webhook.enabled=true"
    refused = helm.run("install", "gpushare", CHART, on)
    assert refused.returncode != 0
    assert "invalid ownership metadata" in refused.stderr
    assert versions(there(objects, *parts)) == versions(ours)

    # Helm 4 applies on the server, where the fields have gpusharectl as their manager.
    force = "--force-conflicts"
    more = [force] if force in helm.must("install", "--help") else []
    helm.must("install", "gpushare", CHART, on, "--take-ownership", *more)
    taken = there(objects, *parts)
    assert {ref: plain(body) for ref, body in taken.items()} == {
        ref: plain(body) for ref, body in ours.items()
    }
    assert secret_files(objects.get(SECRET)) == authority
    assert set(owned_objects(taken.values()).values()) == {"Helm's release gpushare"}
    assert len(owned_objects(taken.values())) == len(taken)


def test_cert_managers_authority_stays(helm: Helm, objects: Objects) -> None:
    """An upgrade leaves the caBundle that cert-manager has written meanwhile."""
    serve_kinds(objects, CERT_MANAGER)
    values = {
        "webhook.enabled": "true",
        "webhook.certificate.source": "cert-manager",
    }
    helm.must("install", "gpushare", CHART, *settings(values))
    for ref in WEBHOOK_CONFIGURATIONS:
        body = objects.get(ref)
        assert body is not None
        steps = [
            {
                "op": "add",
                "path": f"/webhooks/{at}/clientConfig/caBundle",
                "value": "YXV0aG9yaXR5",
            }
            for at in range(len(body["webhooks"]))
        ]
        assert steps
        objects.json_patch(ref, steps)
    more = settings({**values, "webhook.replicas": "3", "webhook.void": "true"})
    helm.must("upgrade", "gpushare", CHART, *more)
    for ref in WEBHOOK_CONFIGURATIONS:
        body = objects.get(ref)
        assert body is not None
        bundles = {
            entry["name"]: entry["clientConfig"].get("caBundle")
            for entry in body["webhooks"]
        }
        # This entry is new.
        bundles.pop("void.vcuda.baidu.com", None)
        assert set(bundles.values()) == {"YXV0aG9yaXR5"}


def test_a_secret_of_helms_is_not_lost_to_another_source(
    helm: Helm, objects: Objects
) -> None:
    """Helm would delete it, although it has the user's certificate now."""
    on = settings({"webhook.enabled": "true"})
    helm.must("install", "gpushare", CHART, *on)
    mine = {"tls.crt": "bWluZQ==", "tls.key": "bWluZQ=="}
    objects.merge(SECRET, {"data": mine})
    given = {"source": "given", "caBundle": "bWluZQ=="}
    more = settings({f"webhook.certificate.{key}": text for key, text in given.items()})
    upgrade = ("upgrade", "gpushare", CHART, *on, *more)
    refused = helm.run(*upgrade)
    assert "Helm has made the Secret gpushare-webhook-tls" in refused.stderr
    keep = {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}
    objects.merge(SECRET, keep)
    helm.must(*upgrade)
    helm.must(*upgrade)
    assert (objects.get(SECRET) or {})["data"].items() >= mine.items()
    managers = {"metadata": {"annotations": {"cert-manager.io/certificate-name": "x"}}}
    objects.merge(SECRET, managers)
    refused = helm.run("upgrade", "gpushare", CHART, *on)
    assert "Helm would not renew it" in refused.stderr


def test_a_cluster_has_one_kind_of_scheduler(helm: Helm, objects: Objects) -> None:
    """An upgrade would leave kube-scheduler's configuration on the hosts.

    Beside objects of the installer there would be two ledgers for the same cards.
    """
    second = settings(
        {"scheduler.kind": "second", "scheduler.image": "kube-scheduler:v1.36.3"}
    )
    helm.must("install", "gpushare", CHART)
    refused = helm.run("upgrade", "gpushare", CHART, *second)
    assert "the cluster has the DaemonSet gpushare-extender" in refused.stderr
    helm.must("uninstall", "gpushare")
    helm.must("install", "gpushare", CHART, *second)
    refused = helm.run("upgrade", "gpushare", CHART, "--reset-values")
    assert "the cluster has the Deployment gpushare-scheduler" in refused.stderr


def test_the_notes_know_the_cluster(helm: Helm, objects: Objects) -> None:
    """With a second scheduler no host is named; a RuntimeClass that is there is."""
    runtime_class = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    objects.create(runtime_class)
    values = {"scheduler.kind": "second", "scheduler.image": "kube-scheduler:v1.36.3"}
    dry = ("install", "other", CHART, "--dry-run=server", *settings(values))
    notes = helm.must(*dry).partition("NOTES:")[2]
    assert "schedulerName: vcuda-scheduler" in notes
    assert "gpusharectl uninstall --image " in notes
    assert "--host-only" not in notes
    assert "--set runtimeClassName=nvidia" in notes
    notes = helm.must(*dry, "--set=runtimeClassName=nvidia").partition("NOTES:")[2]
    assert "--set runtimeClassName=nvidia" not in notes
    assert objects.delete(Ref.of(runtime_class))
