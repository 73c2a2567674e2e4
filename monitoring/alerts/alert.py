"""Alerts, groups of them, and expressions that several alerts share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.

    ``summary`` and ``cure`` are Prometheus templates: what is wrong, in one line, and
    what to do. ``hold`` is how long the expression must be true.
    """

    name: str
    expr: str
    severity: Severity
    summary: str
    cure: str
    hold: str = "0s"
    labels: Mapping[str, str] = field(default_factory=dict)

    def rule(self) -> dict[str, object]:
        """Return the rule in the form of Prometheus' rules files."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {"summary": self.summary, "description": self.cure},
        }


def down(*names: str) -> str:
    """Return an expression for pods of these names that do not answer Prometheus.

    They are found by the job that the operator sets, or by the pods' labels, if
    annotations select what is scraped.
    """
    one_of = "|".join(names)
    return named_node(
        f'up{{job=~"{one_of}"}} == 0\nor up{{app_kubernetes_io_name=~"{one_of}"}} == 0'
    )


def named_node(expr: str) -> str:
    """Add NodeName from the scrape, for pages that do not have it themselves."""
    inner = "\n".join(f"  {line}" for line in expr.splitlines())
    return f'label_replace(\n{inner},\n  "NodeName", "$1", "node", "(.+)"\n)'


@dataclass(frozen=True, slots=True)
class Group:
    """Alerts on one subject; ``what`` is the heading in the document."""

    name: str
    what: str
    alerts: tuple[Alert, ...]

    def rules(self) -> dict[str, object]:
        """Return the group in the form of Prometheus' rules files."""
        return {"name": self.name, "rules": [alert.rule() for alert in self.alerts]}
