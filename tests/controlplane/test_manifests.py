"""What we ship on a real API server: by kubectl alone, and by the installer's hand."""

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from exporter.settings import ExporterSettings
from gpushare.cards.inventory import read_inventory
from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.dra.objects import (
    CONFIGURATION,
    claims_configuration,
    join_authorities,
    list_slices,
    shares_devices,
    trusted_authorities,
)
from gpusharectl.installer.manifests import (
    ALL,
    BIE,
    DRA,
    MONITORING_OVERLAYS,
    OVERLAYS,
    WEBHOOK_OVERLAYS,
    WORKLOADS,
    load_manifests,
)
from gpusharectl.installer.pki import make_authority
from tests.testbed.controlplane import ControlPlane
from tests.testbed.manifests import FOLDER
from tests.testbed.operators import CERT_MANAGER, PROMETHEUS, serve_kinds

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

ADMISSION = "admissionregistration.k8s.io/v1"
DOCUMENTS = FOLDER.parent / "docs"
MINE = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{folder}/{overlay}]
components: [{folder}/{component}]
images: [{{name: gpushare, newName: local.test/gpushare, newTag: "9"}}]
"""
SERVERS_OWN = ("uid", "resourceVersion", "generation", "creationTimestamp")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
BUILT_IN = ("system:kube-scheduler", "system:volume-scheduler")
SHARED_CLAIMS = pytest.mark.since("1.36", "claims that share a device")
_DRA = pytest.param(DRA, marks=SHARED_CLAIMS)
WHOLES = (*OVERLAYS, *MONITORING_OVERLAYS, *WEBHOOK_OVERLAYS, _DRA, *BIE)
EVERY_OBJECT = (*(_DRA if overlay == DRA else overlay for overlay in ALL), *BIE)
"""Overlays that together contain every object; the others are variants of them."""
WITH_DRIVER = (*OVERLAYS, "exporter", *BIE)
"""Those with a pod that needs the driver's library."""
MORE = ("exporter", "webhook")
EDGE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "baetyl-edge-system"},
}
"""BIE makes it."""


@pytest.fixture(scope="module")
def objects(alone: ControlPlane) -> Iterator[Objects]:
    path = alone.kubeconfig(alone.admin.token, "objects")
    made = ApiObjects.connect(str(path))
    made.create(EDGE)
    serve_kinds(made, PROMETHEUS | CERT_MANAGER)
    yield made
    made.close()


@pytest.fixture(params=WHOLES)
def overlay(request: pytest.FixtureRequest, objects: Objects) -> Iterator[str]:
    """One after the other, and nothing of it left."""
    yield request.param
    for body in load_manifests(request.param):
        objects.delete(Ref.of(body))


