"""All that one cluster is given, put together from the manifests as it was chosen."""

from collections.abc import Iterable, Sequence

from gpushare.domain.policies import FRAG
from gpushare.kube.cluster import Json
from gpusharectl.install.choice import Choice
from gpusharectl.install.flavour import Flavour
from gpusharectl.install.hands import Load
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
    return tuple(map(_packing, found)) if choice.policy == FRAG else found


def _packing(body: Json) -> Json:
    """Let the policy's word outweigh all others in a second kube-scheduler, too."""
    if body["kind"] != "ConfigMap":
        return body
    texts = body.get("data") or {}
    changed = {key: packing_configuration(text) for key, text in texts.items()}
    return {**body, "data": changed} if texts else body
