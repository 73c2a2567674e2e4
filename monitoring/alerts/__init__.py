"""All alerts, by subject. docs/alerts.md is written from them."""

from monitoring.alerts.alert import Alert, Group
from monitoring.alerts.cards import CARDS
from monitoring.alerts.exporter import EXPORTER
from monitoring.alerts.scheduling import SCHEDULING
from monitoring.alerts.shares import SHARES

__all__ = ["GROUPS", "Alert", "Group"]

GROUPS = (CARDS, SHARES, SCHEDULING, EXPORTER)
"""In the order of docs/alerts.md."""
