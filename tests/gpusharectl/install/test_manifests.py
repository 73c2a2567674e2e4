"""What we ship, and the loader that puts it together.

That kubectl's own kustomize gives the same: ``tests/controlplane/test_manifests.py``.
"""

from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from gpushare.kube.cluster import Json
from gpushare.kube.names import GPU_NODE_LABEL
from gpushare.kube.objects import Ref
from gpusharectl.install.manifests import (
    BIE,
    COMPONENTS,
    MONITORING_OVERLAYS,
    OVERLAYS,
    WEBHOOK_OVERLAYS,
    WORKLOADS,
    ManifestError,
    assemble,
    load,
)
from tests.testbed.manifests import FOLDER, stanza

PART_OF = "app.kubernetes.io/part-of"
NAME = "app.kubernetes.io/name"
KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
COMPONENT = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
THING = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: n}\n"
TARGET = "{kind: ConfigMap, name: a}"


def every() -> Iterator[tuple[str, Json]]:
    """All objects of all overlays."""
    for overlay in OVERLAYS:
        for body in load(overlay, components=["nvidia-runtime"]):
            yield overlay, body
    for overlay in WEBHOOK_OVERLAYS:
        for body in load(overlay, components=["webhook-void"]):
            yield overlay, body


def of_kind(*kinds: str) -> list[Json]:
    return [body for _, body in every() if body["kind"] in kinds]


def containers() -> list[Json]:
    return [
        container
        for body in of_kind(*WORKLOADS)
        for container in body["spec"]["template"]["spec"]["containers"]
    ]


def workload(overlay: str, name: str, *components: str) -> Json:
    found = load(overlay, components=components)
    (one,) = [
        body
        for body in found
        if body["kind"] in WORKLOADS and body["metadata"]["name"] == name
    ]
    spec: Json = one["spec"]["template"]["spec"]
    return spec


def test_every_object_says_whose_it_is() -> None:
    """By these labels uninstall finds them, and a person too; the pods have them."""
    for overlay, body in every():
        labels = body["metadata"]["labels"]
        assert labels[PART_OF] == "gpushare", (overlay, body)
        assert labels[NAME].startswith("gpushare-"), (overlay, body)
        if body["kind"] in WORKLOADS:
            assert body["spec"]["template"]["metadata"]["labels"] == labels
            assert body["spec"]["selector"] == {"matchLabels": {NAME: labels[NAME]}}


def test_every_object_has_our_name() -> None:
    """So that none can be taken for another's."""
    assert all(b["metadata"]["name"].startswith("gpushare-") for _, b in every())


def test_no_right_is_too_wide() -> None:
    """No wildcard, no secrets, no way to more rights, no cluster-admin."""
    roles = of_kind("ClusterRole", "Role")
    assert roles
    for rule in (rule for role in roles for rule in role["rules"]):
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not words & {"*", "secrets", "escalate", "bind", "impersonate"}, rule
        assert "nonResourceURLs" not in rule
    for binding in of_kind("ClusterRoleBinding", "RoleBinding"):
        assert binding["roleRef"]["name"] != "cluster-admin"
        for subject in binding["subjects"]:
            assert subject["kind"] == "ServiceAccount"
            assert subject["namespace"] == "kube-system"


def test_every_account_that_is_named_is_made() -> None:
    """By bindings, pods and the guard."""
    for overlay in OVERLAYS:
        found = load(overlay)
        made = {b["metadata"]["name"] for b in found if b["kind"] == "ServiceAccount"}
        bound = {s["name"] for b in found for s in b.get("subjects", ())}
        run = {
            b["spec"]["template"]["spec"]["serviceAccountName"]
            for b in found
            if b["kind"] in WORKLOADS
        }
        assert made == bound == run
        for name in made:
            guards = [b for b in found if b["kind"] == "ValidatingAdmissionPolicy"]
            user = f"'system:serviceaccount:kube-system:{name}'"
            assert any(user in str(guard) for guard in guards)


def test_containers_can_do_little() -> None:
    """A read-only root, no capabilities, none to be had."""
    assert containers()
    for container in containers():
        allowed = container["securityContext"]
        assert allowed == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, container["name"]


def test_containers_are_looked_after() -> None:
    """Probes, room, and an image that is not pulled where it is there."""
    for container in containers():
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            ports = [one["name"] for one in container["ports"]]
            # The extender's verbs are on loopback, and with TLS for scheduler alone.
            here = asked.get("host") == "127.0.0.1" and asked["port"] in (39999, 39998)
            assert here or asked["port"] in ports
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert container["imagePullPolicy"] == "IfNotPresent"


