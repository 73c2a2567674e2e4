"""What an install is going to do about the webhook: its objects and its certificate.

A new certificate brings a new authority. The API server is told of both before the
webhook shows the new one, and forgets the old one when every replica does: so there is
no moment in which it would not believe one of them.

What speaks for and against the webhook, and what of it stays. Pure.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpushare.kube.cluster import Json
from gpushare.kube.facts import is_narrowed
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import minor
from gpusharectl.install.options import InstallOptions
from gpusharectl.install.preflight import Facts, Finding, Weight, dotted
from gpusharectl.install.webhook.objects import (
    CERTIFICATE,
    SECRET,
    WebhookThere,
    bundle_of,
    files_of,
    is_configuration,
    secret_of,
    with_bundle,
    with_stamp,
)
from gpusharectl.pki import AUTHORITY, WEBHOOK, bundle, plan_webhook

_AUTHORITY = f"{AUTHORITY}.crt"
_CERTIFICATE = f"{WEBHOOK.name}.crt"


@dataclass(frozen=True, slots=True)
class WebhookPlan:
    """What there is to do, beside the objects that are applied with all others.

    ``asking`` are the configurations by which the API server asks; ``secret`` is a new
    certificate, None while the old one is good, and ``trusting`` are those of the
    configurations that are there already, for as long as either may be shown.
    ``seen`` is what all this was planned on: each object as it was, None where there
    was none; it is empty where the certificate is not ours.
    """

    asking: tuple[Json, ...]
    trusting: tuple[Json, ...] = ()
    secret: Json | None = None
    there: Mapping[Ref, Json | None] = field(default_factory=dict)
    seen: Mapping[Ref, Json | None] = field(default_factory=dict)

    @property
    def new(self) -> frozenset[Ref]:
        """The configurations by which the API server does not ask about all yet."""
        return frozenset(
            ref for ref, body in self.there.items() if not body or is_narrowed(body)
        )

    def beside(self) -> list[Json]:
        """Give the objects that it brings beside those that are applied first."""
        return [*([self.secret] if self.secret else []), *self.asking]


def split(
    objects: Objects, manifests: Iterable[Json], now: datetime, *, ours: bool
) -> tuple[tuple[Json, ...], WebhookPlan]:
    """Part the manifests in those to apply first, and what is done about the webhook.

    ``ours`` says whose its certificate is: not ours where cert-manager has made it.
    Of all Secrets it reads the webhook's own.
    """
    bodies = tuple(manifests)
    others = tuple(body for body in bodies if not is_configuration(body))
    asking = tuple(body for body in bodies if is_configuration(body))
    there = {ref: objects.get(ref) for ref in map(Ref.of, asking)}
    if not ours:
        left = tuple(_as_it_is(one, there) for one in asking)
        return others, WebhookPlan(left, there=there)
    secret = objects.get(SECRET)
    held = files_of(secret)
    made = plan_webhook(held, now)
    files = made or held
    newest = files[_AUTHORITY]
    both = bundle(newest, bundle_of(body for body in there.values() if body), now)
    plan = WebhookPlan(
        tuple(with_bundle(body, newest) for body in asking),
        secret=secret_of(made) if made else None,
        there=there,
        seen={**there, SECRET: secret},
    )
    if made:
        trusting = [with_bundle(body, both) for body in asking]
        old = tuple(body for body in trusting if Ref.of(body) not in plan.new)
        plan = replace(plan, trusting=old)
    stamp = hashlib.sha256(files[_CERTIFICATE]).hexdigest()
    return with_stamp(others, stamp), plan


def _as_it_is(body: Json, there: Mapping[Ref, Json | None]) -> Json:
    """Leave a configuration the authorities that another has given it."""
    old = there[Ref.of(body)]
    authorities = bundle_of([old] if old else [])
    # Applied without, it would lose those that were once ours.
    return with_bundle(body, authorities) if authorities else body


OLDEST = (1, 30)
"""Below it the API server knows no matchConditions: it would ask about every pod, and
make none while nobody answers."""
SHIPPED = 2
"""Replicas, as the manifest has it."""


def judge_webhook(facts: Facts, choice: InstallOptions) -> list[Finding]:
    """Judge what is wanted of it, and say what stays."""
    wanted, there = choice.webhook.wanted, facts.webhook
    number = minor(facts.version)
    if (wanted or there) and wanted is not False and number and number < OLDEST:
        text = (
            f"the webhook is for Kubernetes {dotted(OLDEST)} and newer, and this is "
            f"{facts.version.removeprefix('v')}: it would be asked about every pod"
        )
        cure = "install without --with-webhook"
        if there:
            cure = "install with --no-webhook"
        return [Finding(Weight.REFUSAL, text, cure)]
    if wanted is False and there:
        text = "the webhook goes; pods that it has changed stay as they are"
        return [Finding(Weight.OK, text)]
    if there is None:
        return [*_without(choice), *_certificate(facts, choice)]
    return [*_staying(there, choice), *_certificate(facts, choice)]


def _staying(there: WebhookThere, choice: InstallOptions) -> list[Finding]:
    found = []
    if choice.webhook.wanted is None:
        text = "the webhook is here, and stays; --no-webhook takes it away"
        found.append(text)
    kept = [
        f"{name}={text}"
        for name, text in choice.webhook.keeping(there.settings).settings().items()
        if there.settings.get(name) == text
    ]
    if kept:
        them = ", ".join(kept)
        found.append(f"of the webhook's settings stay {them}")
    if there.replicas == 0:
        found.append(f"the webhook has no replica, and gets {SHIPPED} again")
    elif there.replicas not in (None, SHIPPED):
        found.append(f"the webhook's replicas stay {there.replicas}")
    return [Finding(Weight.OK, text) for text in found]


def _without(choice: InstallOptions) -> list[Finding]:
    settling = choice.webhook.settling
    if choice.webhook.wanted or not settling:
        return []
    them = ", ".join(settling)
    is_are = "is a setting" if len(settling) == 1 else "are settings"
    text = f"{them} {is_are} of the webhook, which is not here"
    return [Finding(Weight.REFUSAL, text, "add --with-webhook")]


def _certificate(facts: Facts, choice: InstallOptions) -> list[Finding]:
    """Leave it to who makes it; where that is gone, nobody would renew it."""
    if not facts.by_cert_manager or choice.webhook.wanted is False:
        return []
    if facts.cert_manager:
        text = "the webhook's certificate is cert-manager's, and is left to it"
        return [Finding(Weight.OK, text)]
    text = (
        "the webhook's certificate is cert-manager's, and cert-manager is not here, "
        f"since the API server does not know {CERTIFICATE.kind} of "
        f"{CERTIFICATE.api_version}: nobody would renew it"
    )
    cure = (
        "install cert-manager again; or let the installer make the certificate: "
        "install with --no-webhook, then with --with-webhook"
    )
    return [Finding(Weight.REFUSAL, text, cure)]
