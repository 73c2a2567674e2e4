"""The generated files, by their paths in the repository."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from monitoring.alerts import GROUPS
from monitoring.boards import BOARDS
from monitoring.document import document

ROOT = Path(__file__).parents[1]
_FOLDER = "manifests/monitoring"
_HEAD = "# Written by `python -m monitoring`: change it there.\n"
_LABELS = {
    "app.kubernetes.io/part-of": "gpushare",
    "app.kubernetes.io/name": "gpushare-monitoring",
}


def rendered() -> Mapping[str, str]:
    """Return the text of every generated file."""
    files = {
        f"{_FOLDER}/dashboards/{board.name}.json": board.json(indent=1)
        for board in BOARDS
    }
    groups = {"groups": [group.rules() for group in GROUPS]}
    return {
        **files,
        f"{_FOLDER}/dashboards.yaml": _object(_dashboards()),
        f"{_FOLDER}/alerts.yaml": _text(
            groups,
            "For rule_files of Prometheus; prometheusrule.yaml is for the operator.",
        ),
        f"{_FOLDER}/prometheusrule.yaml": _object(_rule(groups)),
        "docs/alerts.md": document(GROUPS),
    }


def write(root: Path = ROOT) -> list[str]:
    """Write the files that differ; return their paths."""
    changed = []
    for name, text in rendered().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
            changed.append(name)
    return changed


def _dashboards() -> dict[str, Any]:
    """Return the ConfigMap, with the label that Grafana's sidecar looks for.

    The JSON has no spaces, because kubectl keeps a copy of the object in an annotation,
    and annotations are limited to 256 KiB.
    """
    data = {f"gpushare-{board.name}.json": board.json() for board in BOARDS}
    labels = {**_LABELS, "grafana_dashboard": "1"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _named("gpushare-dashboards", labels),
        "data": data,
    }


def _rule(groups: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _named("gpushare-alerts", _LABELS),
        "spec": groups,
    }


def _named(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "namespace": "kube-system", "labels": dict(labels)}


def _object(body: Mapping[str, Any]) -> str:
    return _text(body, "")


def _text(body: Mapping[str, Any], words: str) -> str:
    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: object) -> bool:
            return True

    Dumper.add_representer(str, _lines_as_such)
    said = f"# {words}\n" if words else ""
    made = yaml.dump(body, Dumper=Dumper, sort_keys=False, width=10_000)
    return f"{_HEAD}{said}{made}"


def _lines_as_such(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
