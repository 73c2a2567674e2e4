"""Compose the objects of ``manifests/`` as ``kubectl kustomize`` does, and set them up.

gpushare's overlays use resources, components, and JSON patches with a target by kind
and name; nothing else is implemented. A test compares the result with the real kubectl
for every overlay and component (``docs/decisions/0069``).
"""

import hashlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from gpushare.domain.policies import FRAG
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import (
    DEVICE_PLUGIN,
    EXTENDER,
    PRODUCT,
    SECOND_SCHEDULER,
    SYSTEM,
)
from gpushare.kube.objects import Ref
from gpushare.yaml_edit import load_documents
from gpusharectl.installer.kube_scheduler.files import frag_configuration
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.options import (
    ISOLATION,
    ON,
    POLICY,
    QUOTA,
    SHARE,
    UI,
    InstallOptions,
)

OVERLAYS = ("kubeadm", "k3s", "second-scheduler", "with-tls", "k3s-with-tls")
"""Each is a whole cluster."""
MONITORING_OVERLAYS = ("exporter", "monitoring")
"""Can be applied beside one of them; the second contains the first."""
WEBHOOK_OVERLAYS = ("webhook", "webhook-cert-manager")
"""Can be applied beside one of them; the first lacks its certificate."""
BIE = ("bie-daemonset", "bie-deployment")
"""Can be applied alone, for Baidu's edge agent."""
DRA = "dra"
"""Can be applied beside one of them, with the components ``dra-…`` in that."""
_WITH_DRA = ("dra-extender", "dra-plugin")
_COMPUTE = "exporter-compute"
COMPONENTS = (
    *("nvidia-runtime", "tls", "exporter-evict", _COMPUTE, "webhook-void"),
    *_WITH_DRA,
)
"""Change an overlay; a component's patch without a target there has no effect."""
WORKLOADS = ("DaemonSet", "Deployment")
PLUGIN = Ref("apps/v1", "DaemonSet", DEVICE_PLUGIN, SYSTEM)
HOSTS_EXTENDER = Ref("apps/v1", "DaemonSet", EXTENDER, SYSTEM)
"""The extender beside each control-plane host's kube-scheduler."""

BY_CERT_MANAGER = "webhook-cert-manager"
ALL = ("kubeadm", "second-scheduler", "monitoring", BY_CERT_MANAGER, DRA)
"""These together contain every object that an install may have created."""
NVIDIA = "nvidia"
"""The name of NVIDIA's container runtime, and usually of its RuntimeClass."""
SCHEDULER = "kube-scheduler"
STAMP = f"{names.PREFIX}-configuration"
"""Annotation of the second scheduler's pods: a digest of their configuration."""
_SECOND = Ref("apps/v1", "Deployment", SECOND_SCHEDULER, SYSTEM)


class ManifestError(ValueError):
    """No such overlay, or a patch of it cannot be applied; the message says which."""


def load_manifests(
    overlay: str, *, image: str = "", components: Sequence[str] = ()
) -> tuple[Json, ...]:
    """Return the objects of an overlay in the order in which they are applied.

    ``image`` replaces gpushare's image, tag included; ``components`` change the
    overlay. Raises ``ManifestError``.
    """
    wholes = (*OVERLAYS, *MONITORING_OVERLAYS, *WEBHOOK_OVERLAYS, DRA, *BIE)
    for name, kind, known in (
        (overlay, "overlay", wholes),
        *((name, "component", COMPONENTS) for name in components),
    ):
        if name not in known:
            raise ManifestError(
                f"there is no {kind} {name!r}; use one of {', '.join(known)}"
            )
    return compose_overlay(
        files("manifests"), overlay, image=image, components=components
    )


def compose_overlay(
    root: Traversable, folder: str, *, image: str = "", components: Sequence[str] = ()
) -> tuple[Json, ...]:
    """Compose the kustomization of a folder below ``root``."""
    bodies = _composed(root, folder, [])
    for name in components:
        changed = _composed(root, name, bodies)
        if changed == bodies:
            raise ManifestError(f"component {name} changes nothing in {folder}")
        bodies = changed

    def put(_: str, container: Json) -> Json:
        replaced = image and container["image"].partition(":")[0] == PRODUCT
        return {**container, "image": image} if replaced else container

    return with_containers(bodies, put)


