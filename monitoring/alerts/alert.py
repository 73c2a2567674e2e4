"""What an alert is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.

    ``summary`` and ``cure`` are Prometheus' templates: what is wrong, in one line, and
    what the reader of it should do. ``hold`` is how long it has to be so.
    """

    name: str
    expr: str
    severity: Severity
    summary: str
    cure: str
    hold: str = "0s"
    labels: Mapping[str, str] = field(default_factory=dict)

    def rule(self) -> dict[str, object]:
        """Give it as Prometheus' rules files have it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {"summary": self.summary, "description": self.cure},
        }


def down(*names: str) -> str:
    """Tell which pods of these names Prometheus gets no answer from.

    By the job that the operator gives them, or by the pods' labels, where annotations
    say what to scrape.
    """
    one_of = "|".join(names)
    return named_node(
        f'up{{job=~"{one_of}"}} == 0\nor up{{app_kubernetes_io_name=~"{one_of}"}} == 0'
    )


def named_node(expr: str) -> str:
    """Add NodeName where the scrape knows it: pages of our own without it."""
    inner = "\n".join(f"  {line}" for line in expr.splitlines())
    return f'label_replace(\n{inner},\n  "NodeName", "$1", "node", "(.+)"\n)'


@dataclass(frozen=True, slots=True)
class Group:
    """Alerts that are looked at together; ``what`` heads them in the document."""

    name: str
    what: str
    alerts: tuple[Alert, ...]

    def rules(self) -> dict[str, object]:
        """Give it as Prometheus' rules files have it."""
        return {"name": self.name, "rules": [one.rule() for one in self.alerts]}
