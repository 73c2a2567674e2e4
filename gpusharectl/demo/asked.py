"""What the containers of a pod ask of devices, in the order of admission. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.domain.quantity import whole
from gpushare.kube.fields import Reader


@dataclass(frozen=True, slots=True)
class Asked:
    """One container: its limits on extended resources, in whole numbers.

    ``ends`` is true of an init container that is over before the pod's others begin, so
    that they take over its devices; a sidecar keeps its own.
    """

    name: str
    amounts: Mapping[str, int]
    ends: bool = False


def asked_of(pod: Reader) -> list[Asked]:
    """Read a pod's containers, each init container first, then each container.

    Limits, since kubelet looks at nothing else: requests equal them (contracts 5).
    """
    spec = pod.object("spec")
    return [
        Asked(one.text("name"), _amounts(one), ends=_ends(one))
        for one in spec.optional_objects("initContainers")
    ] + [
        Asked(one.text("name"), _amounts(one))
        for one in spec.optional_objects("containers")
    ]


def _ends(init: Reader) -> bool:
    return init.optional_text("restartPolicy") != "Always"


def _amounts(container: Reader) -> dict[str, int]:
    limits = container.optional_object("resources").optional_object("limits").raw
    # A domain in the name is what makes a resource an extended one.
    return {name: whole(raw) for name, raw in limits.items() if "/" in name}
