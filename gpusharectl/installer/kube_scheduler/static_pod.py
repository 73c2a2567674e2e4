"""Read and edit kube-scheduler's static pod; the rest of its text stays. Pure.

``edit_static_pod`` adds ``--config``, the volume and mount of gpushare's folder, and an
annotation whose change makes kubelet restart the pod. ``restore_static_pod`` removes
exactly that and returns the old text, byte for byte. Comments, order and style of
everything else stay; flags that the configuration replaces stay too, since they say the
same. The result is parsed again and compared with what was meant, so a manifest in an
unexpected form is refused.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from yaml.nodes import MappingNode, Node, ScalarNode

from gpushare.kube.cluster import Json
from gpushare.kube.names import PREFIX
from gpushare.yaml_edit import (
    NotEditable,
    YamlText,
    child_of,
    items_of,
    load_yaml,
    text_of,
)
from gpusharectl.installer.kube_scheduler.config import CONFIG, parse_flags
from gpusharectl.installer.kube_scheduler.host_files import Obstacle

PROGRAM = "kube-scheduler"
REMEDY = "to have kubeadm write it again: kubeadm init phase control-plane scheduler"
CONFIG_FLAG = f"--{CONFIG}"


@dataclass(frozen=True, slots=True)
class SchedulerPod:
    """The manifest: as text, as plain data, and as YAML nodes with their positions."""

    yaml: YamlText
    body: Json
    metadata: MappingNode
    spec: MappingNode
    container: MappingNode

    @classmethod
    def read(cls, text: str) -> "SchedulerPod":
        """Parse a manifest; the caller puts its path before an ``Obstacle``'s text."""
        try:
            yaml = YamlText(text)
            root, body = yaml.document, load_yaml(text)
        except NotEditable as error:
            raise Obstacle(f"{error}; {REMEDY}") from error
        metadata, spec = child_of(root, "metadata"), child_of(root, "spec")
        if body.get("kind") != "Pod":
            raise Obstacle(f"is not a Pod, its kind is {body.get('kind')}; {REMEDY}")
        if not isinstance(metadata, MappingNode) or not isinstance(spec, MappingNode):
            raise Obstacle(f"is a Pod without metadata or without a spec; {REMEDY}")
        container = _scheduler(items_of(child_of(spec, "containers")))
        if container is None:
            raise Obstacle(
                f"has no container {PROGRAM} that runs the program {PROGRAM} directly, "
                "without a shell"
            )
        return cls(yaml, body, metadata, spec, container)

    @property
    def main(self) -> Json:
        """kube-scheduler's container as plain data."""
        return scheduler_container(self.body)

    @property
    def image(self) -> str:
        """kube-scheduler's image."""
        return str(self.main.get("image", ""))

    @property
    def flags(self) -> dict[str, str]:
        """kube-scheduler's flags, without dashes."""
        return parse_flags(command_words(self.main))

    @property
    def config(self) -> str:
        """The configuration that kube-scheduler reads; "" for none."""
        return self.flags.get(CONFIG, "")

    def annotation(self, name: str) -> str:
        """Return an annotation's value; "" for none."""
        return str((self.body["metadata"].get("annotations") or {}).get(name, ""))

    def config_nodes(self) -> list[tuple[str, ScalarNode]]:
        """Return the words that name a configuration, with the key of their list.

        If ``--config`` and its path are two words, it is the path's.
        """
        nodes, before = [], ""
        for key in ("command", "args"):
            for node in items_of(child_of(self.container, key)):
                if not isinstance(node, ScalarNode):
                    continue
                if node.value.startswith(f"{CONFIG_FLAG}=") or before == CONFIG_FLAG:
                    nodes.append((key, node))
                before = node.value
        return nodes

    def on_host(self, path: str) -> str:
        """Return the host's path of a file that the pod sees."""
        volumes = {
            each.get("name"): each for each in self.body["spec"].get("volumes") or []
        }
        mounts = [
            each for each in self.main.get("volumeMounts") or [] if _holds(each, path)
        ]
        if mounts:
            mount = max(mounts, key=lambda each: len(str(each["mountPath"])))
            volume = volumes.get(mount.get("name"), {}).get("hostPath") or {}
            if volume.get("path"):
                base = PurePosixPath(str(volume["path"])) / str(
                    mount.get("subPath", "")
                )
                inside = PurePosixPath(path).relative_to(str(mount["mountPath"]))
                return str(base / inside)
        raise Obstacle(
            f"names {path}, which is in no hostPath volume of the pod: put the file "
            "into a folder of the host and mount that folder"
        )


