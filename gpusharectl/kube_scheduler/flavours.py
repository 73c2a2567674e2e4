"""How kube-scheduler is started on a host: all that kubeadm and k3s differ in.

``KubeadmFile`` and ``K3sFile`` are the two.

How kubeadm starts kube-scheduler: the ``Starter`` that is its static pod. Pure.

How k3s starts kube-scheduler: the ``Starter`` that is its ``config.yaml``. Pure.

Ours is one more ``kube-scheduler-arg``. kube-scheduler takes the last ``config=`` of
several, so one that was there can stay where it is.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import yaml
from yaml.nodes import MappingNode, ScalarNode, SequenceNode

from gpusharectl.kube_scheduler import flags as schedulerflags
from gpusharectl.kube_scheduler import static_pod, yaml_edit
from gpusharectl.kube_scheduler.host_files import Obstacle
from gpusharectl.kube_scheduler.static_pod import CURE, Ours, SchedulerPod


@dataclass(frozen=True, slots=True)
class Found:
    """What kube-scheduler has been reading before us."""

    config: str
    """Its own configuration on the host; "" for none."""
    flags: dict[str, str]


class Starter(Protocol):
    """The file that tells how kube-scheduler is started. Pure; None is no file."""

    path: str
    folder: str
    """Where our files are to lie."""
    cure: str
    """What helps where the file is spoiled."""

    def kubeconfig(self, bare: str | None) -> str:
        """Give kube-scheduler's, where none of its flags tells it; else ""."""
        ...

    def edited(self, text: str | None, ours: Ours) -> str | Obstacle:
        """Give the text with our configuration; itself where it has it."""
        ...

    def bare(self, text: str | None, ours: Ours) -> str | Obstacle | None:
        """Give the text without what is ours; None where nothing is left."""
        ...

    def is_edited(self, text: str | None, ours: Ours) -> bool:
        """Tell whether kube-scheduler is told to read our configuration."""
        ...

    def found(self, bare: str | None) -> Found | Obstacle:
        """Tell what a text without ours makes kube-scheduler read."""
        ...


_ABSENT = Obstacle(
    "is not there: this is no control-plane node that kubeadm has made; run "
    "gpusharectl install on one"
)


class KubeadmFile:
    """``Starter`` for ``/etc/kubernetes/manifests/kube-scheduler.yaml``."""

    path = "/etc/kubernetes/manifests/kube-scheduler.yaml"
    folder = "/etc/kubernetes/vcuda"
    cure = CURE

    def kubeconfig(self, bare: str | None) -> str:  # noqa: ARG002
        """Leave it to the flags, where kubeadm always names it."""
        return ""

    def edited(self, text: str | None, ours: Ours) -> str | Obstacle:
        """Give the manifest with our configuration."""
        return _ABSENT if text is None else static_pod.edited(text, ours)

    def bare(self, text: str | None, ours: Ours) -> str | Obstacle | None:
        """Give the manifest without it."""
        return None if text is None else static_pod.taken_out(text, ours)

    def is_edited(self, text: str | None, ours: Ours) -> bool:
        """Tell whether kube-scheduler is told to read our configuration."""
        return text is not None and static_pod.is_edited(text, ours)

    def found(self, bare: str | None) -> Found | Obstacle:
        """Tell its own configuration, as the host names it, and its flags."""
        pod = _ABSENT if bare is None else SchedulerPod.read(bare)
        if isinstance(pod, Obstacle):
            return pod
        config = pod.on_host(pod.config) if pod.config else ""
        return config if isinstance(config, Obstacle) else Found(config, pod.flags)


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
    root = yaml_edit.document(text or "")
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
    root = yaml_edit.document(text)
    if isinstance(root, Obstacle):
        return text
    node = yaml_edit.child(root, ARGS)
    if isinstance(node, ScalarNode) and node.value:
        word = yaml_edit.raw(text, node)
        return yaml_edit.replace(text, node, f"[{word}, {argument}]")
    return yaml_edit.add_item(text, root, ARGS, argument)


def _without_argument(text: str, ours: Ours) -> str:
    if text == _with_argument("", f"config={ours.config}"):
        return ""
    root = yaml_edit.document(text) if _speaks(text) else None
    if not isinstance(root, MappingNode):
        return text
    node = yaml_edit.child(root, ARGS)
    if isinstance(node, SequenceNode):
        for item in node.value:
            if isinstance(item, ScalarNode) and _is_ours(item.value, ours):
                dropped = yaml_edit.drop_item(text, root, ARGS, item)
                return _without_argument(dropped, ours)
    return text


def _odd() -> Obstacle:
    return Obstacle(
        f"is written in a form that cannot be edited without a risk: write {ARGS} as a "
        "plain list, one argument a line, and start again"
    )
