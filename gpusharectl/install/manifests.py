"""Compose the objects of ``manifests/`` as ``kubectl kustomize`` does. Pure.

Our overlays use resources, components, and JSON patches with a target by kind and name;
nothing else is implemented. A test compares the result with the real kubectl for every
overlay and component (``docs/decisions/0048``).
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import jsonpatch
import yaml

from gpushare.kube.cluster import Json
from gpusharectl.install.options import InstallOptions
from gpusharectl.kube_scheduler.drift import Flavour

OVERLAYS = ("kubeadm", "k3s", "second-scheduler", "with-tls", "k3s-with-tls")
"""Each is a whole cluster."""
MONITORING_OVERLAYS = ("exporter", "monitoring")
"""Can be applied beside one of them; the second contains the first."""
WEBHOOK_OVERLAYS = ("webhook", "webhook-cert-manager")
"""Can be applied beside one of them; the first lacks its certificate."""
BIE = ("bie-daemonset", "bie-deployment")
"""Can be applied alone, for Baidu's edge agent."""
COMPONENTS = ("nvidia-runtime", "tls", "exporter-evict", "webhook-void")
"""Change an overlay; a component's patch without a target there has no effect."""
IMAGE = "gpushare"
"""The name of our image in the manifests."""
WORKLOADS = ("DaemonSet", "Deployment")

SECOND = "second-scheduler"
MONITORING = "monitoring"
WEBHOOK_OVERLAY = "webhook"
BY_CERT_MANAGER = "webhook-cert-manager"
"""The webhook with a certificate that cert-manager makes."""
VOID = "webhook-void"
"""The component that makes the API server ask also about pods without cards."""
ALL = (Flavour.KUBEADM, SECOND, MONITORING, BY_CERT_MANAGER)
"""These together contain every object that an install may have created."""
NVIDIA = "nvidia"
"""The name of NVIDIA's container runtime, and usually of its RuntimeClass."""
BY_RUNTIME_CLASS = "nvidia-runtime"
"""The component that runs the device plugin under that RuntimeClass."""
SCHEDULER = "kube-scheduler"


class ManifestError(ValueError):
    """No such overlay, or a patch of it cannot be applied; the message says which."""


def load(
    overlay: str, *, image: str = "", components: Sequence[str] = ()
) -> tuple[Json, ...]:
    """Return the objects of an overlay in the order in which they are applied.

    ``image`` replaces our image, tag included; ``components`` change the overlay.
    Raises ``ManifestError``.
    """
    wholes = (*OVERLAYS, *MONITORING_OVERLAYS, *WEBHOOK_OVERLAYS, *BIE)
    for name, kind, known in (
        (overlay, "overlay", wholes),
        *((name, "component", COMPONENTS) for name in components),
    ):
        if name not in known:
            raise ManifestError(
                f"there is no {kind} {name!r}; use one of {', '.join(known)}"
            )
    return assemble(files("manifests"), overlay, image=image, components=components)


def assemble(
    root: Traversable, folder: str, *, image: str = "", components: Sequence[str] = ()
) -> tuple[Json, ...]:
    """Compose the kustomization of a folder below ``root``."""
    found = _composed(root, folder, [])
    for name in components:
        changed = _composed(root, name, found)
        if changed == found:
            raise ManifestError(f"component {name} changes nothing in {folder}")
        found = changed

    def put(container: Json) -> Json:
        ours = image and container["image"].partition(":")[0] == IMAGE
        return {**container, "image": image} if ours else container

    return tuple(with_containers(body, put) for body in found)


def _composed(root: Traversable, folder: str, below: list[Json]) -> list[Json]:
    """Return ``below`` with a folder's resources, then its components and patches."""
    (content,) = _documents(root, f"{folder}/kustomization.yaml")
    found = list(below)
    for one in content.get("resources") or ():
        path = posixpath.normpath(f"{folder}/{one}")
        is_folder = root.joinpath(*path.split("/")).is_dir()
        found += _composed(root, path, []) if is_folder else _documents(root, path)
    # In kustomize's order: components first.
    for one in content.get("components") or ():
        found = _composed(root, posixpath.normpath(f"{folder}/{one}"), found)
    for patch in content.get("patches") or ():
        path, target = f"{folder}/{patch['path']}", patch["target"]
        (steps,) = _documents(root, path)
        meant = [body for body in found if _is(body, target)]
        # As in kustomize: a component is for several overlays.
        if len(meant) != 1 and not (content["kind"] == "Component" and not meant):
            raise ManifestError(f"{path}: {len(meant)} objects are {target}, not one")
        found = [
            _patched(body, steps, path) if _is(body, target) else body for body in found
        ]
    return found


def _patched(body: Json, steps: Iterable[Json], path: str) -> Json:
    try:
        found: Json = jsonpatch.apply_patch(body, steps)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise ManifestError(f"{path}: {error}") from error
    return found


def _is(body: Json, target: Json) -> bool:
    return (body["kind"], body["metadata"]["name"]) == (target["kind"], target["name"])


def _documents(root: Traversable, path: str) -> list[Any]:
    text = root.joinpath(*path.split("/")).read_text(encoding="utf-8")
    # With the C library if it is there: 8 times faster.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for one in yaml.load_all(text, Loader=loader) if one is not None]


def overlay_of(kind: Flavour, options: InstallOptions) -> str:
    """Return the overlay; on a host without a scheduler it only serves the checks."""
    if options.second_scheduler:
        return SECOND
    if kind is Flavour.K3S:
        return "k3s-with-tls" if options.tls else Flavour.K3S
    return "with-tls" if options.tls else Flavour.KUBEADM


def with_images(
    manifests: Iterable[Json], running: Mapping[str, str], scheduler: str
) -> tuple[Json, ...]:
    """Let each workload keep the image that it runs now, by its name.

    ``scheduler`` is the image of kube-scheduler's containers, if it is known.
    """

    def keep(body: Json) -> Json:
        own = running.get(body["metadata"]["name"], "")

        def put(container: Json) -> Json:
            image = scheduler if container["name"] == SCHEDULER else own
            return {**container, "image": image} if image else container

        return with_containers(body, put)

    return tuple(map(keep, manifests))


def image_of(manifests: Sequence[Json]) -> str:
    """Return the image of ours that these workloads run; "" if none does."""
    images = (
        str(one["image"]) for one in containers(manifests) if one["name"] != SCHEDULER
    )
    return next(images, "")


def containers(manifests: Iterable[Json]) -> Iterator[Json]:
    """Return the containers of all workloads."""
    for body in manifests:
        if body["kind"] in WORKLOADS:
            yield from body["spec"]["template"]["spec"]["containers"]


def with_containers(body: Json, change: Callable[[Json], Json]) -> Json:
    """Return a workload with changed containers; other objects as they are."""
    if body["kind"] not in WORKLOADS:
        return body
    template = body["spec"]["template"]
    changed = [change(each) for each in template["spec"]["containers"]]
    pod = {**template["spec"], "containers": changed}
    return {**body, "spec": {**body["spec"], "template": {**template, "spec": pod}}}
