"""Prometheus Operator's kinds, as far as an API server needs them to keep objects."""

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from tests.testbed.waiting import wait_until

VERSION = "monitoring.coreos.com/v1"
KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


def serve_operators_kinds(objects: Objects) -> None:
    """Let an API server know them; nobody acts on their objects."""
    for kind in KINDS:
        objects.apply(_definition(kind))
        wait_until(lambda kind=kind: objects.serves(VERSION, kind), kind, 30)


def forget_operators_kinds(objects: Objects) -> None:
    """Take them out again, and what is left of them."""
    for kind in KINDS:
        objects.delete(Ref.of(_definition(kind)))


def _definition(kind: str) -> Json:
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{**version, "schema": {"openAPIV3Schema": anything}}],
        },
    }
