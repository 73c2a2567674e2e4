"""How k3s starts kube-scheduler: the ``Starter`` that is its ``config.yaml``. Pure.

Ours is one more ``kube-scheduler-arg``. kube-scheduler takes the last ``config=`` of
several, so one that was there can stay where it is.
"""

from typing import Any

import yaml
from yaml.nodes import MappingNode, ScalarNode, SequenceNode

from gpusharectl.scheduler import schedulerflags, yamltext
from gpusharectl.scheduler.obstacle import Obstacle
from gpusharectl.scheduler.starter import Found
from gpusharectl.scheduler.staticpod import Ours

ARGS = "kube-scheduler-arg"
DATA_DIR = "/var/lib/rancher/k3s"
_CREDENTIALS = "server/cred/scheduler.kubeconfig"
_ALWAYS = {"profiling": "false"}
"""A flag that k3s gives itself and a configuration would make ignored."""


class K3sFile:
    """``Starter`` for ``/etc/rancher/k3s/config.yaml``."""

    path = "/etc/rancher/k3s/config.yaml"
    folder = "/etc/rancher/k3s/vcuda"
    cure = "put right what k3s cannot read there"

    def kubeconfig(self, bare: str | None) -> str:
        """Name the one that k3s makes for its kube-scheduler."""
        body = settings(bare)
        told = body.get("data-dir") if isinstance(body, dict) else None
        return f"{str(told or DATA_DIR).rstrip('/')}/{_CREDENTIALS}"

    def edited(self, text: str | None, ours: Ours) -> str | Obstacle:
        """Give the text with our argument as the last one."""
        body = settings(text)
        if isinstance(body, Obstacle):
            return body
        if self.is_edited(text, ours):
            return text or ""
        bare = self.bare(text, ours)
        if isinstance(bare, Obstacle):
            return bare
        made = _with_argument(bare or "", f"config={ours.config}")
        wanted = {**body, ARGS: [*_arguments(settings(bare)), f"config={ours.config}"]}
        return made if settings(made) == wanted else _odd()

    def bare(self, text: str | None, ours: Ours) -> str | Obstacle | None:
        """Give the text without our argument; None where there is nothing else."""
        body = settings(text)
        if isinstance(body, Obstacle):
            return body
        made = _without_argument(text or "", ours)
        kept = [each for each in _arguments(body) if not _is_ours(each, ours)]
        again = settings(made)
        others = {key: value for key, value in body.items() if key != ARGS}
        if _arguments(again) != kept or not isinstance(again, dict):
            return _odd()
        if {key: value for key, value in again.items() if key != ARGS} != others:
            return _odd()
        return None if text is None or (text and not made) else made

    def is_edited(self, text: str | None, ours: Ours) -> bool:
        """Tell whether kube-scheduler is told to read our configuration."""
        arguments = _arguments(settings(text))
        return _flags(arguments).get(schedulerflags.CONFIG) == ours.config

    def found(self, bare: str | None) -> Found | Obstacle:
        """Tell its own configuration, and its flags; k3s runs it on the host."""
        body = settings(bare)
        if isinstance(body, Obstacle):
            return body
        if str(body.get("disable-scheduler", "")).lower() == "true":
            return Obstacle(
                "says disable-scheduler: run gpusharectl install on a server of k3s "
                "that has a scheduler"
            )
        flags = _flags(_arguments(body))
        return Found(flags.get(schedulerflags.CONFIG, ""), {**_ALWAYS, **flags})


def settings(text: str | None) -> dict[str, Any] | Obstacle:
    """Read k3s's settings; none of a file that is not there, or only comments."""
    if not _speaks(text or ""):
        return {}
    root = yamltext.document(text or "")
    if isinstance(root, Obstacle):
        return root
    body: dict[str, Any] = yaml.safe_load(text or "")
    given = body.get(ARGS)
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        return body
    if given is None or isinstance(given, str):
        return body
    return Obstacle(f"has a {ARGS} that is neither a text nor a list of texts")


def _speaks(text: str) -> bool:
    """Tell a text that says something from one of comments and empty lines."""
    lines = (line.strip() for line in text.splitlines())
    return any(line and not line.startswith("#") for line in lines)


def _arguments(body: dict[str, Any] | Obstacle) -> list[str]:
    given = [] if isinstance(body, Obstacle) else body.get(ARGS) or []
    return [given] if isinstance(given, str) else list(given)


def _flags(arguments: list[str]) -> dict[str, str]:
    """Read arguments as k3s hands them on, with dashes or without."""
    return schedulerflags.parsed([f"--{each.lstrip('-')}" for each in arguments])


def _is_ours(argument: str, ours: Ours) -> bool:
    return argument.lstrip("-") == f"config={ours.config}"


def _with_argument(text: str, argument: str) -> str:
    if not _speaks(text):
        start = text if not text or text.endswith("\n") else f"{text}\n"
        return f"{start}{ARGS}:\n- {argument}\n"
    root = yamltext.document(text)
    if isinstance(root, Obstacle):
        return text
    node = yamltext.child(root, ARGS)
    if isinstance(node, ScalarNode) and node.value:
        word = yamltext.raw(text, node)
        return yamltext.replace(text, node, f"[{word}, {argument}]")
    return yamltext.add_item(text, root, ARGS, argument)


def _without_argument(text: str, ours: Ours) -> str:
    if text == _with_argument("", f"config={ours.config}"):
        return ""
    root = yamltext.document(text) if _speaks(text) else None
    if not isinstance(root, MappingNode):
        return text
    node = yamltext.child(root, ARGS)
    if isinstance(node, SequenceNode):
        for item in node.value:
            if isinstance(item, ScalarNode) and _is_ours(item.value, ours):
                dropped = yamltext.drop_item(text, root, ARGS, item)
                return _without_argument(dropped, ours)
    return text


def _odd() -> Obstacle:
    return Obstacle(
        f"is written in a form that cannot be edited without a risk: write {ARGS} as a "
        "plain list, one argument a line, and start again"
    )
