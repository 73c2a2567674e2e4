"""A dashboard as data, the kinds of its panels, and its JSON for Grafana.

A panel without data stays empty, because a 0 would be wrong.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

MIB = "mbytes"
BYTES = "bytes"
PERCENT = "percent"
RATIO = "percentunit"
SECONDS = "s"
PLAIN = "short"
HALF = 12
THIRD = 8
WHOLE = 24
SOURCE = DataSourceRef("prometheus", "${datasource}")

_TAG = "gpushare"
_HEIGHT = 8
_SMALL = 4
_NONE = "-"

Panel = bargauge.Panel | stat.Panel | table.Panel | timeseries.Panel
Kind = TypeVar("Kind", bargauge.Panel, stat.Panel, table.Panel, timeseries.Panel)


@dataclass(frozen=True, slots=True)
class Query:
    """One expression; ``legend`` in Grafana's form: ``card {{gpu}}``."""

    expr: str
    legend: str = ""


def number(
    title: str,
    what: str,
    expr: str,
    *,
    unit: str = PLAIN,
    bad_from: float | None = None,
) -> stat.Panel:
    """Return a panel with one current number; red from ``bad_from`` on."""
    panel = (
        _describe(stat.Panel(), title, what)
        .unit(unit)
        .height(_SMALL)
        .span(3)
        .no_value(_NONE)
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(bad_from))
    )
    return panel.with_target(_target(Query(expr), 0).instant())


def lines(
    title: str,
    what: str,
    *queries: Query,
    unit: str = PLAIN,
    span: int = HALF,
    top: float | None = None,
) -> timeseries.Panel:
    """Return a panel with lines over time; ``top`` is the end of the axis."""
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
        .calcs(["lastNotNull", "max"])
    )
    tooltip = (
        common.VizTooltipOptions()
        .mode(TooltipDisplayMode.MULTI)
        .sort(SortOrder.DESCENDING)
    )
    panel = (
        _describe(timeseries.Panel(), title, what)
        .unit(unit)
        .min(0)
        .height(_HEIGHT)
        .span(span)
        .fill_opacity(8)
        .legend(legend)
        .tooltip(tooltip)
    )
    if top is not None:
        panel.max(top)
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index).range())
    return panel


def bars(
    title: str, what: str, *queries: Query, unit: str = PLAIN, span: int = HALF
) -> bargauge.Panel:
    """Return a panel with one bar for each series, for the current value."""
    panel = (
        _describe(bargauge.Panel(), title, what)
        .unit(unit)
        .min(0)
        .height(_HEIGHT)
        .span(span)
        .no_value(_NONE)
        .display_mode(BarGaugeDisplayMode.BASIC)
        .orientation(VizOrientation.HORIZONTAL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index).instant())
    return panel


def rows_of(title: str, what: str, *columns: Query, keys: Sequence[str]) -> table.Panel:
    """Return a table: a row for each set of ``keys``, a column for each query.

    ``keys`` are the labels that the queries keep; a column is named by its legend.
    """
    panel = (
        _describe(table.Panel(), title, what)
        .height(_HEIGHT)
        .span(WHOLE)
        .no_value(_NONE)
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(_columns(columns, keys))
    )
    for index, query in enumerate(columns):
        target = _target(Query(query.expr), index).instant()
        panel.with_target(target.format(PromQueryFormat.TABLE))
    return panel


def _describe(panel: Kind, title: str, what: str) -> Kind:
    return panel.title(title).description(what).datasource(SOURCE)


def _columns(columns: Sequence[Query], keys: Sequence[str]) -> DataTransformerConfig:
    names = {f"Value #{_letter(i)}": column.legend for i, column in enumerate(columns)}
    places = {name: place for place, name in enumerate([*keys, *names])}
    return DataTransformerConfig(
        id_val="organize",
        options={
            "excludeByName": {"Time": True},
            "indexByName": places,
            "renameByName": names,
        },
    )


def _target(query: Query, index: int) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(_letter(index))
    target.datasource(SOURCE)
    return target.legend_format(query.legend) if query.legend else target


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _thresholds(bad_from: float | None) -> dashboard.ThresholdsConfig:
    steps = [Threshold(color="text")]
    if bad_from is not None:
        steps.append(Threshold(value=bad_from, color="red"))
    return dashboard.ThresholdsConfig().steps(steps)


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
class Board:
    """One dashboard; ``name`` is its file name and part of its address in Grafana.

    ``sections`` are the panels under each heading.
    """

    name: str
    title: str
    what: str
    choices: tuple[Choice, ...]
    sections: Mapping[str, tuple[Panel, ...]]

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
            .tags([_TAG])
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
        for heading, panels in self.sections.items():
            made.with_row(dashboard.Row(heading))
            for panel in panels:
                made.with_panel(panel)
        return made


def _others() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("GPU sharing")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([_TAG])
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
