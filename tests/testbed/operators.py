"""Other operators' kinds, as far as an API server needs them to keep objects."""

from functools import partial

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from tests.testbed.waiting import wait_until

Kinds = dict[str, str]
"""Group and version by kind."""
PROMETHEUS: Kinds = dict.fromkeys(
    ("ServiceMonitor", "PodMonitor", "PrometheusRule"), "monitoring.coreos.com/v1"
)
CERT_MANAGER: Kinds = dict.fromkeys(("Issuer", "Certificate"), "cert-manager.io/v1")


def serve_kinds(objects: Objects, kinds: Kinds) -> None:
    """Let an API server know these kinds; nobody acts on their objects."""
    for kind, version in kinds.items():
        objects.apply(_definition(version, kind))
        wait_until(partial(objects.serves, version, kind), kind, 30)


def forget_kinds(objects: Objects, kinds: Kinds) -> None:
    """Take them out again, and what is left of them."""
    for kind, version in kinds.items():
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
