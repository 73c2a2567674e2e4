"""prometheus-adapter's rules, and its API ``custom.metrics.k8s.io/v1beta1``.

After its own sources (0.12, ``pkg/naming`` and ``pkg/custom-provider``): discovery by
``/api/v1/series``, the API's names from the series' names and labels, one query for all
objects asked for. Of its configuration it knows what our rules use. What the real one
answered is on record (``scene``), and this has to answer the same.

The paths are those of its library (custom-metrics-apiserver): an object, all objects
that a selector finds (``*``), and a namespace itself under the word ``metrics``.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.monitoring.pages import PageAnswer
from tests.testbed.prometheus import Prometheus
from tests.testbed.rest import Json

RESOURCES = {"node": "nodes", "namespace": "namespaces", "pod": "pods"}
"""The API's own names for what a rule may call by either."""
KINDS = {"pods": "Pod", "nodes": "Node", "namespaces": "Namespace"}
ROOT_SCOPED = ("namespaces", "nodes")
LOOK_BACK_S = 60.0
FIELD = re.compile(r"<<\s*\.(\w+)\s*>>")
GO_GROUP = re.compile(r"\$\{?(\d+)\}?")
SUFFIXES = ("m", "", "k", "M", "G", "T")
GROUP = "custom.metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"
ROOT = f"/apis/{VERSION}"
EVERY = "*"

Names = Callable[[str, str, str], list[str] | None]
"""Resource, namespace and label selector → the objects' names.

None where the adapter's account may not list them.
"""


@dataclass(frozen=True)
class Rule:
    """One discovery rule; ``labels`` names the label of each resource."""

    series_query: str
    labels: Mapping[str, str]
    metrics_query: str
    matches: str
    renamed: str

    @classmethod
    def of(cls, body: Json) -> "Rule":
        overrides = body["resources"]["overrides"].items()
        kinds = ((told["resource"], label) for label, told in overrides)
        labels = {RESOURCES.get(kind, kind): label for kind, label in kinds}
        name = {"matches": ".*", "as": "$0", **body.get("name", {})}
        queries = body["seriesQuery"], labels, body["metricsQuery"]
        return cls(*queries, name["matches"], name["as"])

    def resources(self, series: Mapping[str, str]) -> list[str]:
        """Say which resources a series is about: by the labels that it has."""
        return [kind for kind, label in self.labels.items() if label in series]

    def named(self, series: str) -> str | None:
        """Give the API's name for a series; None where the rule leaves it out."""
        match = re.search(self.matches, series)
        return match and match.expand(GO_GROUP.sub(r"\\g<\1>", self.renamed))

    def query(
        self, series: str, resource: str, namespace: str, names: Sequence[str]
    ) -> str:
        """Render the query for some objects; ``namespace`` is empty for none."""
        label, operator = self.labels[resource], "=" if len(names) == 1 else "=~"
        matchers = [f'{label}{operator}"{"|".join(names)}"']
        if namespace:
            matchers.insert(0, f'{self.labels["namespaces"]}="{namespace}"')
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
        rules = {}
        for rule in self.rules:
            for series in self.prometheus.series(rule.series_query, start=since):
                name = rule.named(series["__name__"])
                kinds = rule.resources(series)
                for kind in kinds if name else ():
                    namespaced = "namespaces" in kinds and kind not in ROOT_SCOPED
                    metric = Metric(kind, str(name), namespaced)
                    rules[metric] = series["__name__"], rule
        return rules

    def values(self, metric: Metric, namespace: str, *names: str) -> dict[str, float]:
        """Ask for objects by name; those of which nothing is known are not there.

        KeyError for a metric that is not listed.
        """
        series, rule = self.discovered()[metric]
        query = rule.query(series, metric.resource, namespace, names)
        label = rule.labels[metric.resource]
        samples = self.prometheus.query(query)
        by_name = {sample.labels.get(label, ""): sample.value for sample in samples}
        return {name: by_name[name] for name in names if name in by_name}


