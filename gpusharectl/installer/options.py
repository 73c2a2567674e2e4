"""The options of ``install`` and ``uninstall``: each is described once, as a field.

From the fields ``add_options`` makes the command line's options, and ``again`` the
command that repeats them. An option of the webhook that is not given keeps its present
setting; an empty text removes it.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar

import click

from gpushare.domain.policies import POLICIES
from gpushare.settings import PREFIX
from gpusharectl.installer.kube_scheduler.host import SchedulerTimeouts
from gpusharectl.installer.progress import DEFAULT_TIMEOUT_S

ON = "on"
UI = f"{PREFIX}UI"
"""Variable of the extender: whether it serves its page."""
POLICY = f"{PREFIX}POLICY"
"""Variable of the extender: which card it chooses."""
TLS = f"{PREFIX}TLS_CERT"
"""Variable of the extender, if it has a certificate."""
DRA = f"{PREFIX}DRA"
"""Variable of the device plugin: whether it offers cards to ResourceClaims."""
ISOLATION = f"{PREFIX}ISOLATION"
"""Variable of the device plugin: what holds containers to their share of a card."""
NO_TIER, AUTO, PRELOAD = "none", "auto", "preload"
ISOLATION_CHOICES = (NO_TIER, "driver", PRELOAD, AUTO)
"""Its values, as ``deviceplugin.allocation.isolation`` has them."""
COMPUTE = f"{PREFIX}COMPUTE"
"""Variable of the exporter: whether containers are held to their cores."""
SHARE = "share"
CARD_CLASSES = f"{PREFIX}CARD_CLASSES"
"""Variable of the webhook: the cluster's RuntimeClasses that provide cards; no option.
"""
Command = TypeVar("Command", bound=Callable[..., Any])
_SEPARATORS = re.compile(r"[\s,]+")


def _option(
    text: str, *flags: str, default: object = None, **attributes: object
) -> Any:  # noqa: ANN401
    """Describe an option; ``flags`` is its name if not the field's.

    The default of a switch is None if it has three states, with ``--no-`` for off.
    """
    described = {"help": text, "default": None if default == () else default}
    metadata = {"flags": flags, "click": described | attributes}
    return field(default=default, metadata=metadata)


def _switch(text: str, *flags: str) -> Any:  # noqa: ANN401
    return _option(text, *flags, default=False)


def _setting(text: str, **attributes: object) -> Any:  # noqa: ANN401
    return _option(f"With the webhook: {text}", **attributes)


def _flags(option: Field[Any]) -> tuple[str, ...]:
    word = option.name.replace("_", "-")
    if option.type == bool | None:
        return option.metadata["flags"] or (f"--{word}/--no-{word}",)
    return option.metadata["flags"] or (f"--{word}",)


def _fields(kind: type) -> list[Field[Any]]:
    """Return a class's own options, then those of both commands."""
    return sorted(
        fields(kind), key=lambda option: option.name not in kind.__annotations__
    )


def add_options(kind: type) -> Callable[[Command], Command]:
    """Add a dataclass's fields to a command as its options."""

    def add(command: Command) -> Command:
        for option in reversed([option for option in _fields(kind) if option.metadata]):
            switch = {"is_flag": True} if option.type is bool else {}
            attributes = {**switch, **option.metadata["click"]}
            command = click.option(*_flags(option), option.name, **attributes)(command)
        return command

    return add


