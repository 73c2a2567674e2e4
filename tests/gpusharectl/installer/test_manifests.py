"""What we ship, and the loader that puts it together.

That kubectl's own kustomize gives the same: ``tests/controlplane/test_manifests.py``.
"""

from functools import cache
from pathlib import Path

import pytest
import yaml

from extender.settings import ExtenderSettings
from gpushare import __version__
from gpushare.kube.cluster import Json
from gpushare.kube.names import GPU_NODE_LABEL
from gpushare.kube.objects import Ref
from gpusharectl.installer.manifests import (
    BIE,
    COMPONENTS,
    DRA,
    MONITORING_OVERLAYS,
    OVERLAYS,
    WEBHOOK_OVERLAYS,
    WORKLOADS,
    ManifestError,
    compose_overlay,
    load_manifests,
)
from tests.testbed.manifests import FOLDER, stanza

PART_OF = "app.kubernetes.io/part-of"
NAME = "app.kubernetes.io/name"
INSTALLED = (*OVERLAYS, *MONITORING_OVERLAYS, *WEBHOOK_OVERLAYS)
EVERY = (*INSTALLED, DRA, *BIE)
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@cache
def shipped(overlay: str) -> tuple[Json, ...]:
    """An overlay as it is loaded; nobody may change it."""
    return load_manifests(overlay)


def of_kind(overlay: str, *kinds: str) -> list[Json]:
    return [body for body in shipped(overlay) if body["kind"] in kinds]


def pods(overlay: str) -> dict[str, Json]:
    """The pods of an overlay's workloads, by the names of these."""
    return {
        body["metadata"]["name"]: body["spec"]["template"]["spec"]
        for body in of_kind(overlay, *WORKLOADS)
    }


@pytest.mark.parametrize("overlay", [*INSTALLED, DRA])
def test_every_object_says_whose_it_is(overlay: str) -> None:
    """By these labels uninstall finds them, where it looks; the pods have them."""
    for body in shipped(overlay):
        metadata = body["metadata"]
        labels = metadata["labels"]
        assert labels[PART_OF] == "gpushare", body
        assert labels[NAME].startswith("gpushare-"), body
        # Users write the class's name into their claims.
        users = body["kind"] == "DeviceClass"
        assert metadata["name"].startswith("vcuda" if users else "gpushare-"), body
        assert metadata.get("namespace") in ("kube-system", None), body
        if body["kind"] in WORKLOADS:
            assert body["spec"]["template"]["metadata"]["labels"] == labels
            assert body["spec"]["selector"] == {"matchLabels": {NAME: labels[NAME]}}
    refs = [Ref.of(body) for body in shipped(overlay)]
    assert len(refs) == len(set(refs))


@pytest.mark.parametrize("overlay", INSTALLED)
def test_no_right_is_too_wide(overlay: str) -> None:
    """No wildcard, no secrets, no way to more rights, no cluster-admin."""
    for role in of_kind(overlay, "ClusterRole", "Role"):
        for rule in role["rules"]:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "secrets", "escalate", "bind", "impersonate"}, rule
            assert "nonResourceURLs" not in rule
    for binding in of_kind(overlay, "ClusterRoleBinding", "RoleBinding"):
        assert binding["roleRef"]["name"] != "cluster-admin"
        for subject in binding["subjects"]:
            assert (subject["kind"], subject["namespace"]) == (
                "ServiceAccount",
                "kube-system",
            )


@pytest.mark.parametrize("overlay", EVERY)
def test_containers_can_do_little_and_are_looked_after(overlay: str) -> None:
    """A read-only root, no capabilities; probes, room, and an image of this version."""
    swapped = load_manifests(overlay, image="local.test:5000/gpushare:9")
    for spec in pods(overlay).values():
        for one in spec["containers"]:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, one["name"]
            ports = [port["name"] for port in one["ports"]]
            for probe in PROBES:
                asked = one[probe]["httpGet"]
                # The extender's verbs are on loopback; with TLS for scheduler alone.
                here = (asked.get("host"), asked["port"])
                loopback = [("127.0.0.1", port) for port in (39999, 39998)]
                assert here in loopback or asked["port"] in ports
            assert {"cpu", "memory"} <= set(one["resources"]["requests"])
            assert one["imagePullPolicy"] == "IfNotPresent"
            scheduler = one["name"] == "kube-scheduler"
            ours = f"gpushare:{__version__}"
            assert one["image"] == ("kube-scheduler:v1.36.3" if scheduler else ours)
    assert f"gpushare:{__version__}" not in str(
        [body for body in swapped if body["kind"] in WORKLOADS]
    )


