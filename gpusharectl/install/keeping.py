"""What an install that is run again keeps, since nothing was said of it. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from gpusharectl.install.choice import Choice
from gpusharectl.install.labels import EXPORTER
from gpusharectl.install.preflight import Facts, Finding, Weight


def keeping(choice: Choice, facts: Facts) -> Choice:
    """Settle what was left open: TLS stays where it is.

    An install run again, for any reason, would else take away what the first was given.
    """
    return replace(choice, tls=True) if facts.tls and choice.tls is None else choice


def judge_kept(facts: Facts, choice: Choice) -> list[Finding]:
    """Say what stays because nothing was said of it."""
    found = []
    images = {
        name: image
        for name, image in facts.images.items()
        if name != EXPORTER or choice.with_monitoring
    }
    if images and not choice.image:
        found.append(Finding(Weight.OK, _images(images)))
    if facts.tls and choice.tls is None:
        text = "the extender has TLS here, and keeps it; --no-tls takes it away"
        found.append(Finding(Weight.OK, text))
    return found


def _images(running: Mapping[str, str]) -> str:
    first, *others = dict.fromkeys(running.values())
    if not others:
        return f"image {first} runs here, and stays; --image changes it"
    them = ", ".join(f"{name} at {image}" for name, image in running.items())
    return f"images stay as they are, {them}; --image changes all of them"
