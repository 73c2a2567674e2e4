"""A webhook without a network: what the API server would ask, and what it hears."""

import base64
from copy import deepcopy
from typing import Any

import orjson
from prometheus_client import CollectorRegistry
from werkzeug.test import Client

from gpushare.kube.cluster import Json
from gpushare.kube.reflector import Readiness
from gpushare.server.public import MetricsPage
from tests.builders import pod_json
from tests.gpushare.server.asgi_client import as_wsgi
from webhook.app import ReviewMetrics, WebhookParts, create_webhook_app
from webhook.pool import UNKNOWN, CardPool
from webhook.rules.review import PodVerdict, ReviewSettings, review_pod


def webhook(
    rules: ReviewSettings | None = None, pool: CardPool = UNKNOWN
) -> tuple[Client, CollectorRegistry]:
    """The application by its test client, and its metrics."""
    registry = CollectorRegistry()
    metrics, page = ReviewMetrics(registry), MetricsPage(registry)
    ready = Readiness((), 60)
    parts = WebhookParts(rules or ReviewSettings(), lambda: pool, ready, metrics, page)
    return Client(as_wsgi(create_webhook_app(parts))), registry


def asked(pod: Any, *, uid: str = "u-1", **request: Any) -> Json:
    """An AdmissionReview as an API server writes it, about a new pod."""
    usual = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "somebody"},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": usual | request,
    }


def answered(client: Client, body: Json, path: str = "/mutate") -> Json:
    """POST a review and give its response, whose envelope is in order."""
    got = client.post(path, json=body)
    assert got.status_code == 200, got.data
    assert got.content_type == "application/json"
    answer: Json = got.json or {}
    response: Json = answer.pop("response")
    assert answer == {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    assert response["uid"] == body["request"]["uid"]
    return response


def steps_of(response: Json) -> list[Json]:
    """Give the patch of a response; none where it has none."""
    assert ("patch" in response) is (response.get("patchType") == "JSONPatch")
    if "patch" not in response:
        return []
    found: list[Json] = orjson.loads(base64.b64decode(response["patch"]))
    assert found
    return found


def count(registry: CollectorRegistry, path: str, result: str) -> float | None:
    """How many reviews of this path came to that."""
    labels = {"path": path, "result": result}
    return registry.get_sample_value("vcuda_webhook_reviews_total", labels)


def judged(
    pod: Json,
    rules: ReviewSettings | None = None,
    *,
    mutating: bool = True,
    **more: Any,
) -> PodVerdict:
    """Review it, and see that what arrived is as it was."""
    kept = deepcopy(pod)
    usual: Json = {"namespace": "default", "mode": "", "pool": UNKNOWN, "user": "me"}
    how = usual | more | {"rules": rules or ReviewSettings(), "mutating": mutating}
    verdict = review_pod(pod, **how)
    assert pod == kept
    return verdict


def every_container(pod: Json) -> list[Json]:
    """Its init containers and its containers."""
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def for_bitfusion(**asked: str) -> Json:
    """A pod as seed 004 has it, which asks for a part of one card."""
    pod = pod_json(annotations={"auto-management/bitfusion": "all"})
    asks = {"amount": "1"} | asked
    limits = {f"bitfusion.io/gpu-{name}": value for name, value in asks.items()}
    main = pod["spec"]["containers"][0]
    main |= {"command": ["python a.py"], "resources": {"limits": limits}}
    return pod
