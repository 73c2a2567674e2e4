"""docs/alerts.md: what each alert means, and what to do."""

import re
from collections.abc import Iterable

from monitoring.alerts.alert import Alert, Group

_HEAD = """\
# Alerts
Written by `python -m monitoring` of the same data as the rules: change it there.

They are in `manifests/monitoring/`: `prometheusrule.yaml` for the Prometheus operator,
`alerts.yaml` for the `rule_files` of a plain Prometheus. `alertmanager.yaml` beside
them sends them to Discord, by severity; its head says how. An alert is silent where the
metric that it asks for is not there: unknown is never 0, and no reason to wake anybody.
So a fields file that lists few metrics silences the alerts on all others. Who does not
answer at all has alerts of its own: exporter, extender and device plugin each have one
for a pod that is down and one for none that answers. Of NVIDIA's dcgm-exporter beside
ours nothing is counted: what has no `NodeName` is not ours.

In the words below ⟨…⟩ stands for a label.
"""


def document(groups: Iterable[Group]) -> str:
    """Give the whole page."""
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
    """Put a name where Prometheus puts a label's value."""
    text = re.sub(r"\{\{ range .*\{\{ end \}\}", "⟨their names⟩", text)
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"⟨\1⟩", text)
    return re.sub(r"\{\{ \$value.*?\}\}", "⟨value⟩", text)
