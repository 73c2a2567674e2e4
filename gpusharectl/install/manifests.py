"""What we ship in ``manifests/``, put together as ``kubectl kustomize`` would.

Of kustomize there is what ours use: resources, components, and JSON patches with a
target. Anything else is refused, because left out in silence it would be a difference
between ``gpusharectl install`` and ``kubectl apply -k``.

Which of the shipped manifests are installed, and what of them is asked for. Pure.
"""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.install.cluster_facts import NodeView
from gpusharectl.install.jsonpatch import PatchError, patched
from gpusharectl.install.options import InstallOptions
from gpusharectl.kube_scheduler.drift import Flavour

OVERLAYS = ("kubeadm", "k3s", "second-scheduler", "with-tls", "k3s-with-tls")
"""What a cluster is given as a whole."""
MONITORING_OVERLAYS = ("exporter", "monitoring")
"""What can be applied beside one of them; the second has the first in it."""
WEBHOOK_OVERLAYS = ("webhook", "webhook-cert-manager")
"""What can be applied beside one of them; the first lacks its certificate."""
BIE = ("bie-daemonset", "bie-deployment")
"""What can be applied alone, for Baidu's edge agent."""
COMPONENTS = ("nvidia-runtime", "tls", "exporter-evict", "webhook-void")
"""What can be laid over an overlay. Of a component's patches those count that meet
something there."""
IMAGE = "gpushare"
"""The name of our own image in the manifests, before any registry is put to it."""
WORKLOADS = ("DaemonSet", "Deployment")
_GROUP = "kustomize.config.k8s.io"
_KINDS = {
    "Kustomization": f"{_GROUP}/v1beta1",
    "Component": f"{_GROUP}/v1alpha1",
}
_FEATURES = {"apiVersion", "kind", "resources", "components", "patches"}


class ManifestError(ValueError):
    """Our manifests are not as this loader knows them; the message says where."""


def load(
    overlay: str, *, image: str = "", components: Sequence[str] = ()
) -> tuple[Json, ...]:
    """Give the objects of an overlay, in the order in which they should be applied.

    ``image`` stands in for our own, tag and all; ``components`` are laid over the
    overlay. Raises ``ManifestError``.
    """
    shipped = files("manifests")
    wholes = (*OVERLAYS, *MONITORING_OVERLAYS, *WEBHOOK_OVERLAYS, *BIE)
    for name in components:
        if name not in COMPONENTS:
            raise ManifestError(
                f"there is no component {name!r}; use one of {', '.join(COMPONENTS)}"
            )
    if overlay not in wholes:
        raise ManifestError(
            f"there is no overlay {overlay!r}; use one of {', '.join(wholes)}"
        )
    return assemble(shipped, overlay, image=image, components=components)


def assemble(
    root: Traversable, folder: str, *, image: str = "", components: Sequence[str] = ()
) -> tuple[Json, ...]:
    """Put a folder's kustomization together; paths are ``root``'s."""
    found = _Folder(root, folder, "Kustomization").objects()
    for name in components:
        found = _Folder(root, name, "Component").over(found)
    _unique(found, folder)
    return tuple(_with_image(body, image) for body in found)


