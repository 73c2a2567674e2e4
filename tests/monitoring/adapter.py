"""What prometheus-adapter makes of its rules: names, queries and values.

After its own sources (0.12, ``pkg/naming`` and ``pkg/custom-provider``): discovery by
``/api/v1/series``, the API's names from the series' names and labels, one query for all
objects asked for. Of its configuration it knows what our rules use. What the real one
answered is on record (``scene``), and this has to answer the same.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.testbed.prometheus import Prometheus
from tests.testbed.rest import Json

RESOURCES = {"node": "nodes", "namespace": "namespaces", "pod": "pods"}
"""The API's own names for what a rule may call by either."""
ROOT_SCOPED = ("namespaces", "nodes")
LOOK_BACK_S = 60.0
FIELD = re.compile(r"<<\s*\.(\w+)\s*>>")
GROUP = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
SUFFIXES = ("m", "", "k", "M", "G", "T")


@dataclass(frozen=True)
class Rule:
    """One discovery rule; ``labels`` names the label of each resource."""

    series_query: str
    labels: Mapping[str, str]
    metrics_query: str
    matches: str = ""
    renamed: str = ""

    @classmethod
    def of(cls, body: Json) -> "Rule":
        overrides = body["resources"]["overrides"]
        labels = {
            RESOURCES.get(told["resource"], told["resource"]): label
            for label, told in overrides.items()
        }
        name = body.get("name", {})
        return cls(
            body["seriesQuery"],
            labels,
            body["metricsQuery"],
            name.get("matches", ""),
            name.get("as", ""),
        )

    def resources(self, series: Mapping[str, str]) -> list[str]:
        """Say which resources a series is about: by the labels that it has."""
        return [kind for kind, label in self.labels.items() if label in series]

    def named(self, series: str) -> str | None:
        """Give the API's name for a series; None where the rule leaves it out."""
        found = re.search(self.matches or ".*", series)
        if found is None:
            return None
        default = "$1" if found.re.groups == 1 else "$0"
        return _expanded(self.renamed or default, found)

    def query(
        self, series: str, resource: str, namespace: str, names: Sequence[str]
    ) -> str:
        """Render the query for some objects; ``namespace`` is empty for none."""
        matchers = []
        if namespace:
            matchers.append(f'{self.labels["namespaces"]}="{namespace}"')
        label = self.labels[resource]
        operator = "=" if len(names) == 1 else "=~"
        matchers.append(f'{label}{operator}"{"|".join(names)}"')
        filled = {
            "Series": series,
            "LabelMatchers": ",".join(matchers),
            "GroupBy": label,
        }
        return FIELD.sub(lambda field: filled[field[1]], self.metrics_query)


@dataclass(frozen=True, order=True)
class Metric:
    """What the API lists: ``pods/NAME`` and the like."""

    resource: str
    name: str
    namespaced: bool


@dataclass(frozen=True)
class Adapter:
    """The rules over a Prometheus."""

    prometheus: Prometheus
    rules: Sequence[Rule]

    def discovered(self) -> dict[Metric, tuple[str, Rule]]:
        """Give each metric with its series and its rule; of two rules, the later."""
        since = time.time() - LOOK_BACK_S
        found = {}
        for rule in self.rules:
            for series in self.prometheus.series(rule.series_query, start=since):
                name = rule.named(series["__name__"])
                kinds = rule.resources(series)
                for kind in kinds if name else ():
                    namespaced = "namespaces" in kinds and kind not in ROOT_SCOPED
                    metric = Metric(kind, str(name), namespaced)
                    found[metric] = series["__name__"], rule
        return found

    def listed(self) -> list[Json]:
        """Give ``resources`` of the API's list, in alphabetical order."""
        return [
            {
                "name": f"{metric.resource}/{metric.name}",
                "singularName": "",
                "namespaced": metric.namespaced,
                "kind": "MetricValueList",
                "verbs": ["get"],
            }
            for metric in sorted(self.discovered())
        ]

    def values(self, metric: Metric, namespace: str, *names: str) -> dict[str, float]:
        """Ask for objects by name; those of which nothing is known are not there.

        KeyError for a metric that is not listed.
        """
        series, rule = self.discovered()[metric]
        query = rule.query(series, metric.resource, namespace, names)
        label = rule.labels[metric.resource]
        found = self.prometheus.query(query)
        by_name = {one.labels.get(label, ""): one.value for one in found}
        return {name: by_name[name] for name in names if name in by_name}


def rules_of(path: Path) -> list[Rule]:
    """Read the custom rules out of values for the adapter's chart."""
    values: Any = yaml.safe_load(path.read_text())
    return [Rule.of(body) for body in values["rules"]["custom"]]


def quantity(value: float) -> str:
    """Give a number as the API does: in thousandths at most, ``500m`` for a half."""
    thousandths = 0 if math.isnan(value) else int(value * 1000)
    power = 0
    while thousandths and thousandths % 1000 == 0 and power < len(SUFFIXES) - 1:
        thousandths //= 1000
        power += 1
    return f"{thousandths}{SUFFIXES[power]}" if thousandths else "0"


def _expanded(template: str, found: re.Match[str]) -> str:
    """As Go's Regexp.Expand: a group that is not there is empty."""

    def group(dollar: re.Match[str]) -> str:
        name: str = dollar[1] or dollar[2]
        known = name.isdigit() and int(name) <= found.re.groups
        return (found[int(name)] or "") if known else ""

    return GROUP.sub(group, template)