ROOT = ("gpushare-device-plugin", "gpushare-exporter")
OF_HOST = {
    "gpushare-device-plugin": {"/etc/cdi", "/var/run/cdi", "/var/lib/vcuda"}
    | {f"/var/lib/kubelet/{name}" for name in ("device-plugins", "pod-resources")},
    "gpushare-exporter": {
        "/var/lib/kubelet/pod-resources",
        "/var/lib/vcuda/claims",
        "/var/lib/vcuda/containers",
    },
    "with-tls": {"/etc/kubernetes/vcuda/tls"},
    "k3s-with-tls": {"/etc/rancher/k3s/vcuda/tls"},
}
"""Which folders of the host a workload sees, or the extender of an overlay."""


@pytest.mark.parametrize("overlay", EVERY)
def test_pods_are_no_more_than_they_must_be(overlay: str) -> None:
    """Root only where kubelet's folders are root's; the host's network for one."""
    for name, spec in pods(overlay).items():
        allowed, root = spec["securityContext"], name in ROOT
        assert allowed["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (allowed["runAsUser"] == 0, allowed.get("runAsNonRoot", False)) == (
            root,
            not root,
        )
        assert ("hostNetwork" in spec) == (name == "gpushare-extender")
        assert ("hostPID" in spec) == (name == "gpushare-exporter")
        assert "hostIPC" not in spec
        volumes = [one for one in spec.get("volumes", ()) if "hostPath" in one]
        paths = {one["hostPath"]["path"] for one in volumes}
        plain = overlay if name == "gpushare-extender" else name
        assert paths == OF_HOST.get(plain, set()), name
        if overlay in BIE:
            assert spec["automountServiceAccountToken"] is False
            assert not {"volumes", "serviceAccountName"} & set(spec)
        else:
            assert spec["priorityClassName"].startswith("system-")


@pytest.mark.parametrize("overlay", ["kubeadm", "exporter"])
def test_daemonsets_go_where_the_label_is_and_never_two_on_a_node(overlay: str) -> None:
    """Whatever taints are there; kubelet would drop the newer when the older ends."""
    for body in of_kind(overlay, "DaemonSet"):
        assert body["spec"]["updateStrategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
        }
        spec = body["spec"]["template"]["spec"]
        if body["metadata"]["name"] != "gpushare-extender":
            assert spec["nodeSelector"][GPU_NODE_LABEL] == "true"
            assert spec["tolerations"] == [{"operator": "Exists"}]
    plugin = pods("kubeadm")["gpushare-device-plugin"]
    mounts = plugin["containers"][0]["volumeMounts"]
    paths = {one["name"]: one["hostPath"]["path"] for one in plugin["volumes"]}
    # Containers are given folders of /var/lib/vcuda by this name.
    assert {one["name"]: one["mountPath"] for one in mounts} == paths


def test_the_extender_is_the_same_beside_both_schedulers() -> None:
    """It is written down twice, but for where kubelet asks how it is."""
    one_pod = pods("kubeadm")["gpushare-extender"]
    other_pod = pods("second-scheduler")["gpushare-scheduler"]
    (one,), (_, other) = one_pod["containers"], other_pod["containers"]
    for probe in PROBES:
        asked, other_asked = dict(one[probe]), dict(other[probe])
        assert asked.pop("httpGet")["path"] == other_asked.pop("httpGet")["path"]
        assert asked == other_asked
    assert {**one, **dict.fromkeys(PROBES)} == {**other, **dict.fromkeys(PROBES)}
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    assert shm in one_pod["volumes"]
    assert shm in other_pod["volumes"]
    (body,) = of_kind("second-scheduler", "ConfigMap")
    configuration = yaml.safe_load(body["data"]["scheduler.yaml"])
    assert configuration["extenders"] == [stanza()]


def test_mutual_tls_brings_its_settings() -> None:
    """And nothing else is changed."""
    plain, tls = (
        pods(overlay)["gpushare-extender"]["containers"][0]
        for overlay in ("kubeadm", "with-tls")
    )
    assert {one["name"]: one["value"] for one in tls["env"][len(plain["env"]) :]} == {
        "GPUSHARE_TLS_CERT": "/etc/vcuda/tls/server.crt",
        "GPUSHARE_TLS_KEY": "/etc/vcuda/tls/server.key",
        "GPUSHARE_TLS_CLIENT_CA": "/etc/vcuda/tls/ca.crt",
    }
    mount = {"name": "tls", "mountPath": "/etc/vcuda/tls", "readOnly": True}
    assert mount in tls["volumeMounts"]
    assert load_manifests("kubeadm", components=["tls"]) == shipped("with-tls")


