"""kube-scheduler's static pod, read: its flags, its image, what it sees of the host.

``SchedulerPod.read(manifest)`` gives it, or says in words why the text is none; the
words want the file's name before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from yaml.nodes import MappingNode, Node, ScalarNode

from gpushare.kube.cluster import Json
from gpusharectl.scheduler import schedulerflags, yamltext
from gpusharectl.scheduler.obstacle import Obstacle

PROGRAM = "kube-scheduler"
CURE = "kubeadm init phase control-plane scheduler writes it anew"
CONFIG_FLAG = f"--{schedulerflags.CONFIG}"


@dataclass(frozen=True, slots=True)
class SchedulerPod:
    """The manifest: as text, as plain data, and as nodes that know their places."""

    text: str
    body: Json
    metadata: MappingNode
    spec: MappingNode
    container: MappingNode

    @classmethod
    def read(cls, text: str) -> "SchedulerPod | Obstacle":
        """Read a manifest."""
        root = yamltext.document(text)
        if isinstance(root, Obstacle):
            return Obstacle(f"{root}; {CURE}")
        metadata, spec = (yamltext.child(root, key) for key in ("metadata", "spec"))
        kind = yamltext.child(root, "kind")
        if not isinstance(kind, ScalarNode) or kind.value != "Pod":
            kind_is = getattr(kind, "value", None)
            return Obstacle(f"is not a Pod, its kind is {kind_is}; {CURE}")
        if not isinstance(metadata, MappingNode) or not isinstance(spec, MappingNode):
            return Obstacle(f"is a Pod without metadata or without a spec; {CURE}")
        found = _scheduler(yamltext.items(yamltext.child(spec, "containers")))
        if found is None:
            return Obstacle(
                f"has no container {PROGRAM} that runs the program {PROGRAM} itself, "
                "not by way of a shell"
            )
        return cls(text, yamltext.data(text), metadata, spec, found)

    @property
    def main(self) -> Json:
        """Give kube-scheduler's container as plain data."""
        return container(self.body)

    @property
    def image(self) -> str:
        """Give kube-scheduler's image."""
        return str(self.main.get("image", ""))

    @property
    def flags(self) -> dict[str, str]:
        """Give kube-scheduler's flags, as ``schedulerflags.parsed`` does."""
        return schedulerflags.parsed(words(self.main))

    @property
    def config(self) -> str:
        """Give the configuration that kube-scheduler reads; "" for none."""
        return self.flags.get(schedulerflags.CONFIG, "")

    def annotation(self, name: str) -> str:
        """Give an annotation; "" for none."""
        return str((self.body["metadata"].get("annotations") or {}).get(name, ""))

    def config_nodes(self) -> list[tuple[str, ScalarNode]]:
        """Give the words that name a configuration, with the key of their list.

        Of ``--config`` and its path in two words it is the path's.
        """
        found, before = [], ""
        for key in ("command", "args"):
            for node in yamltext.items(yamltext.child(self.container, key)):
                if not isinstance(node, ScalarNode):
                    continue
                if node.value.startswith(f"{CONFIG_FLAG}=") or before == CONFIG_FLAG:
                    found.append((key, node))
                before = node.value
        return found

    def on_host(self, path: str) -> str | Obstacle:
        """Say where a file that the pod sees lies on its host."""
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
        return Obstacle(
            f"has {CONFIG_FLAG}={path}, which no hostPath volume of the pod holds: put "
            "the file into a folder of the host and mount that"
        )


def container(body: Json) -> Json:
    """Give kube-scheduler's container of a pod that has one."""
    containers: list[Json] = body["spec"]["containers"]
    return next(each for each in containers if each.get("name") == PROGRAM)


def words(main: Json) -> list[str]:
    """Give the flags of kube-scheduler's container, from ``command`` then ``args``."""
    command = [str(word) for word in main.get("command") or []]
    return [*command[1:], *(str(word) for word in main.get("args") or [])]


def _scheduler(containers: Sequence[Node]) -> MappingNode | None:
    for node in containers:
        name = yamltext.child(node, "name")
        if isinstance(name, ScalarNode) and name.value == PROGRAM:
            command = yamltext.items(yamltext.child(node, "command"))
            first = str(command[0].value) if command else PROGRAM
            runs_it = PurePosixPath(first).name == PROGRAM
            return node if isinstance(node, MappingNode) and runs_it else None
    return None


def _holds(mount: Json, path: str) -> bool:
    at = str(mount.get("mountPath", ""))
    return bool(at) and PurePosixPath(path).is_relative_to(at)
