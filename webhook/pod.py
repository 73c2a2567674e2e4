"""Check the types of a new pod's fields, and find its containers. Pure.

An API server sends valid pods only. Other objects are refused here, by field, so that
the rules need no checks of types.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpushare.domain.request import ContainerSpec
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.codec import read_containers
from gpushare.kube.json_reader import Malformed, Reader

INIT, APP, EPHEMERAL = "initContainers", "containers", "ephemeralContainers"
_KINDS = (INIT, APP, EPHEMERAL)
PARTS = ("requests", "limits")


class PodContainer(NamedTuple):
    """One container of a pod: a tuple, because each review makes a dozen."""

    kind: str
    place: int
    raw: Json

    @property
    def path(self) -> str:
        """Where it is, such as ``spec.containers[0]``."""
        return f"spec.{self.kind}[{self.place}]"

    def resource_path(self, part: str, name: str) -> str:
        """Return where a resource is, under ``requests`` or ``limits``."""
        return f'{self.path}.resources.{part}["{name}"]'

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.raw.get("name", ""))

    @property
    def variables(self) -> list[Json]:
        """Its environment variables, as written in the pod."""
        return self.raw.get("env") or []

    def amounts(self, part: str) -> Json:
        """Return the resources under ``requests`` or ``limits``."""
        return (self.raw.get("resources") or {}).get(part) or {}

    def resources(self) -> set[str]:
        """Return the names of all resources in its requests and limits."""
        return {name for part in PARTS for name in self.amounts(part)}

    @property
    def is_ours(self) -> bool:
        """Whether it names cores or memory of a card, even 0 of it."""
        return any(
            names.MEMORY in amounts
            or names.CORE in amounts
            or names.MEMORY_MIB in amounts
            for amounts in map(self.amounts, PARTS)
        )


def pod_annotations(pod: Json) -> dict[str, str]:
    """Return the pod's annotations, empty if it has none."""
    return (pod.get("metadata") or {}).get("annotations") or {}


def pod_containers(pod: Json, *kinds: str) -> Iterator[PodContainer]:
    """Yield the containers of these kinds, or all, in kubelet's order."""
    spec = pod.get("spec") or {}
    for kind in kinds or _KINDS:
        for place, container in enumerate(spec.get(kind) or ()):
            yield PodContainer(kind, place, container)


def asks_for_cards(pod: Json) -> bool:
    """Tell whether any container names a resource of cards."""
    return any(container.is_ours for container in pod_containers(pod, INIT, APP))


def is_apart(pod: Json) -> bool:
    """Tell whether each container may have its own card."""
    return pod_annotations(pod).get(names.CONTAINERS) == names.APART


def pair_with_amounts(pod: Json) -> list[tuple[PodContainer, ContainerSpec]]:
    """Return each container with what it asks; raise as ``read_containers`` does."""
    containers = pod_containers(pod, INIT, APP)
    return list(zip(containers, read_containers(pod), strict=True))


def names_mib(pod: Json) -> bool:
    """Tell whether any container asks for memory in MiB; few do, and all are asked."""
    containers = (
        container for kind in (INIT, APP) for container in pod["spec"].get(kind) or ()
    )
    return any(
        names.MEMORY_MIB in (resources.get(part) or ())
        for resources in (container.get("resources") for container in containers)
        if resources
        for part in PARTS
    )


def copy_to_change(pod: Json) -> Json:
    """Copy the parts of a pod that ``mutate`` may change; all else is shared."""
    spec = {**pod["spec"]}
    for kind in _KINDS:
        if spec.get(kind):
            spec[kind] = [_copy_container(container) for container in spec[kind]]
    return {**pod, "spec": spec}


def _copy_container(container: Json) -> Json:
    copied = {**container}
    if copied.get("resources"):
        resources = copied["resources"] = {**copied["resources"]}
        for part in PARTS:
            if resources.get(part):
                resources[part] = {**resources[part]}
    return copied


def insist_on_shape(pod: Json) -> None:
    """Raise ``Malformed`` unless every field that the rules read has the right type.

    Except quantities: ``validate`` reports those.
    """
    top = Reader(pod)
    metadata = top.optional_object("metadata")
    _optional_texts(metadata, "name", "generateName", "namespace")
    _texts(metadata, "annotations")
    _texts(metadata, "labels")
    spec = top.object("spec")
    _optional_texts(spec, "schedulerName", "runtimeClassName", "nodeName")
    _texts(spec, "nodeSelector")
    for volume in spec.optional_objects("volumes"):
        _optional_texts(volume, "name")
    for kind in _KINDS:
        for container in spec.optional_objects(kind):
            _container(container)
    if spec.raw.get("affinity") is not None:
        _affinity(spec.object("affinity"))


def _container(container: Reader) -> None:
    _optional_texts(container, "name", "image", "restartPolicy")
    _list_of_texts(container, "command")
    _list_of_texts(container, "args")
    for variable in _unusual(container, "env", _is_plain_variable):
        variable.text("name")
        variable.optional_text("value")
        variable.optional_object("valueFrom")
    for source in container.optional_objects("envFrom"):
        source.optional_text("prefix")
    for mount in _unusual(container, "volumeMounts", _is_plain_mount):
        _optional_texts(mount, "name", "mountPath", "subPath")
    if container.raw.get("resources") is not None:
        resources = container.object("resources")
        resources.optional_objects("claims")
        for part in PARTS:
            resources.optional_object(part)


def _unusual(reader: Reader, key: str, is_plain: Callable[[Any], bool]) -> list[Reader]:
    """Read a list of objects for a closer check; empty if all are plain.

    Every pod is checked, some have hundreds, and a ``Reader`` costs ten times as much
    as a check of types.
    """
    items = reader.raw.get(key)
    if items is None or (type(items) is list and all(map(is_plain, items))):
        return []
    return reader.optional_objects(key)


def _is_plain_variable(variable: Any) -> bool:  # noqa: ANN401
    return (
        type(variable) is dict
        and type(variable.get("name")) is str
        and type(variable.get("value")) is str
        and variable["name"] != ""
        and "valueFrom" not in variable
    )


def _is_plain_mount(mount: Any) -> bool:  # noqa: ANN401
    return (
        type(mount) is dict
        and type(mount.get("name")) is str
        and type(mount.get("mountPath")) is str
        and "subPath" not in mount
    )


def _affinity(affinity: Reader) -> None:
    node = affinity.optional_object("nodeAffinity")
    required = node.optional_object("requiredDuringSchedulingIgnoredDuringExecution")
    for term in required.optional_objects("nodeSelectorTerms"):
        for key in ("matchExpressions", "matchFields"):
            for expression in term.optional_objects(key):
                expression.text("key")
                expression.text("operator")
                _list_of_texts(expression, "values")


def _optional_texts(reader: Reader, *keys: str) -> None:
    for key in keys:
        if type(reader.raw.get(key)) is not str:
            reader.optional_text(key)


def _texts(reader: Reader, key: str) -> None:
    if reader.raw.get(key) is None:
        return
    for name, value in reader.object(key).raw.items():
        if type(value) is not str:
            raise Malformed(reader.path(f'{key}["{name}"]'), "must be a string")


def _list_of_texts(reader: Reader, key: str) -> None:
    texts = reader.raw.get(key)
    if texts is None:
        return
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise Malformed(reader.path(key), "must be a list of strings")
