"""What an operator asked of ``install`` or ``uninstall``, and which nodes are meant.

What an operator says of the webhook, and what that makes of what is there. Pure.

The webhook's options of ``install``: how they are called, and what they may be.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import click

from gpushare.settings import PREFIX
from gpusharectl.install.cluster_facts import NodeView, named
from gpusharectl.kube_scheduler.host_files import Obstacle

ON = "on"
UI = f"{PREFIX}UI"
"""The extender's own, for its page."""
POLICY = f"{PREFIX}POLICY"
"""The extender's own: which card it chooses."""
CARD_CLASSES = f"{PREFIX}CARD_CLASSES"
"""The webhook's, of the cluster's RuntimeClasses: no option says it.

Its name is like no other's: an older image would take it for that one misspelt.
"""
_FLAG = {"wanted": ("--with-webhook", "--no-webhook")}
"""All other options are called as their fields."""


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """The webhook's options; None where nothing is said, so that it stays as it is.

    A text that is empty takes its setting away. Every field but ``wanted`` is also a
    setting of the webhook's, in capitals.
    """

    wanted: bool | None = None
    void: bool | None = None
    set_scheduler: str | None = None
    set_runtime_class: str | None = None
    env_from: str | None = None
    quotas: bool | None = None
    bitfusion_card_mib: str | None = None
    bitfusion_shell: str | None = None
    bitfusion_strict: bool | None = None
    bitfusion_quota: bool | None = None

    def keeping(self, there: Mapping[str, str]) -> "WebhookOptions":
        """Settle what was left open by the variables of a webhook that is there."""
        found = {
            option: _read(option, there.get(name, ""))
            for option, name in _SETTING_OF.items()
            if getattr(self, option) is None
        }
        return replace(self, wanted=self.wanted is not False, **found)

    def settings(self) -> Mapping[str, str]:
        """Give the variables that it shall have; none for what is off."""
        said = {name: getattr(self, option) for option, name in _SETTING_OF.items()}
        return {
            name: ON if text is True else text for name, text in said.items() if text
        }

    def words(self) -> list[str]:
        """Give the options as they are typed."""
        found: list[str] = []
        for option in _OPTIONS:
            said = getattr(self, option)
            if isinstance(said, str):
                found += [_flags(option)[0], said]
            elif said is not None:
                found.append(_flags(option)[0 if said else 1])
        return found

    @property
    def settling(self) -> tuple[str, ...]:
        """The options given that are of use only where there is a webhook."""
        return tuple(
            _flags(option)[0]
            for option in _SETTING_OF
            if getattr(self, option) not in (None, False, "")
        )


def _read(option: str, text: str) -> Any:  # noqa: ANN401
    """Read a variable; what is off may as well not be there."""
    if option in _SWITCHES:
        return True if text == ON else None
    return text or None


def _flags(option: str) -> tuple[str, str]:
    word = option.replace("_", "-")
    return _FLAG.get(option, (f"--{word}", f"--no-{word}"))


_OPTIONS = tuple(one.name for one in fields(WebhookOptions))
_SWITCHES = ("void", "quotas", "bitfusion_strict", "bitfusion_quota")
_SETTING_OF = {
    option: PREFIX + option.upper() for option in _OPTIONS if option != "wanted"
}
QUOTA = _SETTING_OF["bitfusion_quota"]
"""The device plugin's too: both keep ``bitfusion.io/gpu``, or neither."""