def scheduler_container(body: Json) -> Json:
    """Return kube-scheduler's container of a pod that has one."""
    containers: list[Json] = body["spec"]["containers"]
    return next(each for each in containers if each.get("name") == PROGRAM)


def command_words(main: Json) -> list[str]:
    """Return the flags of kube-scheduler's container: ``command``, then ``args``."""
    command = [str(word) for word in main.get("command") or []]
    return [*command[1:], *(str(word) for word in main.get("args") or [])]


def _scheduler(containers: Sequence[Node]) -> MappingNode | None:
    for node in containers:
        if text_of(child_of(node, "name")) == PROGRAM:
            command = items_of(child_of(node, "command"))
            first = str(command[0].value) if command else PROGRAM
            runs_it = PurePosixPath(first).name == PROGRAM
            return node if isinstance(node, MappingNode) and runs_it else None
    return None


def _holds(mount: Json, path: str) -> bool:
    at = str(mount.get("mountPath", ""))
    return bool(at) and PurePosixPath(path).is_relative_to(at)


VOLUME = "gpushare-scheduler-config"
STAMP = f"{PREFIX}-scheduler-config"
"""Annotation of the pod: a digest of the configuration."""
FORMER = f"{PREFIX}-scheduler-former"
"""Annotation of the pod: the text of the ``--config`` that gpushare's replaces."""


@dataclass(frozen=True, slots=True)
class Additions:
    """What gpushare adds to kube-scheduler's manifest."""

    config: str
    """gpushare's configuration, the same path on the host and in the pod."""
    folder: str
    """The folder that contains it."""
    stamp: str = ""
    """Changes with everything that kube-scheduler reads only at its start. "" is no
    annotation."""

    @property
    def mount(self) -> Json:
        """The mount of gpushare's folder."""
        return {"mountPath": self.folder, "name": VOLUME, "readOnly": True}

    @property
    def volume(self) -> Json:
        """The volume with gpushare's folder."""
        return {"hostPath": {"path": self.folder, "type": "Directory"}, "name": VOLUME}

    def like(self, node: ScalarNode) -> str:
        """Return the configuration in this word's form: with or without the flag."""
        with_flag = node.value.startswith("-")
        return f"{CONFIG_FLAG}={self.config}" if with_flag else self.config


def edit_static_pod(manifest: str, additions: Additions) -> str:
    """Return the manifest with the additions; unchanged if it has them.

    If the pod mounts the folder by itself, that mount stays the only one: the API
    server and kubelet reject two mounts of one path.
    """
    if _has_all(SchedulerPod.read(manifest), additions):
        return manifest
    pod = SchedulerPod.read(restore_static_pod(manifest, additions))
    annotations = _add_flag(pod, additions)
    if additions.stamp:
        annotations[STAMP] = additions.stamp
    if annotations:
        pod.yaml.add_entries(pod.metadata, "annotations", annotations)
    if not _is_mounted(pod, additions):
        pod.yaml.add_item(pod.container, _MOUNTS, additions.mount)
        pod.yaml.add_item(pod.spec, "volumes", additions.volume)
    return _checked(pod, additions, _has_all)


def restore_static_pod(manifest: str, additions: Additions) -> str:
    """Return the manifest without what ``edit_static_pod`` adds, if it is there."""
    pod = SchedulerPod.read(manifest)
    _drop_flag(pod, additions)
    pod.yaml.drop_entries(pod.metadata, "annotations", (STAMP, FORMER))
    for parent, key in ((pod.container, _MOUNTS), (pod.spec, "volumes")):
        items = items_of(child_of(parent, key))
        ours = [item for item in items if text_of(child_of(item, "name")) == VOLUME]
        pod.yaml.drop_items(parent, key, ours)
    return _checked(pod, additions, lambda pod, _: pod.config != additions.config)


