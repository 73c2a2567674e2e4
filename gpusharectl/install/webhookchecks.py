"""What speaks for and against the webhook, and what of it stays. Pure."""

from gpusharectl.install.choice import Choice
from gpusharectl.install.nodeview import minor
from gpusharectl.install.preflight import Facts, Finding, Weight, dotted

OLDEST = (1, 30)
"""Below it the API server knows no matchConditions: it would ask about every pod, and
make none while nobody answers."""


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
    if there is None:
        return _without(choice)
    if wanted is False:
        text = "the webhook goes; pods that it has changed stay as they are"
        return [Finding(Weight.OK, text)]
    found = []
    if wanted is None:
        text = "the webhook is here, and stays; --no-webhook takes it away"
        found.append(Finding(Weight.OK, text))
    kept = [
        f"{name}={text}"
        for name, text in choice.webhook.keeping(there.settings).settings().items()
        if there.settings.get(name) == text
    ]
    if kept:
        them = ", ".join(kept)
        found.append(Finding(Weight.OK, f"of the webhook's settings stay {them}"))
    if there.by_cert_manager:
        text = "the webhook's certificate is cert-manager's, and is left to it"
        found.append(Finding(Weight.OK, text))
    return found


def _without(choice: Choice) -> list[Finding]:
    settling = choice.webhook.settling
    if choice.webhook.wanted or not settling:
        return []
    them = ", ".join(settling)
    is_are = "is a setting" if len(settling) == 1 else "are settings"
    text = f"{them} {is_are} of the webhook, which is not here"
    return [Finding(Weight.REFUSAL, text, "add --with-webhook")]
