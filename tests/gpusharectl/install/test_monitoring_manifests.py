"""What of ours watches cards, and what it may: the exporter, and BIE's collector.

That kubectl's own kustomize gives the same: ``tests/controlplane/test_manifests.py``.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from deviceplugin.__main__ import main
from deviceplugin.exporter.settings import ExporterSettings
from deviceplugin.telemetry.fields import GROUPS, MEMORY
from gpushare.kube.cluster import Json
from gpusharectl.install.manifests import (
    BIE,
    MONITORING_OVERLAYS,
    OVERLAYS,
    WORKLOADS,
    ManifestError,
    assemble,
    load,
)
from tests.gpusharectl.install.test_manifests import (
    COMPONENT,
    KUSTOMIZATION,
    NAME,
    PART_OF,
)
from tests.gpusharectl.install.test_manifests import THING as CONFIG_MAP
from tests.testbed.manifests import rights

LABEL = "baetyl-service-name"
SERVICE = "baetyl-accelerator-metrics"


def workload(overlay: str, *components: str) -> Json:
    """The one workload of an overlay, as it is applied."""
    found = load(overlay, components=components)
    (one,) = [body for body in found if body["kind"] in WORKLOADS]
    return one


def pod(overlay: str, *components: str) -> Json:
    spec: Json = workload(overlay, *components)["spec"]["template"]["spec"]
    return spec


def container(overlay: str, *components: str) -> Json:
    (found,) = pod(overlay, *components)["containers"]
    return dict(found)


def environment(overlay: str, *components: str) -> dict[str, str]:
    """What the process finds in its environment on node-1."""
    found = {}
    for one in container(overlay, *components)["env"]:
        if "valueFrom" in one:
            assert one["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
        found[one["name"]] = one.get("value", "node-1")
    return found


@pytest.mark.parametrize("overlay", MONITORING_OVERLAYS)
def test_every_object_says_whose_it_is(overlay: str) -> None:
    """By these labels uninstall finds them, in the namespace in which it looks."""
    for body in load(overlay):
        metadata = body["metadata"]
        assert metadata["name"].startswith("gpushare-"), body
        assert metadata["labels"][PART_OF] == "gpushare", body
        assert metadata["labels"][NAME].startswith("gpushare-"), body
        if not body["kind"].startswith("Cluster"):
            assert metadata["namespace"] == "kube-system", body


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_monitoring_stands_beside_every_cluster(overlay: str) -> None:
    """No object is in both, so neither undoes the other."""
    bodies = [*load(overlay), *load("monitoring")]
    names = [(body["kind"], body["metadata"]["name"]) for body in bodies]
    assert len(names) == len(set(names))


def test_monitoring_has_the_exporter_in_it() -> None:
    """And on top what shows it."""
    exporter, whole = load("exporter"), load("monitoring")
    assert all(body in whole for body in exporter)
    more = {body["kind"] for body in whole if body not in exporter}
    assert more == {"ConfigMap", "ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_the_exporter_is_found() -> None:
    """By its Service and what selects that, and by annotations of its pods."""
    found = load("monitoring")
    (service,) = [body for body in found if body["kind"] == "Service"]
    (monitor,) = [body for body in found if body["kind"] == "ServiceMonitor"]
    template = workload("exporter")["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (own,) = container("exporter")["ports"]
    assert (port["targetPort"], port["port"]) == (own["name"], own["containerPort"])
    assert [one["port"] for one in monitor["spec"]["endpoints"]] == [port["name"]]


def test_every_pod_with_metrics_says_where() -> None:
    """For a Prometheus that finds pods by annotations."""
    ports = {"extender": 39998, "scheduler": 39998, "device-plugin": 39997}
    ports["exporter"] = 9400
    for overlay in ("kubeadm", "second-scheduler", "exporter"):
        for body in load(overlay):
            if body["kind"] in WORKLOADS:
                template = body["spec"]["template"]
                own = [
                    port["containerPort"]
                    for one in template["spec"]["containers"]
                    for port in one["ports"]
                ]
                port = ports[body["metadata"]["name"].removeprefix("gpushare-")]
                assert port in own
                assert template["metadata"]["annotations"] == {
                    "prometheus.io/scrape": "true",
                    "prometheus.io/port": str(port),
                    "prometheus.io/path": "/metrics",
                }


def test_the_pod_monitor_finds_the_others() -> None:
    """Each by its label, and by a port that its pod names."""
    (monitor,) = [body for body in load("monitoring") if body["kind"] == "PodMonitor"]
    (rule,) = monitor["spec"]["selector"]["matchExpressions"]
    assert (rule["key"], rule["operator"]) == (NAME, "In")
    asked = {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]}
    others = [
        body
        for overlay in ("kubeadm", "second-scheduler", "webhook")
        for body in load(overlay)
        if body["kind"] in WORKLOADS
    ]
    assert set(rule["values"]) == {body["metadata"]["name"] for body in others}
    for body in others:
        spec = body["spec"]["template"]["spec"]
        named = {port["name"] for one in spec["containers"] for port in one["ports"]}
        assert named & asked


def test_what_the_exporter_may() -> None:
    """Read pods, write events; its account is its own."""
    assert rights("gpushare-exporter") == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    found = load("exporter")
    (binding,) = [body for body in found if body["kind"] == "ClusterRoleBinding"]
    (subject,) = binding["subjects"]
    assert subject["name"] == pod("exporter")["serviceAccountName"]
    assert (subject["namespace"], binding["roleRef"]["name"]) == (
        "kube-system",
        "gpushare-exporter",
    )


def test_eviction_is_a_component_of_its_own() -> None:
    """One right more and one setting more, and nothing else."""
    plain, evicting = load("exporter"), load("exporter", components=["exporter-evict"])
    changed = [new for old, new in zip(plain, evicting, strict=True) if old != new]
    role, daemonset = sorted(changed, key=lambda body: body["kind"])
    assert role["rules"] == [
        *rights("gpushare-exporter"),
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    ]
    assert daemonset["kind"] == "DaemonSet"
    more = (
        environment("exporter", "exporter-evict").items()
        - environment("exporter").items()
    )
    assert dict(more) == {"GPUSHARE_WATCHDOG": "evict"}


def test_the_exporter_is_where_the_device_plugin_is() -> None:
    """The same nodes, whatever their taints."""
    plugin, exporter = (
        next(
            body["spec"]["template"]["spec"]
            for body in load(overlay)
            if body["metadata"]["name"] == name and body["kind"] == "DaemonSet"
        )
        for overlay, name in (
            ("kubeadm", "gpushare-device-plugin"),
            ("exporter", "gpushare-exporter"),
        )
    )
    for key in ("nodeSelector", "tolerations", "securityContext"):
        assert exporter[key] == plugin[key]


def test_of_the_host_the_exporter_has_processes_and_one_folder() -> None:
    """All of it to read."""
    spec = pod("exporter")
    assert spec["hostPID"] is True
    assert not {"hostNetwork", "hostIPC", "initContainers"} & set(spec)
    volumes = {one["name"]: one for one in spec["volumes"]}
    paths = [one["hostPath"]["path"] for one in volumes.values() if "hostPath" in one]
    assert paths == ["/var/lib/kubelet/pod-resources"]
    assert volumes["fields"]["configMap"]["optional"] is True
    mounts = container("exporter")["volumeMounts"]
    assert {one["name"] for one in mounts} == set(volumes)
    assert all(one["readOnly"] is True for one in mounts)
    # Of a file's own mount nobody would see the change.
    assert not any("subPath" in one for one in mounts)


@pytest.mark.parametrize("overlay", ["exporter", *BIE])
def test_containers_can_do_little_and_are_looked_after(overlay: str) -> None:
    one = container(overlay)
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ports = [port["name"] for port in one["ports"]]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert one[probe]["httpGet"]["port"] in ports
    assert {"cpu", "memory"} <= set(one["resources"]["requests"])
    assert one["imagePullPolicy"] == "IfNotPresent"
    (base,) = {
        one["image"]
        for body in load("kubeadm")
        if body["kind"] in WORKLOADS
        for one in body["spec"]["template"]["spec"]["containers"]
    }
    assert one["image"] == base
    (swapped,) = [
        each["spec"]["template"]["spec"]["containers"][0]["image"]
        for each in load(overlay, image="local.test/gpushare:9")
        if each["kind"] in WORKLOADS
    ]
    assert swapped == "local.test/gpushare:9"


@pytest.mark.parametrize("overlay", ["exporter", *BIE])
def test_the_settings_are_understood(overlay: str) -> None:
    """By the exporter itself, to the last name and value."""
    settings, complaints = ExporterSettings.read(environment(overlay))
    assert complaints == []
    assert settings.node == "node-1"
    ports = [port["containerPort"] for port in container(overlay)["ports"]]
    collected = settings.collect_listen
    if overlay == "exporter":
        assert (settings.listen.port, collected) == (ports[0], None)
    else:
        assert collected is not None
        assert (settings.listen.host, collected.port) == ("127.0.0.1", ports[0])


@pytest.mark.parametrize("overlay", ["exporter", *BIE])
def test_the_command_is_understood(overlay: str) -> None:
    """By the exporter itself, each flag of it."""
    *python, command = container(overlay)["command"][:4]
    assert python == ["python", "-m", "deviceplugin"]
    flags = container(overlay)["command"][4:]
    ran = CliRunner().invoke(main, [command, *flags, "--help"])
    assert ran.exit_code == 0, ran.output
    assert all(flag in ran.output for flag in flags)


def test_bie_is_told_of_memory_alone() -> None:
    """Every group that is on by itself is switched off, but memory."""
    flags = container("bie-daemonset")["command"][4:]
    on = {group.name for group in GROUPS if group.by_default} - {MEMORY}
    assert sorted(flags) == sorted(f"--disable-{name}" for name in on)


@pytest.mark.parametrize("overlay", BIE)
def test_bie_finds_it(overlay: str) -> None:
    """Its namespace, its label in selector and template, its port, and the name."""
    body = workload(overlay)
    assert body["kind"].lower() == overlay.removeprefix("bie-")
    assert body["metadata"]["namespace"] == "baetyl-edge-system"
    spec = body["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"][LABEL] == labels[LABEL] == SERVICE
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert [one["containerPort"] for one in container(overlay)["ports"]] == [30060]
    assert environment(overlay)["KUBE_NODE_NAME"] == "node-1"


@pytest.mark.parametrize("overlay", BIE)
def test_bie_gets_nothing_of_the_cluster_or_the_host(overlay: str) -> None:
    """One object: no account, no rights, no folder, no network of the host's."""
    (body,) = load(overlay)
    spec = body["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    held = {"hostNetwork", "hostPID", "hostIPC", "volumes", "serviceAccountName"}
    assert not held & set(spec)


def test_bie_has_one_pod_for_both_kinds() -> None:
    """It is written down twice; a cluster says by a label where cards are."""
    daemonset, deployment = (pod(overlay) for overlay in BIE)
    nodes = daemonset["nodeSelector"]
    assert nodes.pop("baidu.com/vcuda") == "true"
    assert daemonset == deployment
    assert workload("bie-deployment")["spec"]["replicas"] == 1


def test_a_component_that_changes_nothing_is_refused() -> None:
    """It was meant for something else."""
    with pytest.raises(ManifestError, match="changes nothing in kubeadm"):
        load("kubeadm", components=["exporter-evict"])


def test_of_a_components_patches_those_count_that_meet_something(
    tmp_path: Path,
) -> None:
    """So one component is for several overlays, as in kustomize."""
    _write(tmp_path / "top", a=CONFIG_MAP, kustomization=f"{KUSTOMIZATION}{A}")
    patches = [
        {"path": "p.yaml", "target": {"kind": kind, "name": "a"}}
        for kind in ("Secret", "ConfigMap")
    ]
    listed = yaml.safe_dump({"patches": patches})
    steps = "[{op: add, path: /data, value: {b: c}}]"
    _write(tmp_path / "part", p=steps, kustomization=f"{COMPONENT}{listed}")
    (found,) = assemble(tmp_path, "top", components=["part"])
    assert found["data"] == {"b": "c"}


A = "resources: [a.yaml]\n"


def _write(folder: Path, **files: Any) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