def rules_of(path: Path) -> list[Rule]:
    """Read the custom rules out of values for the adapter's chart."""
    return [
        Rule.of(body) for body in yaml.safe_load(path.read_text())["rules"]["custom"]
    ]


def quantity(value: float) -> str:
    """Give a number as the API does: in thousandths at most, ``500m`` for a half."""
    thousandths = 0 if math.isnan(value) else int(value * 1000)
    power = 0
    while thousandths and thousandths % 1000 == 0 and power < len(SUFFIXES) - 1:
        thousandths //= 1000
        power += 1
    return f"{thousandths}{SUFFIXES[power]}" if thousandths else "0"


class MetricsApi:
    """Answers what the HPA controller and ``kubectl get --raw`` ask."""

    def __init__(self, adapter: Adapter, names: Names) -> None:
        self._adapter = adapter
        self._names = names
        self.asked: list[str] = []

    def answer(self, path: str) -> PageAnswer:
        """Answer one GET."""
        self.asked.append(path)
        url = urlsplit(path)
        if url.path.rstrip("/") == ROOT:
            return _said(HTTPStatus.OK, self._listed())
        if not url.path.startswith(f"{ROOT}/"):
            return _refused(f"nothing at {url.path}")
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        parts = [unquote(part) for part in url.path.removeprefix(f"{ROOT}/").split("/")]
        return self._values(parts, selector)

    def _listed(self) -> Json:
        """Give the list that discovery reads, in alphabetical order."""
        resources = [
            {
                "name": f"{metric.resource}/{metric.name}",
                "singularName": "",
                "namespaced": metric.namespaced,
                "kind": "MetricValueList",
                "verbs": ["get"],
            }
            for metric in sorted(self._adapter.discovered())
        ]
        kind = {"kind": "APIResourceList", "apiVersion": "v1"}
        return {**kind, "groupVersion": VERSION, "resources": resources}

    def _values(self, parts: list[str], selector: str) -> PageAnswer:
        space = ""
        match parts:
            case ["namespaces", name, "metrics", metric]:
                asked = Metric("namespaces", metric, namespaced=False)
            case ["namespaces", space, resource, name, metric]:
                asked = Metric(resource, metric, namespaced=True)
            case [resource, name, metric]:
                asked = Metric(resource, metric, namespaced=False)
            case _:
                return _refused(f"nothing at {'/'.join(parts)}")
        every = name == EVERY
        names = self._names(asked.resource, space, selector) if every else [name]
        if names is None:
            words = f"unable to list matching resources: {asked.resource} is forbidden"
            return _refused(words, HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            values = self._adapter.values(asked, space, *names) if names else {}
        except KeyError:
            values = {}
        if not values and not (every and names and asked in self._adapter.discovered()):
            # Not listed; or nothing to ask for, which the adapter takes for the same.
            return _refused(f"the server could not find the metric {asked}")
        items = [_item(asked, space, name, value) for name, value in values.items()]
        body = {"kind": "MetricValueList", "apiVersion": VERSION, "metadata": {}}
        return _said(HTTPStatus.OK, {**body, "items": items})


def _item(metric: Metric, namespace: str, name: str, value: float) -> Json:
    described = {"kind": KINDS[metric.resource], "name": name, "apiVersion": "/v1"}
    if namespace:
        described["namespace"] = namespace
    return {
        "describedObject": described,
        "metricName": metric.name,
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": quantity(value),
        "selector": None,
    }


def _refused(words: str, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> PageAnswer:
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    why = {"message": words, "reason": "NotFound", "code": int(HTTPStatus.NOT_FOUND)}
    return _said(status, kind | why)


def _said(status: HTTPStatus, body: Json) -> PageAnswer:
    return PageAnswer(int(status), "application/json", json.dumps(body).encode())
