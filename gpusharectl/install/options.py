"""The options of ``install`` and ``uninstall``, and the command that repeats them.

An option of the webhook that is not given keeps its present setting; an empty text
removes it.
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
"""Variable of the extender: whether it serves its page."""
POLICY = f"{PREFIX}POLICY"
"""Variable of the extender: which card it chooses."""
CARD_CLASSES = f"{PREFIX}CARD_CLASSES"
"""Variable of the webhook: the cluster's RuntimeClasses that provide cards; no option.

The name resembles no other: an older image would take it for a misspelt one.
"""
DEFAULT_TIMEOUT_S = 900.0
_SEPARATORS = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """The webhook's options; None if not given.

    Every field except ``wanted`` is also a variable of the webhook, in capitals.
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

    def with_preserved(self, there: Mapping[str, str]) -> "WebhookOptions":
        """Fill options that are not given with an installed webhook's variables."""
        found = {
            option: _read(option, there.get(name, ""))
            for option, name in _SETTING_OF.items()
            if getattr(self, option) is None
        }
        return replace(self, wanted=self.wanted is not False, **found)

    def settings(self) -> Mapping[str, str]:
        """Return the variables for the webhook; none for what is off."""
        said = {name: getattr(self, option) for option, name in _SETTING_OF.items()}
        return {
            name: ON if text is True else text for name, text in said.items() if text
        }

    def words(self) -> list[str]:
        """Return the options as they are typed."""
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
        """The given options that make sense only with a webhook."""
        return tuple(
            _flags(option)[0]
            for option in _SETTING_OF
            if getattr(self, option) not in (None, False, "")
        )


_OPTIONS = tuple(one.name for one in fields(WebhookOptions))
_SWITCHES = ("void", "quotas", "bitfusion_strict", "bitfusion_quota")
_SETTING_OF = {
    option: PREFIX + option.upper() for option in _OPTIONS if option != "wanted"
}
QUOTA = _SETTING_OF["bitfusion_quota"]
"""The device plugin has it too: both keep ``bitfusion.io/gpu``, or neither."""


def _read(option: str, text: str) -> Any:  # noqa: ANN401
    """Return a variable as an option; a switch that is off counts as not given."""
    if option in _SWITCHES:
        return True if text == ON else None
    return text or None


def _flags(option: str) -> tuple[str, str]:
    if option == "wanted":
        return "--with-webhook", "--no-webhook"
    word = option.replace("_", "-")
    return f"--{word}", f"--no-{word}"


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """The options of ``install``.

    Without ``image``, and with None for ``tls``, ``ui``, ``policy`` and the webhook's
    options, the present setting is kept. ``runtime_class`` None: the device plugin runs
    under the RuntimeClass nvidia if the cluster has it. ``access`` are the words that
    choose the cluster.
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
        """Return the command that goes on where this one stopped."""
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
        return _joined(words, self.this_node, self.timeout_s)


@dataclass(frozen=True, slots=True)
class UninstallOptions:
    """The options of ``uninstall``; ``access`` are the words that name the cluster."""

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
        """Return the command that goes on where this one stopped."""
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
        return _joined(words, self.this_node, self.timeout_s)


def _given(flag: str, value: str) -> list[str]:
    return [flag, value] if value else []


def _joined(words: list[str], this_node: str, timeout_s: float) -> str:
    words += _given("--this-node", this_node)
    if timeout_s != DEFAULT_TIMEOUT_S:
        words += ["--timeout", f"{timeout_s:g}"]
    return shlex.join(words)


def node_names(text: str) -> tuple[str, ...]:
    """Return the names in a text, separated by commas or spaces, each once.

    >>> node_names(" gpu-1, gpu-2 gpu-1,")
    ('gpu-1', 'gpu-2')
    """
    return tuple(dict.fromkeys(one for one in _SEPARATORS.split(text) if one))


def chosen(wanted: Sequence[str], nodes: Sequence[NodeView]) -> Obstacle | None:
    """Return what is wrong with the names of nodes; None if all are nodes."""
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
    """Return the nodes with signs of cards; ``here`` is a node with a loaded driver."""
    return tuple(
        node.name for node in nodes if node.labelled or node.signs or node.name == here
    )


Command = TypeVar("Command", bound=Callable[..., Any])
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253
_AUTO = "auto"
ENV_FROM = (_AUTO, "deny", "allow")
"""What the webhook may do with a container's ``envFrom``."""


