"""The webhook's options of ``install``: how they are called, and what they may be."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpusharectl.install.webhookchoice import WebhookChoice

Command = TypeVar("Command", bound=Callable[..., Any])
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253
_AUTO = "auto"
ENV_FROM = (_AUTO, "deny", "allow")
"""What the webhook may be told of a container's ``envFrom``."""


def webhook_options(command: Command) -> Command:
    """Give a command the options that ``webhook_choice`` takes out again."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def webhook_choice(options: dict[str, Any]) -> WebhookChoice:
    """Take the webhook's options out of a command's; ``UsageError`` in words."""
    options["wanted"] = options.pop("webhook")
    names = (name for name in WebhookChoice.__slots__ if name in options)
    choice = WebhookChoice(**{name: options.pop(name) for name in tuple(names)})
    if choice.wanted is False and choice.settling:
        raise click.UsageError(
            f"{choice.settling[0]} is a setting of the webhook, which --no-webhook "
            "takes away; leave out one of the two"
        )
    return choice


def _name(_context: object, parameter: click.Parameter, text: str | None) -> str | None:
    if text and (len(text) > _LONGEST_NAME or not _NAME.fullmatch(text)):
        raise click.BadParameter(
            f"{text!r} is no name that Kubernetes takes: small letters, digits, - and "
            f". only, such as vcuda-scheduler; an empty one, {parameter.opts[0]} '', "
            "takes the setting away"
        )
    return text


def _env_from(
    _context: object, parameter: click.Parameter, text: str | None
) -> str | None:
    if text and text not in ENV_FROM:
        raise click.BadParameter(
            f"{text!r} is none of {', '.join(ENV_FROM)}; an empty one, "
            f"{parameter.opts[0]} '', takes the setting away, as {_AUTO}"
        )
    return text


def _card(_context: object, _parameter: object, text: str | None) -> str | None:
    if text and text != _AUTO and not (text.isascii() and text.isdigit() and int(text)):
        raise click.BadParameter(
            f"{text!r} is neither auto nor a number of MiB above 0, such as 15258 for "
            "a card of 16000 MB"
        )
    return text


def _path(_context: object, _parameter: object, text: str | None) -> str | None:
    if text and (not text.startswith("/") or text.split() != [text]):
        raise click.BadParameter(
            f"{text!r} is no path of a shell in the pods' images, such as /bin/sh"
        )
    return text


_OPTIONS = (
    click.option(
        "--with-webhook/--no-webhook",
        "webhook",
        default=None,
        help="The admission webhook: requests that cannot be are refused in words when "
        "the pod is made, and pods written for Bitfusion are translated. Without "
        "either it stays as it is there.",
    ),
    click.option(
        "--void/--no-void",
        "void",
        default=None,
        help="With the webhook: containers under the RuntimeClass nvidia that ask for "
        "no card see none.",
    ),
    click.option(
        "--set-scheduler",
        metavar="NAME",
        callback=_name,
        help="With the webhook: pods that ask for cards get this schedulerName.",
    ),
    click.option(
        "--set-runtime-class",
        metavar="NAME",
        callback=_name,
        help="With the webhook: pods that ask for cards get this RuntimeClass.",
    ),
    click.option(
        "--env-from",
        metavar="auto|deny|allow",
        callback=_env_from,
        help="With the webhook: refuse envFrom in containers that ask for cards, since "
        "it could lift their limits; auto: where their RuntimeClass is nvidia's.",
    ),
    click.option(
        "--quotas/--no-quotas",
        "quotas",
        default=None,
        help="With the webhook: pods ask for all that they hold, so that quotas count "
        "it: 0 cores become 1, and whole cards ask their memory.",
    ),
    click.option(
        "--bitfusion-card-mib",
        metavar="N|auto",
        callback=_card,
        help="With the webhook: of how much memory Bitfusion pods ask a percentage; "
        "auto is the smallest card of the cluster.",
    ),
    click.option(
        "--bitfusion-shell",
        metavar="PATH",
        callback=_path,
        help="With the webhook: what runs a Bitfusion pod's command; else /bin/bash.",
    ),
    click.option(
        "--bitfusion-strict/--no-bitfusion-strict",
        "bitfusion_strict",
        default=None,
        help="With the webhook: refuse what a Bitfusion pod cannot have here, instead "
        "of warning.",
    ),
    click.option(
        "--bitfusion-quota/--no-bitfusion-quota",
        "bitfusion_quota",
        default=None,
        help="With the webhook: keep bitfusion.io/gpu in pods and on nodes, for quotas "
        "that count it.",
    ),
)
