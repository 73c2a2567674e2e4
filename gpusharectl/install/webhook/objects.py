"""The webhook among the manifests: what is read of it, and put into it. Pure."""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
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
from gpusharectl.install.manifests import NVIDIA
from gpusharectl.install.options import CARD_CLASSES

CONFIGURATIONS = WEBHOOK_CONFIGURATIONS
"""By these the API server asks; while they are there and no webhook is, it refuses."""
DEPLOYMENT = Ref("apps/v1", "Deployment", WEBHOOK, SYSTEM)
SECRET = Ref("v1", "Secret", f"{WEBHOOK}-tls", SYSTEM)
"""The only one that is ever read here."""
SECRETS = (SECRET, Ref("v1", "Secret", f"{WEBHOOK}-ca", SYSTEM))
"""With that of an authority of cert-manager's, which outlives its Certificate."""
CERTIFICATE = Ref("cert-manager.io/v1", "Certificate", WEBHOOK, SYSTEM)
"""By which cert-manager makes what the Secret holds."""
STAMP = f"{names.PREFIX}-certificate"
"""Annotation of the pods: which certificate they began with."""
_INJECTED = "cert-manager.io/inject-ca-from"
_ISSUED = "cert-manager.io/certificate-name"


@dataclass(frozen=True, slots=True)
class WebhookThere:
    """A webhook that is installed.

    ``settings`` are its container's variables; ``replicas`` how many are wanted, None
    where its Deployment is not there.
    """

    settings: Mapping[str, str]
    replicas: int | None = None


def webhook_there(
    deployment: Json | None, configurations: Sequence[Json]
) -> WebhookThere | None:
    """Read what is installed; None where nothing of it is."""
    if deployment is None and not configurations:
        return None
    if deployment is None:
        return WebhookThere({})
    return WebhookThere(
        settings_of([deployment], "webhook"), deployment["spec"].get("replicas", 1)
    )


def is_cert_managers(body: Json) -> bool:
    """Tell by a configuration, or by the Secret, whether cert-manager's hand is in it.

    It writes the one into what it makes, and an overlay of ours the other.
    """
    annotations = body["metadata"].get("annotations") or {}
    return _INJECTED in annotations or _ISSUED in annotations


def is_configuration(body: Json) -> bool:
    """Tell whether it makes the API server ask."""
    return Ref.of(body) in CONFIGURATIONS


def settings_of(workloads: Iterable[Json], container: str) -> Mapping[str, str]:
    """Give the variables of all containers of this name."""
    return {
        one["name"]: one.get("value", "")
        for body in workloads
        for each in _containers(body)
        if each["name"] == container
        for one in each.get("env") or ()
    }


def with_settings(
    manifests: Iterable[Json], container: str, settings: Mapping[str, str]
) -> tuple[Json, ...]:
    """Give all containers of this name these variables, in place of such ones."""

    def put(body: Json) -> Json:
        if all(each["name"] != container for each in _containers(body)):
            return body
        template = body["spec"]["template"]
        containers = [set_in(each) for each in _containers(body)]
        pod = {**template["spec"], "containers": containers}
        return {**body, "spec": {**body["spec"], "template": {**template, "spec": pod}}}

    def set_in(each: Json) -> Json:
        if each["name"] != container:
            return each
        kept = [one for one in each["env"] if one["name"] not in settings]
        new = [{"name": key, "value": settings[key]} for key in settings]
        return {**each, "env": [*kept, *new]}

    return tuple(put(body) for body in manifests)


def with_replicas(manifests: Iterable[Json], number: int | None) -> tuple[Json, ...]:
    """Let the webhook have as many replicas as somebody has given it.

    None was given to who has 0: no pod that asks for a card could be made.
    """

    def put(body: Json) -> Json:
        if not number or Ref.of(body) != DEPLOYMENT:
            return body
        return {**body, "spec": {**body["spec"], "replicas": number}}

    return tuple(put(body) for body in manifests)


def with_runtime_classes(
    manifests: Iterable[Json], classes: Iterable[str]
) -> tuple[Json, ...]:
    """Tell the webhook which RuntimeClasses bring cards, where their names do not."""
    named = ",".join(name for name in classes if NVIDIA not in name)
    return with_settings(manifests, "webhook", {CARD_CLASSES: named} if named else {})


def with_stamp(manifests: Iterable[Json], stamp: str) -> tuple[Json, ...]:
    """Let the webhook's pods be made anew whenever the stamp is another."""

    def put(body: Json) -> Json:
        if Ref.of(body) != DEPLOYMENT:
            return body
        found = deepcopy(body)
        found["spec"]["template"]["metadata"]["annotations"][STAMP] = stamp
        return found

    return tuple(put(body) for body in manifests)


def with_bundle(configuration: Json, authorities: bytes) -> Json:
    """Let the API server believe these authorities, of PEM, and no other."""
    bundle = base64.b64encode(authorities).decode()
    webhooks = [
        {**one, "clientConfig": {**one["clientConfig"], "caBundle": bundle}}
        for one in configuration["webhooks"]
    ]
    return {**configuration, "webhooks": webhooks}


def bundle_of(configurations: Iterable[Json]) -> bytes:
    """Give the authorities that the API server believes now, of PEM."""
    found = [
        _decoded(one["clientConfig"].get("caBundle", ""))
        for body in configurations
        for one in body.get("webhooks") or ()
    ]
    return b"\n".join(dict.fromkeys(found))


def secret_of(files: Mapping[str, bytes]) -> Json:
    """Make the Secret of a certificate's files."""
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


def files_of(secret: Json | None) -> Mapping[str, bytes]:
    """Give a Secret's files; none where there is no Secret."""
    held = (secret or {}).get("data") or {}
    return {name: _decoded(text) for name, text in held.items()}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""


def _containers(body: Json) -> Sequence[Json]:
    if body["kind"] not in ("DaemonSet", "Deployment"):
        return ()
    found: Sequence[Json] = body["spec"]["template"]["spec"]["containers"]
    return found
