"""Which of the shipped manifests are installed, and what of them is asked for. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy

from gpushare.kube.cluster import Json
from gpusharectl.install.choice import Choice
from gpusharectl.install.flavour import Flavour
from gpusharectl.install.nodeview import NodeView

WORKLOADS = ("DaemonSet", "Deployment")
SECOND = "second-scheduler"
MONITORING = "monitoring"
"""The exporter, dashboards, and what Prometheus Operator reads where it is served."""
WEBHOOK = "webhook"
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


def overlay_of(kind: Flavour, choice: Choice) -> str:
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
