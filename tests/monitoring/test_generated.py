"""What is written of Python data is committed as it would be written now."""

from functools import cache
from pathlib import Path

import yaml

from gpusharectl.installer.manifests import load_manifests
from monitoring.boards import BOARDS
from monitoring.writing import ROOT, render_files, write_files
from tests.testbed.manifests import FOLDER, documents
from tests.testbed.rest import Json

MONITORING = FOLDER / "monitoring"
NAME = "app.kubernetes.io/name"
MOST_ANNOTATION = 256 * 1024
"""Bytes of all annotations of an object; kubectl keeps the whole object in one."""

texts = cache(render_files)


def test_generated_is_committed() -> None:
    """Else ``python -m monitoring`` was forgotten; no template is left in a text."""
    for path, text in texts().items():
        assert (ROOT / path).read_text() == text, path
    assert "{{" not in texts()["docs/alerts.md"]


def test_writing_changes_what_differs_and_nothing_else(tmp_path: Path) -> None:
    """A second time there is nothing to write."""
    assert set(write_files(tmp_path)) == set(texts())
    assert write_files(tmp_path) == []
    spoilt = tmp_path / "docs" / "alerts.md"
    spoilt.write_text("no more")
    assert write_files(tmp_path) == ["docs/alerts.md"]


def test_the_config_map_has_every_board() -> None:
    """As the file for importing by hand has it; Grafana's sidecar finds it."""
    (found,) = documents("monitoring/dashboards.yaml")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {f"gpushare-{one.name}.json": one.json() for one in BOARDS}
    folder = MONITORING / "dashboards"
    for one in BOARDS:
        said = found["data"][f"gpushare-{one.name}.json"]
        file = folder / f"{one.name}.json"
        assert yaml.safe_load(said) == yaml.safe_load(file.read_text())
    assert {path.stem for path in folder.iterdir()} == {one.name for one in BOARDS}
    assert len({yaml.safe_load(text)["uid"] for text in found["data"].values()}) == 4
    # kubectl writes the object once more, into an annotation of it.
    assert len(str(found).encode()) < MOST_ANNOTATION / 2


def monitored() -> tuple[Json, Json, Json]:
    """The exporter's Service, its ServiceMonitor and the others' PodMonitor."""
    found = {one["kind"]: one for one in load_manifests("monitoring")}
    return found["Service"], found["ServiceMonitor"], found["PodMonitor"]


def test_the_operator_finds_the_exporter() -> None:
    """By its Service, on a port of that name; the alerts know it by this job.

    Every scrape says its node: alerts on a pod that is down have its name from there.
    """
    service, monitor, pods = monitored()
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {one["name"] for one in service["spec"]["ports"]}
    endpoints = monitor["spec"]["endpoints"]
    assert {one["port"] for one in endpoints} <= ports
    assert labels[monitor["spec"]["jobLabel"]] == "gpushare-exporter"
    wanted = {
        "sourceLabels": ["__meta_kubernetes_pod_node_name"],
        "targetLabel": "node",
    }
    for one in (*endpoints, *pods["spec"]["podMetricsEndpoints"]):
        assert wanted in one.get("relabelings", ()), one


def test_the_operator_finds_the_others() -> None:
    """Each pod by its name, and exactly one of the ports is one of its own."""
    _, _, monitor = monitored()
    (names,) = monitor["spec"]["selector"]["matchExpressions"]
    asked = [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]]
    seen = set()
    for overlay in ("kubeadm", "second-scheduler", "webhook"):
        for body in load_manifests(overlay):
            if body["kind"] not in ("DaemonSet", "Deployment"):
                continue
            template = body["spec"]["template"]
            assert template["metadata"]["labels"][NAME] in names["values"]
            seen.add(template["metadata"]["labels"][NAME])
            ports = [
                port["name"]
                for container in template["spec"]["containers"]
                for port in container.get("ports", ())
            ]
            assert len([one for one in asked if one in ports]) == 1, ports
    assert seen == set(names["values"])
