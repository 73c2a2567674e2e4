"""``custom.metrics.k8s.io/v1beta1`` over rules of prometheus-adapter.

The paths are those of its library (custom-metrics-apiserver): an object, all objects
that a selector finds (``*``), and a namespace itself under the word ``metrics``.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

from tests.monitoring.adapter import Adapter, Metric, quantity
from tests.monitoring.pages import Answer
from tests.testbed.rest import Json

GROUP = "custom.metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"
ROOT = f"/apis/{VERSION}"
KINDS = {"pods": "Pod", "nodes": "Node", "namespaces": "Namespace"}
EVERY = "*"

Names = Callable[[str, str, str], list[str] | None]
"""Resource, namespace and label selector → the objects' names.

None where the adapter's account may not list them.
"""


class MetricsApi:
    """Answers what the HPA controller and ``kubectl get --raw`` ask."""

    def __init__(self, adapter: Adapter, names: Names) -> None:
        self._adapter = adapter
        self._names = names
        self.asked: list[str] = []

    def answer(self, path: str) -> Answer:
        """Answer one GET."""
        self.asked.append(path)
        url = urlsplit(path)
        if url.path.rstrip("/") == ROOT:
            return _said(HTTPStatus.OK, self.resources())
        if not url.path.startswith(f"{ROOT}/"):
            return _said(HTTPStatus.NOT_FOUND, _status(f"nothing at {url.path}"))
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        parts = [unquote(part) for part in url.path.removeprefix(f"{ROOT}/").split("/")]
        return self._values(parts, selector)

    def resources(self) -> Json:
        """Give the list that discovery reads."""
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": VERSION,
            "resources": self._adapter.listed(),
        }

    def _values(self, parts: list[str], selector: str) -> Answer:
        match parts:
            case ["namespaces", name, "metrics", metric]:
                asked, space = Metric("namespaces", metric, namespaced=False), ""
            case ["namespaces", space, resource, name, metric]:
                asked = Metric(resource, metric, namespaced=True)
            case [resource, name, metric]:
                asked, space = Metric(resource, metric, namespaced=False), ""
            case _:
                words = f"nothing at {'/'.join(parts)}"
                return _said(HTTPStatus.NOT_FOUND, _status(words))
        every = name == EVERY
        names = self._names(asked.resource, space, selector) if every else [name]
        if names is None:
            words = f"unable to list matching resources: {asked.resource} is forbidden"
            return _said(HTTPStatus.INTERNAL_SERVER_ERROR, _status(words))
        words = f"the server could not find the metric {asked.name}"
        try:
            values = self._adapter.values(asked, space, *names) if names else None
        except KeyError:
            values = None
        if values is None:
            # Not listed; or nothing to ask for, which the adapter takes for the same.
            return _said(HTTPStatus.NOT_FOUND, _status(f"{words} for {asked.resource}"))
        if not values and not every:
            return _said(
                HTTPStatus.NOT_FOUND, _status(f"{words} for {asked.resource} {name}")
            )
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


def _status(words: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": words,
        "reason": "NotFound",
        "code": int(HTTPStatus.NOT_FOUND),
    }


def _said(status: HTTPStatus, body: Json) -> Answer:
    return Answer(int(status), "application/json", json.dumps(body).encode())