class _Folder:
    """One folder with its kustomization."""

    def __init__(self, root: Traversable, path: str, kind: str) -> None:
        self._root = root
        self._path = path
        self._kind = kind
        self._where = posixpath.join(path, "kustomization.yaml")
        self._content = self._only(self._where)
        self._check()

    def objects(self) -> list[Json]:
        """Give its resources with its components and patches over them."""
        found: list[Json] = []
        for one in self._listed("resources"):
            path = self._beside(one)
            if self._is_folder(path):
                found += _Folder(self._root, path, "Kustomization").objects()
            else:
                found += self._documents(path)
        return self._changed(found)

    def over(self, found: list[Json]) -> list[Json]:
        """Lay a component over objects that others brought."""
        if self._listed("resources"):
            raise ManifestError(f"{self._where}: a component of ours has no resources")
        changed = self._changed(found)
        if all(new is old for new, old in zip(changed, found, strict=True)):
            raise ManifestError(f"{self._where}: nothing is there that it changes")
        return changed

    def _changed(self, found: list[Json]) -> list[Json]:
        # In kustomize's order: components first.
        for one in self._listed("components"):
            found = _Folder(self._root, self._beside(one), "Component").over(found)
        for patch in self._listed("patches"):
            found = self._patched(found, patch)
        return found

    def _patched(self, found: list[Json], patch: Any) -> list[Json]:  # noqa: ANN401
        if not isinstance(patch, dict) or set(patch) != {"path", "target"}:
            raise ManifestError(
                f"{self._where}: a patch of ours has path and target, not {patch}"
            )
        path, target = self._beside(patch["path"]), patch["target"]
        if set(target) != {"kind", "name"}:
            raise ManifestError(
                f"{self._where}: a target of ours has kind and name, not {target}"
            )
        steps = self._only(path)
        meant = [one for one in found if _is(one, target)]
        if not meant and self._kind == "Component":
            # As in kustomize; a component is for several overlays.
            return found
        if len(meant) != 1:
            raise ManifestError(
                f"{self._where}: {len(meant)} objects are {target}, instead of one"
            )
        try:
            new = patched(meant[0], steps)
        except PatchError as error:
            raise ManifestError(f"{path}: {error}") from error
        return [new if one is meant[0] else one for one in found]

    def _check(self) -> None:
        if not isinstance(self._content, dict):
            raise ManifestError(f"{self._where}: not a kustomization")
        wanted = {"kind": self._kind, "apiVersion": _KINDS[self._kind]}
        for key, expected in wanted.items():
            if self._content.get(key) != expected:
                raise ManifestError(
                    f"{self._where}: {key} is {self._content.get(key)!r}, "
                    f"not {expected!r}"
                )
        if unknown := sorted(set(self._content) - _FEATURES):
            raise ManifestError(
                f"{self._where}: {', '.join(unknown)} is not known here; ours use "
                f"{', '.join(sorted(_FEATURES))}"
            )

    def _listed(self, feature: str) -> list[Any]:
        found: list[Any] = self._content.get(feature) or []
        return found

    def _beside(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._path, path))

    def _is_folder(self, path: str) -> bool:
        return self._at(path).is_dir()

    def _documents(self, path: str) -> list[Any]:
        try:
            text = self._at(path).read_text(encoding="utf-8")
            # By the C library where it is there: 8 times faster.
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            found = yaml.load_all(text, Loader=loader)
            return [one for one in found if one is not None]
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            said = " ".join(str(error).split())
            raise ManifestError(f"{path}: cannot be read: {said}") from error

    def _only(self, path: str) -> Any:  # noqa: ANN401
        found = self._documents(path)
        if len(found) != 1:
            raise ManifestError(f"{path}: one document is wanted, not {len(found)}")
        return found[0]

    def _at(self, path: str) -> Traversable:
        if path.startswith(("..", "/")):
            raise ManifestError(f"{self._where}: {path} is outside of the manifests")
        return self._root.joinpath(*path.split("/"))


def _is(body: Json, target: Json) -> bool:
    return (body["kind"], body["metadata"]["name"]) == (target["kind"], target["name"])


def _unique(found: Iterable[Json], folder: str) -> None:
    seen: set[Ref] = set()
    for body in found:
        try:
            ref = Ref.of(body)
        except (KeyError, TypeError) as error:
            raise ManifestError(f"{folder}: an object has no {error}") from error
        if ref in seen:
            raise ManifestError(f"{folder}: {ref} is there twice")
        seen.add(ref)