@pytest.mark.parametrize(
    ("overlay", "component", "says"),
    [
        ("kubeadmin", (), "no overlay 'kubeadmin'; use one of kube"),
        ("kubeadm", ["cdi"], "no component 'cdi'; use one of nvidia-"),
        ("kubeadm", ["exporter-evict"], "changes nothing in kubeadm"),
    ],
)
def test_names_that_nobody_knows(overlay: str, component: list[str], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        load_manifests(overlay, components=component)


@pytest.mark.parametrize(
    ("steps", "kind", "says"),
    [
        ("[]", "Secret", "0 objects are"),
        (
            "[{op: replace, path: /data, value: 1}]",
            "ConfigMap",
            "top/p.yaml: cannot replace /data",
        ),
        ("[{op: add, path: data, value: 1}]", "ConfigMap", "top/p.yaml: "),
        ("[{op: test, path: /kind, value: x}]", "ConfigMap", "'ConfigMap'"),
        ("[{op: copy, path: /kind, from: /x}]", "ConfigMap", "cannot copy /kind"),
    ],
)
def test_a_patch_that_cannot_be_applied(
    tmp_path: Path, steps: str, kind: str, says: str
) -> None:
    files = {
        "kustomization": "kind: Kustomization\nresources: [a.yaml]\npatches: "
        f"[{{path: p.yaml, target: {{kind: {kind}, name: a}}}}]",
        "a": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: n}\n",
        "p": steps,
    }
    (tmp_path / "top").mkdir()
    for name, text in files.items():
        (tmp_path / "top" / f"{name}.yaml").write_text(text)
    with pytest.raises(ManifestError, match=says):
        compose_overlay(tmp_path, "top")


def test_dra_is_switched_on_by_a_component() -> None:
    """With its folders and the rights; else with none."""
    (before, after) = (
        load_manifests("kubeadm", components=components)
        for components in ((), ("dra-plugin",))
    )
    for bodies, on in ((before, False), (after, True)):
        found = {(one["kind"], one["metadata"]["name"]): one for one in bodies}
        plugin = "gpushare-device-plugin"
        spec = found["DaemonSet", plugin]["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        env = {one["name"]: one.get("value") for one in container["env"]}
        assert (env.get("GPUSHARE_DRA") == "on") == on
        mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
        assert "readOnly" not in mounts["/var/run/cdi"]
        kubelets = {path for path in mounts if "/plugins" in path}
        wanted = ("plugins_registry", "plugins/vcuda.baidu.com")
        assert kubelets == {f"/var/lib/kubelet/{one}" for one in wanted if on}
        groups = {
            group
            for rule in found["ClusterRole", plugin]["rules"]
            for group in rule["apiGroups"]
        }
        assert ("resource.k8s.io" in groups) == on


def test_the_arbiter_is_switched_on_by_a_component() -> None:
    """With the certificate that the host has; without certificates it is refused."""
    for overlay in ("with-tls", "k3s-with-tls"):
        for components in ((), ("dra-extender",)):
            (spec,) = (
                body["spec"]["template"]["spec"]
                for body in load_manifests(overlay, components=components)
                if Ref.of(body).name == "gpushare-extender"
                and body["kind"] == "DaemonSet"
            )
            (container,) = spec["containers"]
            env = {one["name"]: one["value"] for one in container["env"]}
            found, complaints = ExtenderSettings.read(env)
            assert not complaints
            assert bool(found.claims) == bool(components)
            if found.claims and found.tls:
                assert found.claims.tls.cert == found.tls.cert
    with pytest.raises(ManifestError, match="dra-extender"):
        load_manifests("kubeadm", components=["dra-extender"])


def test_our_kustomizations_use_what_the_loader_knows() -> None:
    """Anything else would be left out in silence, as would an unknown folder."""
    for path in FOLDER.glob("*/kustomization.yaml"):
        found = yaml.safe_load(path.read_text())
        known = {"apiVersion", "kind", "resources", "components", "patches"}
        assert set(found) <= known, path
        assert found["kind"] == "Kustomization" or "resources" not in found, path
        for one in found.get("patches", ()):
            assert set(one) == {"path", "target"}, path
            assert set(one["target"]) == {"kind", "name"}, path
    folders = {path.parent.name for path in FOLDER.glob("*/kustomization.yaml")}
    assert folders == {*EVERY, "base", "extender", *COMPONENTS}
    listed = {path.parent.name for path in FOLDER.glob("*/*.yaml")}
    # Examples to copy from, and a chart's values.
    assert listed == {*folders, "autoscaling"}
