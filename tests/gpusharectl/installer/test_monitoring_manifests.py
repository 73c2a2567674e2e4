"""What of ours watches cards, and what it may: the exporter, and BIE's collector."""

import pytest

from exporter.telemetry.fields import GROUPS, MEMORY
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.installer.manifests import BIE, OVERLAYS, WORKLOADS, load_manifests
from tests.gpusharectl.installer.test_manifests import NAME, of_kind, pods, shipped
from tests.testbed.manifests import rights

LABEL = "baetyl-service-name"
SERVICE = "baetyl-accelerator-metrics"


def container(overlay: str) -> Json:
    """The one container of an overlay's one workload."""
    ((found,),) = (spec["containers"] for spec in pods(overlay).values())
    return dict(found)


def environment(overlay: str) -> dict[str, str]:
    """What the process finds in its environment on node-1."""
    found = {}
    for one in container(overlay)["env"]:
        if "valueFrom" in one:
            assert one["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
        found[one["name"]] = one.get("value", "node-1")
    return found


def test_monitoring_stands_beside_every_cluster() -> None:
    """No object is in both, so neither undoes the other; the exporter is in it."""
    exporter, whole = shipped("exporter"), shipped("monitoring")
    refs = set(map(Ref.of, whole))
    assert not [one for one in OVERLAYS if refs & set(map(Ref.of, shipped(one)))]
    assert all(body in whole for body in exporter)
    more = {body["kind"] for body in whole if body not in exporter}
    assert more == {"ConfigMap", "ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_the_exporter_is_found() -> None:
    """By its Service and what selects that."""
    (service,) = of_kind("monitoring", "Service")
    (monitor,) = of_kind("monitoring", "ServiceMonitor")
    (daemonset,) = of_kind("exporter", "DaemonSet")
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (own,) = container("exporter")["ports"]
    assert (port["targetPort"], port["port"]) == (own["name"], own["containerPort"])
    assert [one["port"] for one in monitor["spec"]["endpoints"]] == [port["name"]]


def test_every_pod_with_metrics_says_where() -> None:
    """To a Prometheus that finds pods by annotations, and to the PodMonitor."""
    (monitor,) = of_kind("monitoring", "PodMonitor")
    (rule,) = monitor["spec"]["selector"]["matchExpressions"]
    assert (rule["key"], rule["operator"]) == (NAME, "In")
    asked = {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]}
    expected = {
        "gpushare-extender": 39998,
        "gpushare-scheduler": 39998,
        "gpushare-device-plugin": 39997,
        "gpushare-exporter": 9400,
    }
    overlays = ("kubeadm", "second-scheduler", "exporter", "webhook")
    found = {
        body["metadata"]["name"]: body["spec"]["template"]
        for overlay in overlays
        for body in of_kind(overlay, *WORKLOADS)
    }
    assert set(rule["values"]) == set(found) - {"gpushare-exporter"}
    for name, template in found.items():
        ports = [p for one in template["spec"]["containers"] for p in one["ports"]]
        if name != "gpushare-exporter":
            assert {port["name"] for port in ports} & asked
        if name in expected:
            assert expected[name] in [port["containerPort"] for port in ports]
            assert template["metadata"]["annotations"] == {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(expected[name]),
                "prometheus.io/path": "/metrics",
            }


def test_what_the_exporter_may() -> None:
    """Read pods, write events; eviction is a component: a right and a setting more."""
    may = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    assert rights("gpushare-exporter") == may
    (binding,) = of_kind("exporter", "ClusterRoleBinding")
    (subject,) = binding["subjects"]
    assert (
        subject["name"] == pods("exporter")["gpushare-exporter"]["serviceAccountName"]
    )
    assert binding["roleRef"]["name"] == "gpushare-exporter"
    plain, evicting = (
        shipped("exporter"),
        load_manifests("exporter", components=["exporter-evict"]),
    )
    changed = [new for old, new in zip(plain, evicting, strict=True) if old != new]
    role, daemonset = sorted(changed, key=lambda body: body["kind"])
    evict = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
    assert role["rules"] == [*may, evict]
    (one,) = daemonset["spec"]["template"]["spec"]["containers"]
    more = [each for each in one["env"] if each not in container("exporter")["env"]]
    assert more == [{"name": "GPUSHARE_WATCHDOG", "value": "evict"}]


def test_of_the_host_the_exporter_has_processes_and_one_folder() -> None:
    """All of it to read."""
    (spec,) = pods("exporter").values()
    assert "initContainers" not in spec
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert volumes["fields"]["configMap"]["optional"] is True
    mounts = container("exporter")["volumeMounts"]
    assert {one["name"] for one in mounts} == set(volumes)
    assert all(one["readOnly"] is True for one in mounts)
    # Of a file's own mount nobody would see the change.
    assert not any("subPath" in one for one in mounts)


def test_who_holds_containers_to_their_cores_writes_into_their_folders() -> None:
    """Into nothing else, and only with the component."""
    bodies = load_manifests("exporter", components=["exporter-compute"])
    (daemonset,) = (body for body in bodies if body["kind"] == "DaemonSet")
    changed = [
        new for old, new in zip(shipped("exporter"), bodies, strict=True) if old != new
    ]
    assert changed == [daemonset]
    (one,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert one["env"][-1] == {"name": "GPUSHARE_COMPUTE", "value": "share"}
    writable = [mount for mount in one["volumeMounts"] if not mount["readOnly"]]
    assert [mount["mountPath"] for mount in writable] == ["/var/lib/vcuda/containers"]


@pytest.mark.parametrize("overlay", BIE)
def test_bie_finds_it(overlay: str) -> None:
    """One object: its namespace, its label, its port, the name, and memory alone."""
    (body,) = shipped(overlay)
    assert body["kind"].lower() == overlay.removeprefix("bie-")
    assert body["metadata"]["namespace"] == "baetyl-edge-system"
    spec = body["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"][LABEL] == labels[LABEL] == SERVICE
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert [one["containerPort"] for one in container(overlay)["ports"]] == [30060]
    assert environment(overlay)["KUBE_NODE_NAME"] == "node-1"
    on = {group.name for group in GROUPS if group.by_default} - {MEMORY}
    flags = container(overlay)["command"][3:]
    assert sorted(flags) == sorted(f"--disable-{name}" for name in on)


def test_bie_has_one_pod_for_both_kinds() -> None:
    """It is written down twice; a cluster says by a label where cards are."""
    (daemonset,), (deployment,) = (pods(overlay).values() for overlay in BIE)
    nodes = daemonset["nodeSelector"]
    assert nodes == {**deployment["nodeSelector"], "baidu.com/vcuda": "true"}
    assert {**daemonset, "nodeSelector": deployment["nodeSelector"]} == deployment
    assert shipped("bie-deployment")[0]["spec"]["replicas"] == 1
