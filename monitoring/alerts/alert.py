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


@dataclass(frozen=True, slots=True)
class Group:
    """Alerts that are looked at together; ``what`` heads them in the document."""

    name: str
    what: str
    alerts: tuple[Alert, ...]

    def rules(self) -> dict[str, object]:
        """Give it as Prometheus' rules files have it."""
        return {"name": self.name, "rules": [one.rule() for one in self.alerts]}