def kubectl(plane: ControlPlane, *arguments: str) -> str:
    """Run the real kubectl as the administrator."""
    config = plane.kubeconfig(plane.admin.token, "kubectl")
    done = subprocess.run(
        [plane.binaries.path("kubectl"), f"--kubeconfig={config}", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_ref(bodies: list[Json]) -> dict[Ref, Json]:
    return {Ref.of(body): body for body in bodies}


def built(plane: ControlPlane, folder: Path) -> dict[Ref, Json]:
    """What kubectl's kustomize makes of a folder."""
    # Ours may stand anywhere, as a user's own kustomization does.
    free = "--load-restrictor=LoadRestrictionsNone"
    text = kubectl(plane, "kustomize", free, str(folder))
    return by_ref(list(yaml.safe_load_all(text)))


def way_to_manifests(folder: Path) -> Path:
    """Return a relative path, which kustomize wants."""
    return Path("../" * len(folder.resolve().parts[1:])) / FOLDER.relative_to("/")


def there(objects: Objects, overlay: str) -> dict[Ref, Json]:
    """The overlay's objects as the API server has them."""
    found = {}
    for ref in map(Ref.of, load_manifests(overlay)):
        body = objects.get(ref)
        assert body is not None, ref
        found[ref] = body
    return found


def version_of(bodies: dict[Ref, Json]) -> dict[Ref, str]:
    return {ref: body["metadata"]["resourceVersion"] for ref, body in bodies.items()}


def versions(objects: Objects, overlay: str) -> dict[Ref, str]:
    return version_of(there(objects, overlay))


def essences(bodies: dict[Ref, Json]) -> dict[Ref, Json]:
    return {ref: essence(body) for ref, body in bodies.items()}


def essence(body: Json) -> Json:
    """An object without what differs each time that it is made."""
    metadata = {k: v for k, v in body["metadata"].items() if k not in SERVERS_OWN}
    metadata.pop("managedFields", None)
    annotations = metadata.pop("annotations", {})
    kept = {k: v for k, v in annotations.items() if k != LAST_APPLIED}
    rest = {k: v for k, v in body.items() if k not in ("metadata", "status")}
    if body["kind"] == "Service" and body["spec"].get("clusterIP") != "None":
        # The API server deals them out.
        dealt = ("clusterIP", "clusterIPs")
        rest["spec"] = {k: v for k, v in body["spec"].items() if k not in dealt}
    return {**rest, "metadata": {**metadata, "annotations": kept}}


@pytest.mark.parametrize("overlay", WHOLES)
def test_kubectl_builds_the_same(alone: ControlPlane, overlay: str) -> None:
    """Object for object: this holds the installer and ``apply -k`` together."""
    assert built(alone, FOLDER / overlay) == by_ref(list(load_manifests(overlay)))


@pytest.mark.parametrize(
    ("overlay", "component"),
    [
        *((overlay, "nvidia-runtime") for overlay in WITH_DRIVER),
        *((overlay, "dra-plugin") for overlay in OVERLAYS),
        *((overlay, "dra-extender") for overlay in ("with-tls", "k3s-with-tls")),
        ("exporter", "exporter-evict"),
        ("exporter", "exporter-compute"),
        ("webhook", "webhook-void"),
        ("webhook-cert-manager", "webhook-void"),
    ],
)
def test_kubectl_builds_the_same_from_a_users_own(
    alone: ControlPlane, overlay: str, component: str, tmp_path: Path
) -> None:
    """With a component, and another image."""
    way = way_to_manifests(tmp_path)
    text = MINE.format(folder=way, overlay=overlay, component=component)
    (tmp_path / "kustomization.yaml").write_text(text)
    ours = load_manifests(
        overlay, image="local.test/gpushare:9", components=[component]
    )
    assert built(alone, tmp_path) == by_ref(list(ours))


def test_the_api_server_takes_every_object(
    alone: ControlPlane, objects: Objects, overlay: str
) -> None:
    """In a dry run, by kubectl and by us; no field is unknown, nothing is made."""
    dry = ("--server-side", "--dry-run=server", "--validate=strict")
    folder = str(FOLDER / overlay)
    said = kubectl(alone, "apply", *dry, "-k", folder, "-o", "json")
    shown = json.loads(said)
    # Of one object there is no list.
    names = {Ref.of(item) for item in shown.get("items", [shown])}
    assert names == {Ref.of(body) for body in load_manifests(overlay)}
    for body in load_manifests(overlay):
        assert essence(objects.apply(body, dry_run=True))["kind"] == body["kind"]
        assert objects.get(Ref.of(body)) is None


def test_the_api_server_takes_every_pod(objects: Objects) -> None:
    """A workload's template is looked at once more when a pod is made of it."""
    for body in (body for each in (*OVERLAYS, *MORE) for body in load_manifests(each)):
        if body["kind"] in WORKLOADS:
            template = body["spec"]["template"]
            name = {"name": "tried", "namespace": "kube-system"}
            metadata = {**template["metadata"], **name}
            pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            made = objects.apply({**pod, "spec": template["spec"]}, dry_run=True)
            assert made["spec"]["priority"] >= 2_000_000_000


@pytest.mark.parametrize("overlay", EVERY_OBJECT, indirect=True)
def test_both_ways_make_the_same(
    alone: ControlPlane, objects: Objects, overlay: str
) -> None:
    """As the API server keeps it; who began with one way may go on with the other.

    The same once more changes nothing.
    """
    for _ in range(2):
        made = {Ref.of(body): objects.apply(body) for body in load_manifests(overlay)}
    ours = there(objects, overlay)
    for body in load_manifests(overlay):
        objects.apply(body)
    assert versions(objects, overlay) == version_of(made) == version_of(ours)
    for ref in ours:
        assert objects.delete(ref)
    folder = str(FOLDER / overlay)
    kubectl(alone, "apply", "-k", folder)
    before = versions(objects, overlay)
    said = kubectl(alone, "apply", "-k", folder).splitlines()
    assert versions(objects, overlay) == before
    # Of a budget it sends the selector each time, whatever is there.
    others = [line for line in said if not line.startswith("poddisruptionbudget")]
    assert all(line.endswith(" unchanged") for line in others), said
    theirs = essences(there(objects, overlay))
    assert theirs == essences(ours)
    for body in load_manifests(overlay):
        objects.apply(body)
    assert essences(there(objects, overlay)) == theirs


def test_what_kubernetes_own_scheduler_may(objects: Objects) -> None:
    """Its roles, which the second scheduler's account has too, give no secrets."""
    for name in BUILT_IN:
        role = objects.get(Ref("rbac.authorization.k8s.io/v1", "ClusterRole", name))
        assert role is not None
        for rule in role["rules"]:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "secrets", "escalate", "impersonate"}, rule


def write_examples(document: str, folder: Path) -> None:
    """Write a document's YAML into files, named by the comments at their tops."""
    text = (DOCUMENTS / document).read_text()
    manifests = way_to_manifests(folder)
    for example, name in re.findall(r"```yaml\n(# (\S+\.yaml).*?)```", text, re.DOTALL):
        (folder / name).write_text(example.replace("manifests/", f"{manifests}/"))


def test_ones_own_accelerators(alone: ControlPlane, tmp_path: Path) -> None:
    """The example of docs/monitoring.md: the exporter is told where its list is."""
    write_examples("monitoring.md", tmp_path)
    found = {ref.kind: body for ref, body in built(alone, tmp_path).items()}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    variables = container["env"]
    environment = {each["name"]: each.get("value", "edge-1") for each in variables}
    settings, complaints = ExporterSettings.read(environment)
    assert complaints == []
    assert settings.inventory is not None
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    source = volumes[mounts[str(settings.inventory.parent)]]["configMap"]["name"]
    assert source == found["ConfigMap"]["metadata"]["name"]
    assert list(found["ConfigMap"]["data"]) == [settings.inventory.name]
    cards = read_inventory(tmp_path / "inventory.yaml")
    assert isinstance(cards, tuple), cards
    used = Path(cards[0].used_mib_file or "")
    host = volumes["readings"]["hostPath"]["path"]
    # The same path inside, as the file says it.
    assert mounts[host] == "readings"
    assert used.is_relative_to(host)


def test_kubelets_other_folder(alone: ControlPlane, tmp_path: Path) -> None:
    """The example of docs/deviceplugin.md moves one folder of the host, no more."""
    write_examples("deviceplugin.md", tmp_path)
    found = built(alone, tmp_path)
    usual = by_ref([*load_manifests("kubeadm"), *load_manifests("exporter")])
    changed = {ref: body for ref, body in found.items() if body != usual[ref]}
    names = ["gpushare-device-plugin", "gpushare-exporter"]
    assert sorted(ref.name for ref in changed) == names
    for ref, body in changed.items():
        before, after = (
            {volume["name"]: volume for volume in pod_spec.pop("volumes")}
            for pod_spec in (
                workload["spec"]["template"]["spec"] for workload in (usual[ref], body)
            )
        )
        moved = after.pop("pod-resources")["hostPath"]["path"]
        assert moved == "/var/lib/k0s/kubelet/pod-resources"
        assert before.pop("pod-resources")
        # Their order may be another one.
        assert (after, body) == (before, usual[ref])


@SHARED_CLAIMS
def test_dra_is_accepted(objects: Objects) -> None:
    """The trial of a shared device stores nothing; the webhook trusts all hosts."""
    assert shares_devices(objects)
    assert list_slices(objects) == []
    hosts = {
        name: make_authority(datetime.now(UTC)).certificate_pem
        for name in ("cp", "cp-2")
    }
    both = b"".join(hosts.values())
    objects.apply(claims_configuration(join_authorities(hosts)))
    assert trusted_authorities(objects) == both
    assert objects.delete(CONFIGURATION)
    assert trusted_authorities(objects) == b""
