"""The results as tables on a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def list_table(name: str, entry: Mapping[str, Any]) -> Table:
    """Show a list's policies beside the published figures and the limits."""
    table = Table(
        f"{name}: allocated %", "at 100", "at 130", "published", "µs a decision"
    )
    for policy, found in entry["policies"].items():
        told = entry["published"].get(policy)
        table.add_row(
            policy,
            *(_shown(found["mean"][load]) for load in ("100", "130")),
            " / ".join(_shown(share) for share in told.values()) if told else "",
            _shown(found["decision_us"]["mean"]),
        )
    limits = entry["limits"]
    table.add_row("linear program", _shown(limits["bound"]), "", "", "")
    table.add_row("ceiling λ*", _shown(limits["ceiling"]), "", "", "")
    return table


def churn_table(entry: Mapping[str, Any]) -> Table:
    """Show the runs with pods that end."""
    table = Table("pods that end", "load %", "allocated %", "refused % of the demand")
    for policy, loads in entry["policies"].items():
        for load, found in loads.items():
            table.add_row(
                policy, load, _shown(found["share"]), _shown(found["refused"])
            )
    return table


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"
