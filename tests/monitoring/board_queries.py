"""What dashboards ask Prometheus, read from the JSON that we ship."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from tests.testbed.manifests import FOLDER

BOARDS = FOLDER / "monitoring" / "dashboards"
NAMES = ("cluster", "node", "card", "pod")
INTERVAL = "$__rate_interval"
VARIABLE = re.compile(r"\$(\w+)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")
VALUES = re.compile(r"label_values\((?P<of>.+), (?P<label>\w+)\)")


@dataclass(frozen=True, slots=True)
class BoardQuery:
    """One query of a panel."""

    board: str
    panel: str
    expr: str
    legend: str

    def __str__(self) -> str:
        return f"{self.board}-{self.panel}-{self.legend or 'value'}".replace(" ", "_")

    @property
    def filled(self) -> str:
        """The query as Grafana sends it once all is chosen at the top."""
        return VARIABLE.sub(".+", self.expr.replace(INTERVAL, "1m"))

    @property
    def labels(self) -> set[str]:
        """The labels that its legend wants."""
        return set(LEGEND.findall(self.legend))


def board(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((BOARDS / f"{name}.json").read_text())
    return body


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def variables(name: str) -> list[dict[str, Any]]:
    bodies: list[dict[str, Any]] = board(name)["templating"]["list"]
    return bodies


def queries() -> list[BoardQuery]:
    return [
        BoardQuery(name, panel["title"], target["expr"], target.get("legendFormat", ""))
        for name in NAMES
        for panel in panels(name)
        for target in panel["targets"]
    ]


def selectors(expr: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of an expression, with the labels that it is chosen by."""
    vectors: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            vectors.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            vectors.append(node.vector_selector)
        return True

    promql_parser.walk(promql_parser.parse(expr), visit)
    for vector in vectors:
        assert vector.name, f"{expr}: a metric without a name"
        yield vector.name, {matcher.name for matcher in vector.matchers.matchers}