DEFAULT_TIMEOUT_S = 900.0
_SEPARATORS = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """The options of ``install``; ``access`` are the words that choose the cluster.

    ``runtime_class`` says whether device plugin and exporter ask for the RuntimeClass
    nvidia; None lets the cluster decide. Without ``image``, and with None for ``tls``,
    ``ui``, ``policy`` and the webhook's, what is there already is kept.
    """

    nodes: tuple[str, ...] = ()
    all_gpu_nodes: bool = False
    yes: bool = False
    dry_run: bool = False
    image: str = ""
    second_scheduler: bool = False
    scheduler_image: str = ""
    runtime_class: bool | None = None
    tls: bool | None = None
    ui: bool | None = None
    policy: str | None = None
    with_monitoring: bool = False
    webhook: WebhookOptions = field(default_factory=WebhookOptions)
    restart: bool = False
    this_node: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    access: tuple[str, ...] = ()

    def again(self) -> str:
        """Give the command that goes on where this one stopped."""
        words = ["gpusharectl", "install", *self.access]
        if self.nodes:
            words += ["--nodes", ",".join(self.nodes)]
        flags = {
            "--all-gpu-nodes": self.all_gpu_nodes and not self.nodes,
            "--second-scheduler": self.second_scheduler,
            "--runtime-class": self.runtime_class is True,
            "--no-runtime-class": self.runtime_class is False,
            "--tls": self.tls is True,
            "--no-tls": self.tls is False,
            "--ui": self.ui is True,
            "--no-ui": self.ui is False,
            "--with-monitoring": self.with_monitoring,
            "--restart": self.restart,
            "--yes": self.yes,
        }
        words += [flag for flag, given in flags.items() if given]
        words += self.webhook.words()
        words += _given("--image", self.image)
        words += _given("--policy", self.policy or "")
        words += _given("--scheduler-image", self.scheduler_image)
        words += _given("--this-node", self.this_node)
        if self.timeout_s != DEFAULT_TIMEOUT_S:
            words += ["--timeout", f"{self.timeout_s:g}"]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class UninstallOptions:
    """The options of ``uninstall``."""

    yes: bool = False
    dry_run: bool = False
    force: bool = False
    wait: bool = False
    restart: bool = False
    image: str = ""
    this_node: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    access: tuple[str, ...] = ()

    def again(self, *extra: str) -> str:
        """Give the command that goes on where this one stopped."""
        words = ["gpusharectl", "uninstall", *self.access]
        flags = {
            "--force": self.force,
            "--wait": self.wait,
            "--restart": self.restart,
            "--yes": self.yes,
        }
        words += [flag for flag, given in flags.items() if given and flag not in extra]
        words += extra
        words += _given("--image", self.image)
        words += _given("--this-node", self.this_node)
        if self.timeout_s != DEFAULT_TIMEOUT_S:
            words += ["--timeout", f"{self.timeout_s:g}"]
        return shlex.join(words)


def node_names(text: str) -> tuple[str, ...]:
    """Read names from what was typed, with commas or spaces, each once.

    >>> split(" gpu-1, gpu-2 gpu-1,")
    ('gpu-1', 'gpu-2')
    """
    return tuple(dict.fromkeys(one for one in _SEPARATORS.split(text) if one))


def chosen(wanted: Sequence[str], nodes: Sequence[NodeView]) -> Obstacle | None:
    """Say what is wrong with names of nodes; None when all of them are nodes."""
    unknown = [name for name in wanted if named(nodes, name) is None]
    known = ", ".join(node.name for node in nodes) or "none at all"
    if unknown:
        them = ", ".join(unknown)
        is_are = "is no node" if len(unknown) == 1 else "are no nodes"
        return Obstacle(f"{them} {is_are} of this cluster; its nodes are {known}.")
    if not wanted:
        return Obstacle(f"No node was named; the cluster's nodes are {known}.")
    return None


def likely(nodes: Sequence[NodeView], here: str = "") -> tuple[str, ...]:
    """Give the nodes with signs of cards; ``here`` is one whose driver answers."""
    return tuple(
        node.name for node in nodes if node.labelled or node.signs or node.name == here
    )


def _given(flag: str, value: str) -> list[str]:
    return [flag, value] if value else []


Command = TypeVar("Command", bound=Callable[..., Any])
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253
_AUTO = "auto"
ENV_FROM = (_AUTO, "deny", "allow")
"""What the webhook may be told of a container's ``envFrom``."""


def add_webhook_options(command: Command) -> Command:
    """Give a command the options that ``webhook_choice`` takes out again."""
    for option in reversed(_WEBHOOK_OPTIONS):
        command = option(command)
    return command


def take_webhook_options(options: dict[str, Any]) -> WebhookOptions:
    """Take the webhook's options out of a command's; ``UsageError`` in words."""
    options["wanted"] = options.pop("webhook")
    names = (name for name in WebhookOptions.__slots__ if name in options)
    choice = WebhookOptions(**{name: options.pop(name) for name in tuple(names)})
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


_WEBHOOK_OPTIONS = (
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
