"""What an operator asked of ``install`` or ``uninstall``, and which nodes are meant."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpusharectl.install.nodeview import NodeView, named
from gpusharectl.install.webhookchoice import WebhookChoice
from gpusharectl.scheduler.obstacle import Obstacle

DEFAULT_TIMEOUT_S = 900.0
_SEPARATORS = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class Choice:
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
    webhook: WebhookChoice = field(default_factory=WebhookChoice)
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
class Leaving:
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


def split(text: str) -> tuple[str, ...]:
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