def _typed(options: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the options that differ from their defaults as they are typed."""
    for option in _fields(type(options)):
        value = getattr(options, option.name)
        if is_dataclass(value):
            yield from _typed(value)
        elif option.metadata and value != option.default and option.name != "dry_run":
            on, _, off = _flags(option)[0].partition("/")
            yield on if value is not False else off
            if isinstance(value, tuple):
                yield ",".join(value)
            elif not isinstance(value, bool):
                yield value if isinstance(value, str) else f"{value:g}"


def parse_node_names(text: str) -> tuple[str, ...]:
    """Return the names in a text, separated by commas or spaces, each once.

    >>> parse_node_names(" gpu-1, gpu-2 gpu-1,")
    ('gpu-1', 'gpu-2')
    """
    return tuple(dict.fromkeys(name for name in _SEPARATORS.split(text) if name))


def _nodes(_context: object, _parameter: object, text: str | None) -> tuple[str, ...]:
    names = parse_node_names(text or "")
    if text is not None and not names:
        raise click.UsageError("--nodes names no node; give --nodes gpu-1,gpu-2")
    return names


def _valid(pattern: str, why: str) -> Callable[..., str | None]:
    """Return a callback that accepts an empty text, and texts of this pattern."""

    def check(
        _context: object, parameter: click.Parameter, text: str | None
    ) -> str | None:
        if text and not re.fullmatch(pattern, text):
            empty = f"an empty text, {parameter.opts[0]} '', removes the setting"
            kept = parameter.default is None
            raise click.BadParameter(f"{text!r} {why}{f'; {empty}' if kept else ''}")
        return text

    return check


_IMAGE = {
    "metavar": "IMAGE",
    "callback": _valid(r"[^-\s]\S*", "is no name of an image such as gpushare:1"),
}
_NAME = {
    "metavar": "NAME",
    "callback": _valid(
        r"(?=.{1,253}$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?",
        "is no valid name in Kubernetes: only small letters, digits, - and . are "
        "allowed, as in vcuda-scheduler",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The options of ``check-node``; ``access`` as in ``CommonOptions``."""

    nodes: tuple[str, ...]
    output: str | None = None
    image: str = _option(
        "The image of gpushare that is tried. Default: the one that runs in the "
        "cluster, else the one in manifests/.",
        default="",
        **_IMAGE,
    )
    timeout_s: float = _option(
        "How long the pods may take, such as for the image.",
        "--timeout",
        default=300.0,
        type=click.FloatRange(min=1),
        metavar="SECONDS",
        show_default=True,
    )
    access: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """The webhook's options; None if not given.

    Every field except ``wanted`` is also a variable of the webhook, in capitals.
    """

    wanted: bool | None = _option(
        "Install the admission webhook, or remove it: it rejects impossible requests "
        "when the pod is created, with the reason, and translates pods for Bitfusion. "
        "Without either option it stays as it is.",
        "--with-webhook/--no-webhook",
    )
    void: bool | None = _setting(
        "containers under the RuntimeClass nvidia that request no card see none."
    )
    set_scheduler: str | None = _setting(
        "pods that request cards get this schedulerName.", **_NAME
    )
    set_runtime_class: str | None = _setting(
        "pods that request cards get this RuntimeClass.", **_NAME
    )
    env_from: str | None = _setting(
        "reject envFrom in containers that request cards, since it could remove their "
        "limits; auto, the default, does.",
        metavar="auto|deny|allow",
        callback=_valid("auto|deny|allow", "is none of auto, deny, allow"),
    )
    quotas: bool | None = _setting(
        "pods request all that they get, so that quotas count it: 0 cores become 1, "
        "and whole cards request their memory."
    )
    bitfusion_card_mib: str | None = _setting(
        "the memory of a card, of which Bitfusion pods request a percentage; auto is "
        "the smallest card of the cluster.",
        metavar="N|auto",
        callback=_valid(
            "auto|0*[1-9][0-9]*",
            "is neither auto nor a number of MiB above 0, such as 15258 for a card of "
            "16000 MB",
        ),
    )
    bitfusion_shell: str | None = _setting(
        "the shell that runs a Bitfusion pod's command; default /bin/bash.",
        metavar="PATH",
        callback=_valid(
            r"/\S*", "is no path of a shell in the pods' images, such as /bin/sh"
        ),
    )
    bitfusion_strict: bool | None = _setting(
        "reject what a Bitfusion pod cannot have here, instead of a warning."
    )
    bitfusion_quota: bool | None = _setting(
        "keep bitfusion.io/gpu in pods and on nodes, for quotas that count it."
    )

    def with_preserved(self, there: Mapping[str, str]) -> "WebhookOptions":
        """Fill options that are not given with an installed webhook's variables.

        A switch that is off counts as not given.
        """
        preserved: dict[str, Any] = {}
        for name, option in _SETTINGS.items():
            if getattr(self, option.name) is None:
                text = there.get(name)
                switch = option.type == bool | None
                preserved[option.name] = (
                    (text == ON or None) if switch else text or None
                )
        return replace(self, wanted=self.wanted is not False, **preserved)

    def settings(self) -> Mapping[str, str]:
        """Return the variables for the webhook; none for what is off."""
        values = {
            name: getattr(self, option.name) for name, option in _SETTINGS.items()
        }
        return {
            name: ON if text is True else text for name, text in values.items() if text
        }

    @property
    def settling(self) -> tuple[str, ...]:
        """The given options that make sense only with a webhook."""
        return tuple(
            _flags(option)[0].partition("/")[0]
            for option in _SETTINGS.values()
            if getattr(self, option.name) not in (None, False, "")
        )


_SETTINGS = {
    PREFIX + option.name.upper(): option
    for option in fields(WebhookOptions)
    if option.name != "wanted"
}
QUOTA = f"{PREFIX}BITFUSION_QUOTA"
"""The device plugin has it too: both keep ``bitfusion.io/gpu``, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """The options of both commands; ``access`` are the words that choose the cluster.

    ``command`` is the command's name.
    """

    command: ClassVar[str]
    yes: bool = _switch("Do not ask for confirmation.", "--yes", "-y")
    dry_run: bool = _switch("Show every change as a diff, and change nothing.")
    image: str = _option(
        "The image of gpushare. Default: the one that runs there, else the one in "
        "manifests/.",
        default="",
        **_IMAGE,
    )
    restart: bool = _switch("k3s: restart it, so that its scheduler reads the files.")
    this_node: str = _option(
        "The name of this host in the cluster, if it cannot be found out.",
        default="",
        metavar="NAME",
    )
    timeout_s: float | None = _option(
        "How long one step may wait, such as for images or for kube-scheduler. "
        f"Default: {DEFAULT_TIMEOUT_S:g}, for kube-scheduler "
        f"{SchedulerTimeouts().wait_s:g}.",
        "--timeout",
        type=click.FloatRange(min=1),
        metavar="SECONDS",
    )
    access: tuple[str, ...] = ()

    def again(self) -> str:
        """Return the command that goes on where this one stopped."""
        return shlex.join(["gpusharectl", self.command, *self.access, *_typed(self)])


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions(CommonOptions):
    """The options of ``install``.

    Without ``image``, and with None for ``tls``, ``ui``, ``policy``, ``isolation``,
    ``compute``, ``dra`` and the webhook's options, the present setting is kept.
    ``runtime_class`` None: the device plugin runs under the RuntimeClass nvidia if the
    cluster has it and no chosen node reports that it lacks that runtime.
    """

    command: ClassVar[str] = "install"
    nodes: tuple[str, ...] = _option(
        "The nodes that share their cards.", default=(), metavar="A,B", callback=_nodes
    )
    all_gpu_nodes: bool = _switch(
        "All nodes that show a sign of a GPU share their cards."
    )
    second_scheduler: bool = _switch(
        "Install a second kube-scheduler, called vcuda-scheduler, on a cluster with a "
        "managed control plane."
    )
    scheduler_image: str = _option(
        "With --second-scheduler: the image of kube-scheduler. Default: the cluster's "
        "own.",
        default="",
        **_IMAGE,
    )
    runtime_class: bool | None = _option(
        "Run device plugin and exporter under the RuntimeClass nvidia, or not. "
        "Default: if the cluster has it and no chosen node reports that it lacks that "
        "runtime."
    )
    tls: bool | None = _option(
        "Use mutual TLS between kube-scheduler and the extender, or not. Default: as "
        "installed; not in a first install."
    )
    ui: bool | None = _option(
        "Serve the extender's page for gpusharectl ui, or not. Default: as installed; "
        "not in a first install."
    )
    policy: str | None = _option(
        "The extender's policy for pods that name none. Default: as installed; "
        "first-fit in a first install. With frag, kube-scheduler scores all nodes.",
        type=click.Choice(list(POLICIES)),
    )
    isolation: str | None = _option(
        "What holds containers to their share of a card's memory, on all nodes: "
        "nothing, NVIDIA's driver, or a preloaded library (experimental). auto: the "
        "driver where it can. Default: as installed; none in a first install. Drain "
        "the nodes before you change it.",
        type=click.Choice(ISOLATION_CHOICES),
    )
    compute: str | None = _option(
        "share: hold containers to their cores while others use the card too "
        "(experimental). It needs --isolation preload and --with-monitoring. Default: "
        "as installed; none in a first install.",
        type=click.Choice((NO_TIER, SHARE)),
    )
    dra: bool | None = _option(
        "Offer the cards to ResourceClaims too (DRA, Kubernetes 1.36), or not. It "
        "switches --tls on. Default: as installed; not in a first install."
    )
    force: bool = _switch(
        "With --no-dra: even while pods use claims; kubelet cannot end them then."
    )
    host_only: bool = _switch(
        "Only set up kube-scheduler on the control-plane hosts, for an extender that a "
        "Helm release has installed; no object in the cluster is changed."
    )
    with_monitoring: bool = _switch(
        "Install the exporter too, with dashboards, and rules if the cluster has "
        "Prometheus Operator. Without it, installed monitoring stays as it is."
    )
    webhook: WebhookOptions = field(default_factory=WebhookOptions)

    @property
    def of_objects(self) -> tuple[str, ...]:
        """The given options that are about objects in the cluster."""
        hosts = replace(
            InstallOptions(),
            **{name: getattr(self, name) for name in (*_OF_HOSTS, "access")},
        )
        words, kept = (tuple(_typed(options)) for options in (self, hosts))
        return tuple(
            word for word in words if word.startswith("--") and word not in kept
        )


_OF_HOSTS = ("yes", "dry_run", "restart", "this_node", "timeout_s", "host_only")
"""What an install on hosts only takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallOptions(CommonOptions):
    """The options of ``uninstall``."""

    command: ClassVar[str] = "uninstall"
    force: bool = _switch(
        "Uninstall even while pods hold cards or use claims; their containers go on "
        "running."
    )
    wait: bool = _switch(
        "Wait five minutes until kubelet reports capacity 0, and remove that from the "
        "nodes."
    )