def _with_image(body: Json, image: str) -> Json:
    """Give a workload another image of ours, as kustomize's ``images`` would."""
    if not image or body["kind"] not in WORKLOADS:
        return body
    found = deepcopy(body)
    for container in found["spec"]["template"]["spec"]["containers"]:
        if container["image"].partition(":")[0] == IMAGE:
            container["image"] = image
    return found


SECOND = "second-scheduler"
MONITORING = "monitoring"
"""The exporter, dashboards, and what Prometheus Operator reads where it is served."""
WEBHOOK_OVERLAY = "webhook"
BY_CERT_MANAGER = "webhook-cert-manager"
"""The webhook with a certificate that is not ours to make."""
VOID = "webhook-void"
"""The component by which the API server also asks about pods that ask for no card."""
ALL = (Flavour.KUBEADM, SECOND, MONITORING, BY_CERT_MANAGER)
"""These together name every object that an install may have made."""
NVIDIA = "nvidia"
"""How NVIDIA's runtime is called, and mostly its RuntimeClass."""
BY_RUNTIME_CLASS = "nvidia-runtime"
"""The component that lets the device plugin ask for that class."""
SCHEDULER = "kube-scheduler"
CERTIFICATE = "GPUSHARE_TLS_CERT"
"""What the component ``tls`` gives the extender."""


def overlay_of(kind: Flavour, choice: InstallOptions) -> str:
    """Name the overlay; on a host without a scheduler it serves only to be judged."""
    if choice.second_scheduler:
        return SECOND
    if kind is Flavour.K3S:
        return "k3s-with-tls" if choice.tls else Flavour.K3S
    return "with-tls" if choice.tls else Flavour.KUBEADM


def with_scheduler(manifests: Iterable[Json], image: str) -> tuple[Json, ...]:
    """Put the image of kube-scheduler where one is to run."""

    def put(pod: Json) -> None:
        for container in pod["containers"]:
            if container["name"] == SCHEDULER:
                container["image"] = image

    return tuple(_changed(body, put) for body in manifests)


def with_images(
    manifests: Iterable[Json], running: Mapping[str, str]
) -> tuple[Json, ...]:
    """Let each workload of ours keep the image that it runs, by its name."""

    def keep(body: Json) -> Json:
        image = running.get(body["metadata"]["name"], "")

        def put(pod: Json) -> None:
            for container in pod["containers"]:
                if container["name"] != SCHEDULER:
                    container["image"] = image

        return _changed(body, put) if image else body

    return tuple(keep(body) for body in manifests)


def wants_runtime_class(nodes: Iterable[NodeView], *, there: bool) -> bool:
    """Tell whether the device plugin reaches the driver by the RuntimeClass nvidia.

    It does where the cluster has it, unless one of the nodes says that it has no such
    runtime: the pod would not even be made there.
    """
    return there and all(not node.handlers or NVIDIA in node.handlers for node in nodes)


def image_of(manifests: Sequence[Json]) -> str:
    """Give the image of our own that these workloads run; empty where none does."""
    for body in manifests:
        if body["kind"] in WORKLOADS:
            for container in _pod(body)["containers"]:
                if container["name"] != SCHEDULER:
                    return str(container["image"])
    return ""


def has_tls(manifests: Iterable[Json]) -> bool:
    """Tell whether one of these workloads is given a certificate for the verbs."""
    return any(
        variable["name"] == CERTIFICATE
        for body in manifests
        for container in _pod(body)["containers"]
        for variable in container.get("env") or ()
    )


def scheduler_image(pods: Iterable[Json]) -> str:
    """Give the image that one of these pods runs kube-scheduler by; empty if none."""
    for pod in pods:
        for container in pod["containers"]:
            if container["name"] == SCHEDULER:
                return str(container["image"])
    return ""


def _changed(body: Json, change: Callable[[Json], None]) -> Json:
    if body["kind"] not in WORKLOADS:
        return body
    found = deepcopy(body)
    change(_pod(found))
    return found


def _pod(workload: Json) -> Json:
    pod: Json = workload["spec"]["template"]["spec"]
    return pod