def _composed(root: Traversable, folder: str, below: list[Json]) -> list[Json]:
    """Return ``below`` with a folder's resources, then its components and patches."""
    (content,) = read_documents(root, f"{folder}/kustomization.yaml")
    bodies = list(below)
    for resource in content.get("resources") or ():
        path = posixpath.normpath(f"{folder}/{resource}")
        is_folder = root.joinpath(*path.split("/")).is_dir()
        bodies += _composed(root, path, []) if is_folder else read_documents(root, path)
    # In kustomize's order: components first.
    for component in content.get("components") or ():
        bodies = _composed(root, posixpath.normpath(f"{folder}/{component}"), bodies)
    for patch in content.get("patches") or ():
        path, target = f"{folder}/{patch['path']}", patch["target"]
        (steps,) = read_documents(root, path)
        meant = [body for body in bodies if _is(body, target)]
        # As in kustomize: a component is for several overlays.
        if len(meant) != 1 and not (content["kind"] == "Component" and not meant):
            raise ManifestError(f"{path}: {len(meant)} objects are {target}, not one")
        bodies = [
            _patched(body, steps, path) if _is(body, target) else body
            for body in bodies
        ]
    return bodies


def _patched(body: Json, steps: Iterable[Json], path: str) -> Json:
    """Return an object changed by the JSON patch of the file ``path``.

    Its steps are ``add``, ``replace`` and ``test``: the chart's generator knows these.
    """
    changed = deepcopy(body)
    for step in steps:
        try:
            _apply_step(changed, step)
        except (LookupError, TypeError, ValueError) as error:
            problem = f"cannot {step['op']} {step['path']}: {error!r}"
            raise ManifestError(f"{path}: {problem}") from error
    return changed


def _apply_step(body: Json, step: Json) -> None:
    """Change ``body`` by one step of a JSON patch (RFC 6902)."""
    place: Any = body
    *parents, key = step["path"].split("/")[1:]
    for parent in parents:
        place = place[int(parent) if isinstance(place, list) else parent]
    if isinstance(place, list):
        key = len(place) if key == "-" else int(key)
    match step["op"]:
        case "add" if isinstance(place, list):
            place.insert(key, step["value"])
        case "add":
            place[key] = step["value"]
        case "replace" if place[key] is not None:
            place[key] = step["value"]
        case "test" if place[key] == step["value"]:
            pass
        case _:
            raise ValueError(place[key])


def _is(body: Json, target: Json) -> bool:
    return (body["kind"], body["metadata"]["name"]) == (target["kind"], target["name"])


def read_documents(root: Traversable, path: str) -> list[Any]:
    """Return what a file of the manifests holds; its path is from their folder on."""
    text = root.joinpath(*path.split("/")).read_text(encoding="utf-8")
    return load_documents(text)


def compose_install(
    load: Callable[..., tuple[Json, ...]],
    flavour: Flavour,
    options: InstallOptions,
    *,
    image: str,
    components: Sequence[str] = (),
    by_cert_manager: bool = False,
) -> tuple[Json, ...]:
    """Return all objects of an install, in order and with their settings.

    ``components`` change the workloads on nodes with cards; ``by_cert_manager``:
    cert-manager makes the webhook's certificate. On a host without kube-scheduler the
    overlay only serves the checks.
    """
    overlay = "k3s" if flavour is Flavour.K3S else "kubeadm"
    if options.tls or options.dra:
        overlay = "k3s-with-tls" if flavour is Flavour.K3S else "with-tls"
    if options.second_scheduler:
        overlay = "second-scheduler"
    dra = _WITH_DRA if options.dra else ()
    settings = options.webhook.settings() if options.webhook.wanted else {}
    bodies = load(DRA) if dra else ()
    bodies += load(overlay, image=image, components=(*components, *dra))
    if options.with_monitoring:
        more = (_COMPUTE,) if options.compute == SHARE else ()
        bodies += load("monitoring", image=image, components=(*components, *more))
    if options.webhook.wanted:
        name = BY_CERT_MANAGER if by_cert_manager else "webhook"
        void = ("webhook-void",) if options.webhook.void else ()
        bodies += load(name, image=image, components=void)
    plugin = {QUOTA: settings[QUOTA]} if QUOTA in settings else {}
    plugin |= {ISOLATION: options.isolation} if options.isolation else {}
    extender = {UI: ON} if options.ui else {}
    extender |= {POLICY: options.policy} if options.policy else {}
    bodies = with_settings(bodies, "webhook", settings)
    bodies = with_settings(bodies, "device-plugin", plugin)
    bodies = with_settings(bodies, "extender", extender)
    if options.policy == FRAG:
        bodies = tuple(map(_with_frag_weight, bodies))
    return _with_digest(bodies)


