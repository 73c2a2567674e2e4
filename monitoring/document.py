"""The text of docs/alerts.md: what each alert means, and what to do."""

import re
from collections.abc import Iterable

from monitoring.alerts.alert import Alert, Group

_HEAD = """\
# Alerts
`python -m monitoring` writes this page from the data of the rules: change it there.

The rules are in `manifests/monitoring/`: `prometheusrule.yaml` for the Prometheus
operator, `alerts.yaml` for the `rule_files` of a plain Prometheus.
`alertmanager.yaml` is an example that sends alerts to Discord by severity; the
comment at its beginning says how. An alert does not fire if its metric is absent: an
unknown value is never 0. So a list of metrics with few fields disables the alerts on
all others. Processes that do not answer have their own alerts: exporter, extender and
device plugin each have one for a pod that is down and one if none answers. Metrics of
NVIDIA's own dcgm-exporter are not used: series without `NodeName` are not ours.

In the texts below ⟨…⟩ stands for a label.
"""


def document(groups: Iterable[Group]) -> str:
    """Return the whole page."""
    return _HEAD + "".join(_section(group) for group in groups)


def _section(group: Group) -> str:
    return f"\n## {group.what}\n" + "\n".join(map(_entry, group.alerts))


def _entry(alert: Alert) -> str:
    held = "at once" if alert.hold == "0s" else f"after {alert.hold}"
    labels = "".join(f", {key}={value}" for key, value in alert.labels.items())
    return (
        f"### {alert.name}\n"
        f"{alert.severity}{labels}, {held}: *{_plain(alert.summary)}*\n"
        f"```\n{alert.expr}\n```\n"
        f"{_plain(alert.cure)}\n"
    )


def _plain(text: str) -> str:
    """Replace the template of a label by the label's name."""
    text = re.sub(r"\{\{ range .*\{\{ end \}\}", "⟨names of the pods⟩", text)
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"⟨\1⟩", text)
    return re.sub(r"\{\{ \$value.*?\}\}", "⟨value⟩", text)
