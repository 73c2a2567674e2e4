"""A dashboard as data, and its JSON for Grafana."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableRefresh,
    VariableSort,
)

from monitoring.panels import SOURCE, Panel

TAG = "gpushare"


@dataclass(frozen=True, slots=True)
class Choice:
    """A list at the top: the values of a label in the series ``of``.

    With ``several``, more than one or all values can be selected.
    """

    name: str
    title: str
    label: str
    of: str
    several: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and the panels under it."""

    title: str
    panels: Callable[[], tuple[Panel, ...]]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard; ``name`` is its file name and part of its address in Grafana."""

    name: str
    title: str
    what: str
    choices: tuple[Choice, ...]
    sections: tuple[Section, ...]

    def json(self, *, indent: int | None = None) -> str:
        """Return the JSON that Grafana imports, always in the same order."""
        built = self._built().build()
        for number, panel in enumerate(built.panels or (), 1):
            panel.id_val = number
        text = json.dumps(built, cls=JSONEncoder, sort_keys=True, indent=indent)
        return f"{text}\n"

    def _built(self) -> dashboard.Dashboard:
        made = (
            dashboard.Dashboard(self.title)
            .uid(f"gpushare-{self.name}")
            .description(self.what)
            .tags([TAG])
            .editable()
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .refresh("30s")
            .time("now-1h", "now")
            .timezone("browser")
            .link(_others())
            .with_variable(
                dashboard.DatasourceVariable("datasource").type("prometheus")
            )
        )
        for choice in self.choices:
            made.with_variable(_variable(choice))
        for section in self.sections:
            made.with_row(dashboard.Row(section.title))
            for panel in section.panels():
                made.with_panel(panel)
        return made


def _others() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("GPU sharing")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(as_dropdown=True)
        .keep_time(keep_time=True)
    )


def _variable(choice: Choice) -> dashboard.QueryVariable:
    query = f"label_values({choice.of}, {choice.label})"
    variable = (
        dashboard.QueryVariable(choice.name)
        .label(choice.title)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if choice.several:
        variable.multi(multi=True).include_all(include_all=True).all_value(".*")
    return variable
