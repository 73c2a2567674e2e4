"""The kinds of panels of our dashboards.

A panel without data stays empty, because a 0 would be wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
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
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
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

_HEIGHT = 8
_SMALL = 4
_NONE = "-"

Panel = bargauge.Panel | stat.Panel | table.Panel | timeseries.Panel


@dataclass(frozen=True, slots=True)
class Query:
    """One expression; ``legend`` in Grafana's form: ``card {{gpu}}``."""

    expr: str
    legend: str = ""


def number(
    title: str,
    expr: str,
    what: str,
    unit: str = PLAIN,
    *,
    bad_from: float | None = None,
) -> stat.Panel:
    """Return a panel with one current number; red from ``bad_from`` on."""
    shown = (
        stat.Panel()
        .title(title)
        .description(what)
        .datasource(SOURCE)
        .unit(unit)
        .height(_SMALL)
        .span(3)
        .no_value(_NONE)
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(bad_from))
    )
    return shown.with_target(_target(Query(expr), 0).instant())


def lines(
    title: str,
    queries: Sequence[Query],
    what: str,
    unit: str = PLAIN,
    *,
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
    shown = (
        timeseries.Panel()
        .title(title)
        .description(what)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(_HEIGHT)
        .span(span)
        .fill_opacity(8)
        .legend(legend)
        .tooltip(tooltip)
    )
    if top is not None:
        shown.max(top)
    for index, query in enumerate(queries):
        shown.with_target(_target(query, index).range())
    return shown


def bars(
    title: str,
    queries: Sequence[Query],
    what: str,
    unit: str = PLAIN,
    *,
    span: int = HALF,
) -> bargauge.Panel:
    """Return a panel with one bar for each series, for the current value."""
    shown = (
        bargauge.Panel()
        .title(title)
        .description(what)
        .datasource(SOURCE)
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
        shown.with_target(_target(query, index).instant())
    return shown


def rows_of(
    title: str, columns: Sequence[Query], what: str, *, keys: Sequence[str]
) -> table.Panel:
    """Return a table: a row for each set of ``keys``, a column for each query.

    ``keys`` are the labels that the queries keep; a column is named by its legend.
    """
    shown = (
        table.Panel()
        .title(title)
        .description(what)
        .datasource(SOURCE)
        .height(_HEIGHT)
        .span(WHOLE)
        .no_value(_NONE)
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(_columns(columns, keys))
    )
    for index, query in enumerate(columns):
        target = _target(Query(query.expr), index).instant()
        shown.with_target(target.format(PromQueryFormat.TABLE))
    return shown


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
