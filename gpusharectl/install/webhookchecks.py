"""What speaks for and against the webhook, and what of it stays. Pure."""

from gpusharectl.install.choice import Choice
from gpusharectl.install.nodeview import minor
from gpusharectl.install.preflight import Facts, Finding, Weight, dotted
from gpusharectl.install.webhookobjects import CERTIFICATE, WebhookThere

OLDEST = (1, 30)
"""Below it the API server knows no matchConditions: it would ask about every pod, and
make none while nobody answers."""
SHIPPED = 2
"""Replicas, as the manifest has it."""


def judge_webhook(facts: Facts, choice: Choice) -> list[Finding]:
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


def _staying(there: WebhookThere, choice: Choice) -> list[Finding]:
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


def _without(choice: Choice) -> list[Finding]:
    settling = choice.webhook.settling
    if choice.webhook.wanted or not settling:
        return []
    them = ", ".join(settling)
    is_are = "is a setting" if len(settling) == 1 else "are settings"
    text = f"{them} {is_are} of the webhook, which is not here"
    return [Finding(Weight.REFUSAL, text, "add --with-webhook")]


def _certificate(facts: Facts, choice: Choice) -> list[Finding]:
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