def _with_digest(bodies: Sequence[Json]) -> tuple[Json, ...]:
    """Let a new configuration replace the second scheduler's pods.

    They read it only at their start.
    """
    read = "".join(
        body["data"][key]
        for body in bodies
        if (body["kind"], body["metadata"]["name"]) == ("ConfigMap", SECOND_SCHEDULER)
        for key in sorted(body["data"])
    )
    digest = hashlib.sha256(read.encode()).hexdigest()
    return with_stamp(bodies, _SECOND, STAMP, digest)


def _with_frag_weight(body: Json) -> Json:
    """Let the extender's score outweigh all others in the second kube-scheduler too."""
    if body["kind"] != "ConfigMap":
        return body
    texts = body.get("data") or {}
    changed = {key: frag_configuration(text) for key, text in texts.items()}
    return {**body, "data": changed} if texts else body


def with_images(
    manifests: Iterable[Json], running: Mapping[str, str], scheduler: str
) -> tuple[Json, ...]:
    """Let each workload keep the image that it runs now, by its name.

    ``scheduler`` is the image of kube-scheduler's containers, if it is known.
    """

    def put(workload: str, container: Json) -> Json:
        running_image = running.get(workload, "")
        image = scheduler if container["name"] == SCHEDULER else running_image
        return {**container, "image": image} if image else container

    return with_containers(manifests, put)


def image_of(manifests: Sequence[Json]) -> str:
    """Return the image of gpushare that these workloads run; "" if none does."""
    images = (
        str(container["image"])
        for container in workload_containers(manifests)
        if container["name"] != SCHEDULER
    )
    return next(images, "")


def workload_containers(manifests: Iterable[Json]) -> Iterator[Json]:
    """Return the containers of all workloads."""
    for body in manifests:
        if body["kind"] in WORKLOADS:
            yield from body["spec"]["template"]["spec"]["containers"]


def with_containers(
    manifests: Iterable[Json], change: Callable[[str, Json], Json]
) -> tuple[Json, ...]:
    """Change the containers of all workloads; ``change`` gets the workload's name too.

    Other objects stay as they are.
    """

    def put(body: Json) -> Json:
        name, template = body["metadata"]["name"], body["spec"]["template"]
        changed = [change(name, each) for each in template["spec"]["containers"]]
        pod = {**template["spec"], "containers": changed}
        return {**body, "spec": {**body["spec"], "template": {**template, "spec": pod}}}

    return tuple(put(body) if body["kind"] in WORKLOADS else body for body in manifests)


def container_settings(workloads: Iterable[Json], container: str) -> Mapping[str, str]:
    """Return the variables of all containers of this name."""
    return {
        variable["name"]: variable.get("value", "")
        for each in workload_containers(workloads)
        if each["name"] == container
        for variable in each.get("env") or ()
    }


def with_settings(
    manifests: Iterable[Json], container: str, settings: Mapping[str, str]
) -> tuple[Json, ...]:
    """Set these variables in all containers of this name."""

    def put(_: str, each: Json) -> Json:
        if each["name"] != container:
            return each
        kept = [
            variable for variable in each["env"] if variable["name"] not in settings
        ]
        new = [{"name": key, "value": value} for key, value in settings.items()]
        return {**each, "env": [*kept, *new]}

    return with_containers(manifests, put)


def with_spec(
    manifests: Iterable[Json], workload: Ref, change: Callable[[Json], object]
) -> tuple[Json, ...]:
    """Change a workload's spec in a copy of it."""
    bodies = [
        deepcopy(body) if Ref.of(body) == workload else body for body in manifests
    ]
    for body in bodies:
        if Ref.of(body) == workload:
            change(body["spec"])
    return tuple(bodies)


def with_stamp(
    manifests: Iterable[Json], workload: Ref, key: str, stamp: str
) -> tuple[Json, ...]:
    """Annotate a workload's pods; a changed stamp replaces them."""

    def put(spec: Json) -> None:
        spec["template"]["metadata"].setdefault("annotations", {})[key] = stamp

    return with_spec(manifests, workload, put)
