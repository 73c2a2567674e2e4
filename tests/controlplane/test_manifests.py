"""What we ship on a real API server: by kubectl alone, and by the installer's hand."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare.kube.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.manifests import (
    BIE,
    MONITORING_OVERLAYS,
    OVERLAYS,
    WEBHOOK_OVERLAYS,
    WORKLOADS,
    load,
)
from tests.testbed.binaries import Binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.manifests import FOLDER
from tests.testbed.operators import CERT_MANAGER, PROMETHEUS, serve_kinds

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

MINE = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{folder}/{overlay}]
components: [{folder}/nvidia-runtime]
images: [{{name: gpushare, newName: local.test/gpushare, newTag: "9"}}]
"""
SERVERS_OWN = ("uid", "resourceVersion", "generation", "creationTimestamp")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
BUILT_IN = ("system:kube-scheduler", "system:volume-scheduler")
WHOLES = (*OVERLAYS, *MONITORING_OVERLAYS, *WEBHOOK_OVERLAYS, *BIE)
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
def alone(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane of this module's own: the guard would stop others' extender."""
    with ControlPlane(binaries, tmp_path_factory.mktemp("manifests")) as running:
        yield running


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
    for body in load(request.param):
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


def there(objects: Objects, overlay: str) -> dict[Ref, Json]:
    """The overlay's objects as the API server has them."""
    found = {}
    for ref in map(Ref.of, load(overlay)):
        body = objects.get(ref)
        assert body is not None, ref
        found[ref] = body
    return found


def versions(objects: Objects, overlay: str) -> dict[Ref, str]:
    """Which version each object is at."""
    return {
        ref: body["metadata"]["resourceVersion"]
        for ref, body in there(objects, overlay).items()
    }


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
    assert built(alone, FOLDER / overlay) == by_ref(list(load(overlay)))


@pytest.mark.parametrize("overlay", WITH_DRIVER)
def test_kubectl_builds_the_same_from_a_users_own(
    alone: ControlPlane, overlay: str, tmp_path: Path
) -> None:
    """With a component, and another image."""
    # kustomize wants a relative path.
    way = Path("../" * len(tmp_path.resolve().parts[1:])) / FOLDER.relative_to("/")
    text = MINE.format(folder=way, overlay=overlay)
    (tmp_path / "kustomization.yaml").write_text(text)
    image, components = "local.test/gpushare:9", ["nvidia-runtime"]
    ours = load(overlay, image=image, components=components)
    assert built(alone, tmp_path) == by_ref(list(ours))


@pytest.mark.parametrize(
    ("overlay", "component"),
    [
        ("exporter", "exporter-evict"),
        ("webhook", "webhook-void"),
        ("webhook-cert-manager", "webhook-void"),
    ],
)
def test_kubectl_lays_a_component_over_it_likewise(
    alone: ControlPlane, overlay: str, component: str, tmp_path: Path
) -> None:
    """As a user adds it."""
    way = Path("../" * len(tmp_path.resolve().parts[1:])) / FOLDER.relative_to("/")
    text = MINE.format(folder=way, overlay=overlay)
    text = text.replace("nvidia-runtime", component)
    (tmp_path / "kustomization.yaml").write_text(text)
    image, components = "local.test/gpushare:9", [component]
    ours = load(overlay, image=image, components=components)
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
    assert names == {Ref.of(body) for body in load(overlay)}
    for body in load(overlay):
        assert essence(objects.apply(body, dry_run=True))["kind"] == body["kind"]
        assert objects.get(Ref.of(body)) is None


def test_the_api_server_takes_every_pod(objects: Objects) -> None:
    """A workload's template is looked at once more when a pod is made of it."""
    for body in (body for each in (*OVERLAYS, *MORE) for body in load(each)):
        if body["kind"] in WORKLOADS:
            template = body["spec"]["template"]
            name = {"name": "tried", "namespace": "kube-system"}
            metadata = {**template["metadata"], **name}
            pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            made = objects.apply({**pod, "spec": template["spec"]}, dry_run=True)
            assert made["spec"]["priority"] >= 2_000_000_000


def test_apply_k_twice_changes_nothing(
    alone: ControlPlane, objects: Objects, overlay: str
) -> None:
    """And kubectl says so."""
    folder = str(FOLDER / overlay)
    kubectl(alone, "apply", "-k", folder)
    before = versions(objects, overlay)
    said = kubectl(alone, "apply", "-k", folder).splitlines()
    assert versions(objects, overlay) == before
    # Of a budget it sends the selector each time, whatever is there.
    others = [line for line in said if not line.startswith("poddisruptionbudget")]
    assert all(line.endswith(" unchanged") for line in others), said


def test_our_apply_twice_changes_nothing(objects: Objects, overlay: str) -> None:
    """As the installer does it."""
    for _ in range(2):
        before = [objects.apply(body) for body in load(overlay)]
    made = {Ref.of(body): body["metadata"]["resourceVersion"] for body in before}
    first = versions(objects, overlay)
    assert first == made
    for body in load(overlay):
        objects.apply(body)
    assert versions(objects, overlay) == first


def test_both_ways_make_the_same(
    alone: ControlPlane, objects: Objects, overlay: str
) -> None:
    """As the API server keeps it, defaults and all."""
    for body in load(overlay):
        objects.apply(body)
    ours = {ref: essence(body) for ref, body in there(objects, overlay).items()}
    for ref in ours:
        assert objects.delete(ref)
    kubectl(alone, "apply", "-k", str(FOLDER / overlay))
    theirs = {ref: essence(body) for ref, body in there(objects, overlay).items()}
    assert theirs == ours


def test_an_install_over_kubectls_own(
    alone: ControlPlane, objects: Objects, overlay: str
) -> None:
    """Who began by hand may go on with the installer: no field is in dispute."""
    kubectl(alone, "apply", "-k", str(FOLDER / overlay))
    by_hand = {ref: essence(body) for ref, body in there(objects, overlay).items()}
    for body in load(overlay):
        objects.apply(body)
    after = {ref: essence(body) for ref, body in there(objects, overlay).items()}
    assert after == by_hand


def test_what_kubernetes_own_scheduler_may(objects: Objects) -> None:
    """Its roles, which the second scheduler's account has too, give no secrets."""
    for name in BUILT_IN:
        role = objects.get(Ref("rbac.authorization.k8s.io/v1", "ClusterRole", name))
        assert role is not None
        for rule in role["rules"]:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "secrets", "escalate", "impersonate"}, rule
