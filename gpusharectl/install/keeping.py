"""What an install that is run again keeps, since nothing was said of it. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from gpusharectl.install.choice import Choice
from gpusharectl.install.labels import EXPORTER, WEBHOOK
from gpusharectl.install.preflight import Facts, Finding, Weight


def keeping(choice: Choice, facts: Facts) -> Choice:
    """Settle what was left open: TLS, page and webhook stay where they are.

    An install run again, for any reason, would else take away what the first was given.
    """
    tls = facts.tls or None if choice.tls is None else choice.tls
    ui = facts.ui or None if choice.ui is None else choice.ui
    policy = choice.policy or facts.policy or None
    webhook = choice.webhook
    if facts.webhook and webhook.wanted is not False:
        webhook = webhook.keeping(facts.webhook.settings)
    return replace(choice, tls=tls, ui=ui, policy=policy, webhook=webhook)


def judge_kept(facts: Facts, choice: Choice) -> list[Finding]:
    """Say what stays because nothing was said of it."""
    found = []
    going = {EXPORTER} if not choice.with_monitoring else set()
    going |= {WEBHOOK} if choice.webhook.wanted is False else set()
    images = {name: image for name, image in facts.images.items() if name not in going}
    if images and not choice.image:
        found.append(Finding(Weight.OK, _images(images)))
    if facts.tls and choice.tls is None:
        text = "the extender has TLS here, and keeps it; --no-tls takes it away"
        found.append(Finding(Weight.OK, text))
    if facts.ui and choice.ui is None:
        text = "the extender has its page here, and keeps it; --no-ui takes it away"
        found.append(Finding(Weight.OK, text))
    if facts.policy and not choice.policy:
        text = f"the policy is {facts.policy} here, and stays; --policy changes it"
        found.append(Finding(Weight.OK, text))
    return found


def _images(running: Mapping[str, str]) -> str:
    first, *others = dict.fromkeys(running.values())
    if not others:
        return f"image {first} runs here, and stays; --image changes it"
    them = ", ".join(f"{name} at {image}" for name, image in running.items())
    return f"images stay as they are, {them}; --image changes all of them"