def is_static_pod_edited(manifest: str, additions: Additions) -> bool:
    """Return whether kube-scheduler is told to read gpushare's configuration."""
    try:
        return SchedulerPod.read(manifest).config == additions.config
    except Obstacle:
        return False


_MOUNTS = "volumeMounts"
_ODD = (
    "is written in a form that cannot be edited safely (anchors or merged keys): "
    "write it in plain block style, as kubeadm does, and start again"
)


def _checked(
    pod: SchedulerPod,
    additions: Additions,
    is_done: Callable[[SchedulerPod, Additions], bool],
) -> str:
    """Return the edited text; nothing but the additions may differ in it."""
    try:
        made = SchedulerPod.read(pod.yaml.edited())
        former, now = (_without_additions(each.body, additions) for each in (pod, made))
    except (Obstacle, NotEditable):
        raise Obstacle(_ODD) from None
    if former != now or not is_done(made, additions):
        raise Obstacle(_ODD)
    return made.yaml.text


def _add_flag(pod: SchedulerPod, additions: Additions) -> dict[str, str]:
    """Let the flag name gpushare's configuration; return what tells the former one."""
    nodes = pod.config_nodes()
    if nodes:
        node = nodes[-1][1]
        pod.yaml.replace(node, additions.like(node))
        return {FORMER: pod.yaml.raw(node)}
    key = "args" if items_of(child_of(pod.container, "args")) else "command"
    pod.yaml.add_item(pod.container, key, f"{CONFIG_FLAG}={additions.config}")
    return {}


def _drop_flag(pod: SchedulerPod, additions: Additions) -> None:
    former = pod.annotation(FORMER)
    for key, node in pod.config_nodes():
        if node.value == additions.like(node):
            if former:
                pod.yaml.replace(node, former)
            else:
                pod.yaml.drop_items(pod.container, key, [node])
            return


def _has_all(pod: SchedulerPod, additions: Additions) -> bool:
    if pod.config != additions.config or pod.annotation(STAMP) != additions.stamp:
        return False
    mounts = _mounts_below(pod, additions.folder)
    if any(each.get("name") == VOLUME for each in mounts):
        volumes = pod.body["spec"].get("volumes") or []
        return mounts == [additions.mount] and additions.volume in volumes
    return _is_mounted(pod, additions)


def _is_mounted(pod: SchedulerPod, additions: Additions) -> bool:
    """Return whether the pod mounts the host's folder there; refuse another one."""
    mounts = _mounts_below(pod, additions.folder)
    if not mounts:
        return False
    try:
        is_hosts = pod.on_host(additions.config) == additions.config
    except Obstacle:
        is_hosts = False
    there = str(mounts[0]["mountPath"])
    if is_hosts and PurePosixPath(there) == PurePosixPath(additions.folder):
        return True
    raise Obstacle(
        f"mounts something at {there}, where {PROGRAM} has to see the host's folder "
        f"{additions.folder}: remove that mount, or mount exactly that folder there"
    )


def _mounts_below(pod: SchedulerPod, folder: str) -> list[Json]:
    """Return the mounts at or below a folder."""
    return [
        each
        for each in pod.main.get(_MOUNTS) or []
        if PurePosixPath(str(each.get("mountPath", ""))).is_relative_to(folder)
    ]


def _without_additions(body: Json, additions: Additions) -> Json:
    """Return the pod without the additions, and without lists that are then empty."""
    body = copy.deepcopy(body)
    main, metadata, spec = scheduler_container(body), body["metadata"], body["spec"]
    annotations = metadata.get("annotations") or {}
    former = annotations.pop(FORMER, None)
    annotations.pop(STAMP, None)
    metadata["annotations"] = annotations or None
    for holder, key in ((main, "volumeMounts"), (spec, "volumes")):
        kept = [each for each in holder.get(key) or [] if each.get("name") != VOLUME]
        holder[key] = kept or None
    before = [] if former is None else [load_yaml(former)]
    for key in ("command", "args"):
        main[key] = [
            new
            for word in main.get(key) or []
            for new in (before if _names_config(word, additions) else [word])
        ]
    return body


def _names_config(word: object, additions: Additions) -> bool:
    return word in {additions.config, f"{CONFIG_FLAG}={additions.config}"}
