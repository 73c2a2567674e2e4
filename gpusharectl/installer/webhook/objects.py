"""The webhook's objects: reading what is installed, and adding settings. Pure."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import (
    PART_NAME,
    PART_OF,
    PRODUCT,
    SYSTEM,
    WEBHOOK,
    WEBHOOK_CONFIGURATIONS,
)
from gpushare.kube.objects import Ref

CONFIGURATIONS = WEBHOOK_CONFIGURATIONS
"""They make the API server ask the webhook; without a webhook it then refuses pods."""
DEPLOYMENT = Ref("apps/v1", "Deployment", WEBHOOK, SYSTEM)
SECRET = Ref("v1", "Secret", f"{WEBHOOK}-tls", SYSTEM)
"""The only Secret that the installer reads."""
SECRETS = (SECRET, Ref("v1", "Secret", f"{WEBHOOK}-ca", SYSTEM))
"""With that of cert-manager's authority, which outlives its Certificate."""
CERTIFICATE = Ref("cert-manager.io/v1", "Certificate", WEBHOOK, SYSTEM)
"""From it cert-manager makes the Secret."""
NAMESPACE = "default"
"""Of the probe pod: it exists in every cluster, and the webhook is asked about it."""
STAMP = f"{names.PREFIX}-certificate"
"""Annotation of the pods: a digest of the certificate that they started with."""
_INJECTED = "cert-manager.io/inject-ca-from"
_ISSUED = "cert-manager.io/certificate-name"


@dataclass(frozen=True, slots=True)
class InstalledWebhook:
    """A webhook that is installed: its container's variables."""

    settings: Mapping[str, str]
    replicas: int | None = None
    """The wanted number; None if there is no Deployment."""


def is_of_cert_manager(body: Json) -> bool:
    """Return whether cert-manager writes this configuration or Secret.

    It annotates what it makes, and gpushare's overlay annotates the configurations.
    """
    annotations = body["metadata"].get("annotations") or {}
    return _INJECTED in annotations or _ISSUED in annotations


def with_bundle(configuration: Json, authorities: bytes) -> Json:
    """Set the caBundle: the API server trusts these authorities (PEM) and no other."""
    bundle = base64.b64encode(authorities).decode()
    webhooks = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": bundle}}
        for webhook in configuration["webhooks"]
    ]
    return {**configuration, "webhooks": webhooks}


def read_bundle(configurations: Iterable[Json]) -> bytes:
    """Return the authorities of the present caBundles, as PEM."""
    bundles = [
        _decoded(webhook["clientConfig"].get("caBundle", ""))
        for body in configurations
        for webhook in body.get("webhooks") or ()
    ]
    return b"\n".join(dict.fromkeys(bundles))


def certificate_secret(files: Mapping[str, bytes]) -> Json:
    """Return the Secret with a certificate's files."""
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": SECRET.name,
            "namespace": SECRET.namespace,
            "labels": {PART_OF: PRODUCT, PART_NAME: WEBHOOK},
        },
        "type": "kubernetes.io/tls",
        "data": {
            name: base64.b64encode(content).decode() for name, content in files.items()
        },
    }


def secret_files(secret: Json | None) -> Mapping[str, bytes]:
    """Return a Secret's files; none if there is no Secret."""
    contents = (secret or {}).get("data") or {}
    return {name: _decoded(text) for name, text in contents.items()}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""