def test_pods_are_no_more_than_they_must_be() -> None:
    """Root only where kubelet's folders are root's; the host's network for one."""
    for body in of_kind(*WORKLOADS):
        name, spec = body["metadata"]["name"], body["spec"]["template"]["spec"]
        allowed = spec["securityContext"]
        assert allowed["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["priorityClassName"].startswith("system-")
        assert ("hostNetwork" in spec) == (name == "gpushare-extender")
        assert not {"hostPID", "hostIPC"} & set(spec)
        plugin = name == "gpushare-device-plugin"
        assert (allowed["runAsUser"] == 0) == plugin
        assert allowed.get("runAsNonRoot", False) != plugin


def test_of_the_host_only_what_is_needed() -> None:
    """The extender none of it, but the certificates."""
    for overlay in OVERLAYS:
        folders = {
            volume["hostPath"]["path"]
            for body in load(overlay)
            if body["kind"] in WORKLOADS
            and body["metadata"]["name"] != "gpushare-device-plugin"
            for volume in body["spec"]["template"]["spec"]["volumes"]
            if "hostPath" in volume
        }
        where = {
            "with-tls": {"/etc/kubernetes/vcuda/tls"},
            "k3s-with-tls": {"/etc/rancher/k3s/vcuda/tls"},
        }
        assert folders == where.get(overlay, set()), overlay


def test_the_device_plugin_is_never_two_on_a_node() -> None:
    """kubelet would drop the newer when the older ends."""
    for body in of_kind("DaemonSet"):
        assert body["spec"]["updateStrategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
        }


def test_the_device_plugin_goes_where_the_label_is() -> None:
    """Whatever taints are there."""
    spec = workload("kubeadm", "gpushare-device-plugin")
    assert spec["nodeSelector"][GPU_NODE_LABEL] == "true"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"]}
    # Containers are given folders of /var/lib/vcuda by this name.
    assert mounts == paths


def test_the_extender_is_the_same_beside_both_schedulers() -> None:
    """It is written down twice, but for where kubelet asks how it is."""
    (one,) = workload("kubeadm", "gpushare-extender")["containers"]
    _, other = workload("second-scheduler", "gpushare-scheduler")["containers"]
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    for probe in probes:
        asked, other_asked = dict(one[probe]), dict(other[probe])
        assert asked.pop("httpGet")["path"] == other_asked.pop("httpGet")["path"]
        assert asked == other_asked
    assert {k: v for k, v in other.items() if k not in probes} == {
        k: v for k, v in one.items() if k not in probes
    }
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    for overlay, name in (
        ("kubeadm", "gpushare-extender"),
        ("second-scheduler", "gpushare-scheduler"),
    ):
        assert shm in workload(overlay, name)["volumes"]


def test_the_second_scheduler_has_the_stanza_that_we_ship() -> None:
    """It is written down twice."""
    (body,) = of_kind("ConfigMap")
    configuration = yaml.safe_load(body["data"]["scheduler.yaml"])
    assert configuration["extenders"] == [stanza()]


def test_the_images_are_of_this_version() -> None:
    """setup.cfg says which; no registry is ours to name."""
    setup = ConfigParser()
    setup.read(FOLDER.parent / "setup.cfg")
    version = setup["metadata"]["version"]
    images = {container["image"] for container in containers()}
    assert images == {f"gpushare:{version}", "kube-scheduler:v1.36.3"}


def test_another_image() -> None:
    """Ours everywhere, and no other's."""
    found = load("second-scheduler", image="local.test:5000/gpushare:9")
    images = {
        container["name"]: container["image"]
        for body in found
        if body["kind"] in WORKLOADS
        for container in body["spec"]["template"]["spec"]["containers"]
    }
    assert images == {
        "device-plugin": "local.test:5000/gpushare:9",
        "extender": "local.test:5000/gpushare:9",
        "kube-scheduler": "kube-scheduler:v1.36.3",
    }
    assert workload("kubeadm", "gpushare-extender")["containers"][0]["image"] != (
        "local.test:5000/gpushare:9"
    )


def test_the_nvidia_runtime_is_asked_for_by_a_component() -> None:
    """Where there is no such RuntimeClass, pods that name it cannot be made."""
    plugin = "gpushare-device-plugin"
    assert "runtimeClassName" not in workload("k3s", plugin)
    assert workload("k3s", plugin, "nvidia-runtime")["runtimeClassName"] == "nvidia"


def test_mutual_tls_brings_its_settings() -> None:
    """And nothing else is changed."""
    plain, tls = (workload(o, "gpushare-extender") for o in ("kubeadm", "with-tls"))
    more = tls["containers"][0]["env"][len(plain["containers"][0]["env"]) :]
    assert {one["name"]: one["value"] for one in more} == {
        "GPUSHARE_TLS_CERT": "/etc/vcuda/tls/server.crt",
        "GPUSHARE_TLS_KEY": "/etc/vcuda/tls/server.key",
        "GPUSHARE_TLS_CLIENT_CA": "/etc/vcuda/tls/ca.crt",
    }
    (mount,) = [m for m in tls["containers"][0]["volumeMounts"] if m["name"] == "tls"]
    assert mount == {"name": "tls", "mountPath": "/etc/vcuda/tls", "readOnly": True}
    assert load("kubeadm", components=["tls"]) == load("with-tls")


def test_names_that_nobody_knows() -> None:
    """It says which there are."""
    with pytest.raises(ManifestError, match=r"no overlay 'kubeadmin'; use one of kube"):
        load("kubeadmin")
    with pytest.raises(ManifestError, match=r"no component 'cdi'; use one of nvidia-"):
        load("kubeadm", components=["cdi"])


def test_every_folder_is_an_overlay_or_a_part_of_one() -> None:
    """None is left out by the loader."""
    folders = {path.parent.name for path in FOLDER.glob("*/kustomization.yaml")}
    parts = {"base", "extender", *COMPONENTS}
    assert folders == {*OVERLAYS, *MONITORING_OVERLAYS, *WEBHOOK_OVERLAYS, *BIE, *parts}
    listed = {path.parent.name for path in FOLDER.glob("*/*.yaml")}
    # Examples to copy from, and a chart's values.
    assert listed == {*folders, "autoscaling"}


def written(root: Path, **files: str) -> Path:
    """A folder with these files; ``_`` stands for ``/``, and all are YAML."""
    for name, text in files.items():
        path = root / f"{name.replace('_', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


def patch(steps: str, target: str = TARGET) -> dict[str, str]:
    """An overlay of one object and one patch."""
    listed = f"resources: [a.yaml]\npatches: [{{path: p.yaml, target: {target}}}]"
    return {
        "top_kustomization": f"{KUSTOMIZATION}{listed}",
        "top_a": THING,
        "top_p": steps,
    }


def test_components_come_before_patches(tmp_path: Path) -> None:
    """As in kustomize: an overlay has the last word."""
    listed = f"patches: [{{path: p.yaml, target: {TARGET}}}]"
    root = written(
        tmp_path,
        **patch("[{op: replace, path: /data, value: {last: word}}]"),
        part_kustomization=f"{COMPONENT}{listed}",
        part_p="[{op: add, path: /data, value: {first: word}}]",
    )
    top = root / "top" / "kustomization.yaml"
    top.write_text(f"{top.read_text()}\ncomponents: [../part]")
    (found,) = assemble(root, "top")
    assert found["data"] == {"last": "word"}
    (found,) = assemble(root, "top", components=["part"])
    assert found["data"] == {"first": "word"}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (patch("[]", "{kind: Secret, name: a}"), "0 objects are"),
        (patch("[{op: replace, path: /data, value: 1}]"), "top/p.yaml: can't replace"),
        (patch("[{op: add, path: data, value: 1}]"), "top/p.yaml: "),
    ],
)
def test_a_patch_that_cannot_be_applied(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        assemble(written(tmp_path, **files), "top")
    assert says in str(caught.value)


def test_our_kustomizations_use_what_the_loader_knows() -> None:
    """Anything else would be left out in silence; and no object is there twice."""
    for path in FOLDER.glob("*/kustomization.yaml"):
        found = yaml.safe_load(path.read_text())
        known = {"apiVersion", "kind", "resources", "components", "patches"}
        assert set(found) <= known, path
        assert found["kind"] == "Kustomization" or "resources" not in found, path
        for one in found.get("patches", ()):
            assert set(one) == {"path", "target"}, path
            assert set(one["target"]) == {"kind", "name"}, path
    for overlay in (*OVERLAYS, *MONITORING_OVERLAYS, *WEBHOOK_OVERLAYS, *BIE):
        refs = [Ref.of(body) for body in load(overlay)]
        assert len(refs) == len(set(refs)), overlay
