"""Other operators' kinds, as far as an API server needs them to keep objects."""

from collections.abc import Sequence

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from tests.testbed.waiting import wait_until

VERSION = "monitoring.coreos.com/v1"
KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
CERT_MANAGER = "cert-manager.io/v1"
CERT_MANAGERS_KINDS = ("Issuer", "Certificate")


def serve_operators_kinds(objects: Objects) -> None:
    """Let an API server know Prometheus Operator's; nobody acts on their objects."""
    _serve(objects, VERSION, KINDS)


def forget_operators_kinds(objects: Objects) -> None:
    """Take them out again, and what is left of them."""
    _forget(objects, VERSION, KINDS)


def serve_cert_managers_kinds(objects: Objects) -> None:
    """Let an API server know cert-manager's; nobody acts on their objects."""
    _serve(objects, CERT_MANAGER, CERT_MANAGERS_KINDS)


def forget_cert_managers_kinds(objects: Objects) -> None:
    """Take them out again, and what is left of them."""
    _forget(objects, CERT_MANAGER, CERT_MANAGERS_KINDS)


def _serve(objects: Objects, version: str, kinds: Sequence[str]) -> None:
    for kind in kinds:
        objects.apply(_definition(version, kind))
        wait_until(lambda kind=kind: objects.serves(version, kind), kind, 30)


def _forget(objects: Objects, version: str, kinds: Sequence[str]) -> None:
    for kind in kinds:
        objects.delete(Ref.of(_definition(version, kind)))


def _definition(api_version: str, kind: str) -> Json:
    group, plural = api_version.partition("/")[0], f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{**version, "schema": {"openAPIV3Schema": anything}}],
        },
    }
