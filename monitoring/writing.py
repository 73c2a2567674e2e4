"""The generated files, docs/alerts.md included, by their paths in the repository."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from monitoring.alerts import GROUPS
from monitoring.alerts.alert import Alert, Group
from monitoring.boards import BOARDS

_ALERTS_HEAD = """\
# Alerts
`python -m monitoring` writes this page from the data of the rules: change it there.

The rules are in `manifests/monitoring/`: `prometheusrule.yaml` for the Prometheus
operator, `alerts.yaml` for the `rule_files` of a plain Prometheus. `alertmanager.yaml`
is an example that sends alerts to Discord by severity. An alert does not fire if its
metric is absent, as with a list of metrics that leaves the field out.

In the texts below ⟨…⟩ stands for a label. The alerts also name MIG instances and UUIDs.
Of the expressions only short ones with a limit stand here; all are in `alerts.yaml`.
"""
_LIMIT = re.compile(r"^.*[<>] (?!0$|1$)[\d.]+$")
"""An expression of one line that compares with a number, and not with 0 or 1."""
_SHORT_EXPRESSION = 100
"""Characters."""


def describe_alerts(groups: Iterable[Group]) -> str:
    """Return the whole page."""
    return _ALERTS_HEAD + "".join(_section(group) for group in groups)


def _section(group: Group) -> str:
    return f"\n## {group.what}\n" + "\n".join(map(_entry, group.alerts))


def _entry(alert: Alert) -> str:
    delay = "at once" if alert.hold == "0s" else f"after {alert.hold}"
    labels = "".join(f", {key}={value}" for key, value in alert.labels.items())
    return (
        f"### {alert.name}\n"
        f"{alert.severity}{labels}, {delay}: *{_plain(alert.summary)}*\n"
        f"{_expression(alert.expr)}"
        f"{_plain(alert.cure)}\n"
    )


def _expression(expr: str) -> str:
    """Return a short expression with a limit as code; else a break."""
    has_limit = len(expr) <= _SHORT_EXPRESSION and _LIMIT.search(expr)
    return f"```\n{expr}\n```\n" if has_limit else "\n"


def _plain(text: str) -> str:
    """Replace the template of a label by the label's name, without where a card is."""
    text = re.sub(r"\{\{ range .*\{\{ end \}\}", "⟨names of the pods⟩", text)
    text = re.sub(r"\{\{ with \$labels\.\w+.*?\{\{ end \}\}", "", text)
    text = re.sub(r"\{\{ or \$labels\.(\w+) \$labels\.(\w+) \}\}", r"⟨\1 or \2⟩", text)
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"⟨\1⟩", text)
    text = re.sub(r"\{\{ \$value.*?\}\}", "⟨value⟩", text)
    return re.sub(r" ?(The card|Its UUID|The UUID) is ⟨[^.]*\.", "", text).strip()


ROOT = Path(__file__).parents[1]
_FOLDER = "manifests/monitoring"
_HEAD = "# Written by `python -m monitoring`: change it there.\n"
_LABELS = {
    "app.kubernetes.io/part-of": "gpushare",
    "app.kubernetes.io/name": "gpushare-monitoring",
}


def render_files() -> Mapping[str, str]:
    """Return the text of every generated file."""
    files = {
        f"{_FOLDER}/dashboards/{board.name}.json": board.json(indent=1)
        for board in BOARDS
    }
    groups = {"groups": [group.rules() for group in GROUPS]}
    return {
        **files,
        f"{_FOLDER}/dashboards.yaml": _text(_dashboards()),
        f"{_FOLDER}/alerts.yaml": _text(
            groups,
            "For rule_files of Prometheus; prometheusrule.yaml is for the operator.",
        ),
        f"{_FOLDER}/prometheusrule.yaml": _text(_rule(groups)),
        "docs/alerts.md": describe_alerts(GROUPS),
    }


def write_files(root: Path = ROOT) -> list[str]:
    """Write the files that differ; return their paths."""
    changed = []
    for name, text in render_files().items():
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


def _text(body: Mapping[str, Any], words: str = "") -> str:
    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: object) -> bool:
            return True

    Dumper.add_representer(str, _lines_as_such)
    comment = f"# {words}\n" if words else ""
    dumped = yaml.dump(body, Dumper=Dumper, sort_keys=False, width=10_000)
    return f"{_HEAD}{comment}{dumped}"


def _lines_as_such(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
