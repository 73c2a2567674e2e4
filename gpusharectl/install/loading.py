"""All that one cluster is given, put together from the manifests as it was chosen."""

import hashlib
from collections.abc import Iterable, Sequence
from copy import deepcopy

from gpushare.domain.policies import FRAG
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.install.choice import Choice
from gpusharectl.install.flavour import Flavour
from gpusharectl.install.hands import Load
from gpusharectl.install.labels import SECOND_SCHEDULER, SYSTEM
from gpusharectl.install.overlays import (
    BY_CERT_MANAGER,
    MONITORING,
    VOID,
    WEBHOOK,
    overlay_of,
)
from gpusharectl.install.webhookchoice import ON, POLICY, QUOTA, UI
from gpusharectl.install.webhookobjects import with_settings
from gpusharectl.scheduler.stanza import packing_configuration

STAMP = f"{names.PREFIX}-configuration"
"""Annotation of the pods: which configuration they began with."""
_SECOND = Ref("apps/v1", "Deployment", SECOND_SCHEDULER, SYSTEM)


def loaded(
    load: Load,
    kind: Flavour,
    choice: Choice,
    *,
    image: str,
    components: Sequence[str] = (),
    by_cert_manager: bool = False,
) -> tuple[Json, ...]:
    """Give the objects in the order in which they are applied, with their settings.

    ``components`` are laid over all that runs beside the cards; ``by_cert_manager``
    says who makes the webhook's certificate.
    """
    found = load(overlay_of(kind, choice), image=image, components=components)
    if choice.with_monitoring:
        found += load(MONITORING, image=image, components=components)
    if choice.webhook.wanted:
        name = BY_CERT_MANAGER if by_cert_manager else WEBHOOK
        void = (VOID,) if choice.webhook.void else ()
        found += load(name, image=image, components=void)
    return _configured(found, choice)


def _configured(manifests: Iterable[Json], choice: Choice) -> tuple[Json, ...]:
    settings = choice.webhook.settings() if choice.webhook.wanted else {}
    quota = {QUOTA: settings[QUOTA]} if QUOTA in settings else {}
    found = with_settings(manifests, "webhook", settings)
    found = with_settings(found, "device-plugin", quota)
    ours = {UI: ON} if choice.ui else {}
    ours |= {POLICY: choice.policy} if choice.policy else {}
    found = with_settings(found, "extender", ours)
    if choice.policy == FRAG:
        found = tuple(map(_packing, found))
    return _stamped(found)


def _stamped(manifests: tuple[Json, ...]) -> tuple[Json, ...]:
    """Let a second kube-scheduler's pods be made anew for another configuration.

    They read it once.
    """
    read = {
        body["metadata"]["name"]: body["data"]
        for body in manifests
        if body["kind"] == "ConfigMap"
    }

    def put(body: Json) -> Json:
        name = body["metadata"]["name"]
        if Ref.of(body) != _SECOND or name not in read:
            return body
        found = deepcopy(body)
        metadata = found["spec"]["template"]["metadata"]
        text = "".join(read[name][key] for key in sorted(read[name]))
        digest = hashlib.sha256(text.encode()).hexdigest()
        metadata.setdefault("annotations", {})[STAMP] = digest
        return found

    return tuple(map(put, manifests))


def _packing(body: Json) -> Json:
    """Let the policy's word outweigh all others in a second kube-scheduler, too."""
    if body["kind"] != "ConfigMap":
        return body
    texts = body.get("data") or {}
    changed = {key: packing_configuration(text) for key, text in texts.items()}
    return {**body, "data": changed} if texts else body