def add_webhook_options(command: Command) -> Command:
    """Add to a command the options that ``take_webhook_options`` takes."""
    for option in reversed(_CLICK_OPTIONS):
        command = option(command)
    return command


def take_webhook_options(options: dict[str, Any]) -> WebhookOptions:
    """Take the webhook's options out of a command's; ``UsageError`` on a conflict."""
    options["wanted"] = options.pop("webhook")
    given = {name: options.pop(name) for name in _OPTIONS if name in options}
    found = WebhookOptions(**given)
    if found.wanted is False and found.settling:
        raise click.UsageError(
            f"{found.settling[0]} is a setting of the webhook, which --no-webhook "
            "removes; leave out one of the two"
        )
    return found


def _name(_context: object, parameter: click.Parameter, text: str | None) -> str | None:
    if text and (len(text) > _LONGEST_NAME or not _NAME.fullmatch(text)):
        raise click.BadParameter(
            f"{text!r} is no valid name in Kubernetes: only small letters, digits, - "
            "and . are allowed, as in vcuda-scheduler; an empty text, "
            f"{parameter.opts[0]} '', removes the setting"
        )
    return text


def _env_from(
    _context: object, parameter: click.Parameter, text: str | None
) -> str | None:
    if text and text not in ENV_FROM:
        raise click.BadParameter(
            f"{text!r} is none of {', '.join(ENV_FROM)}; an empty text, "
            f"{parameter.opts[0]} '', removes the setting, which then is {_AUTO}"
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


_CLICK_OPTIONS = (
    click.option(
        "--with-webhook/--no-webhook",
        "webhook",
        default=None,
        help="Install the admission webhook, or remove it: it rejects impossible "
        "requests when the pod is created, with the reason, and translates pods for "
        "Bitfusion. Without either option it stays as it is.",
    ),
    click.option(
        "--void/--no-void",
        "void",
        default=None,
        help="With the webhook: containers under the RuntimeClass nvidia that request "
        "no card see none.",
    ),
    click.option(
        "--set-scheduler",
        metavar="NAME",
        callback=_name,
        help="With the webhook: pods that request cards get this schedulerName.",
    ),
    click.option(
        "--set-runtime-class",
        metavar="NAME",
        callback=_name,
        help="With the webhook: pods that request cards get this RuntimeClass.",
    ),
    click.option(
        "--env-from",
        metavar="auto|deny|allow",
        callback=_env_from,
        help="With the webhook: reject envFrom in containers that request cards, since "
        "it could remove their limits; auto: if their RuntimeClass is nvidia's.",
    ),
    click.option(
        "--quotas/--no-quotas",
        "quotas",
        default=None,
        help="With the webhook: pods request all that they get, so that quotas count "
        "it: 0 cores become 1, and whole cards request their memory.",
    ),
    click.option(
        "--bitfusion-card-mib",
        metavar="N|auto",
        callback=_card,
        help="With the webhook: the memory of a card, of which Bitfusion pods request "
        "a percentage; auto is the smallest card of the cluster.",
    ),
    click.option(
        "--bitfusion-shell",
        metavar="PATH",
        callback=_path,
        help="With the webhook: the shell that runs a Bitfusion pod's command; "
        "default /bin/bash.",
    ),
    click.option(
        "--bitfusion-strict/--no-bitfusion-strict",
        "bitfusion_strict",
        default=None,
        help="With the webhook: reject what a Bitfusion pod cannot have here, instead "
        "of a warning.",
    ),
    click.option(
        "--bitfusion-quota/--no-bitfusion-quota",
        "bitfusion_quota",
        default=None,
        help="With the webhook: keep bitfusion.io/gpu in pods and on nodes, for quotas "
        "that count it.",
    ),
)
