"""Read which ResourceClaims a pod has, and which containers use them. Pure."""

from dataclasses import dataclass

from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Reader


def read_claim_names(pod: Json) -> dict[str, str]:
    """Return the names of a pod's ResourceClaims by the pod's names for them.

    Empty for one that is made from a template and does not exist yet.
    """
    body = Reader(pod)
    made = {
        entry.text("name"): entry.optional_text("resourceClaimName")
        for entry in body.optional_object("status").optional_objects(
            "resourceClaimStatuses"
        )
    }
    return {
        entry.text("name"): entry.optional_text("resourceClaimName")
        or made.get(entry.text("name"), "")
        for entry in body.optional_object("spec").optional_objects("resourceClaims")
    }


@dataclass(frozen=True, slots=True)
class ResourceClaimUse:
    """One container that may use a ResourceClaim of its pod.

    ``claim`` is the claim's name, empty while it does not exist. ``request`` is one of
    its requests, empty for all. ``ends``: it is an init container that ends before the
    next container starts.
    """

    claim: str
    container: str
    request: str = ""
    ends: bool = False


def read_claim_uses(pod: Json) -> tuple[ResourceClaimUse, ...]:
    """Return which containers use which claims of a pod, in the order of the spec."""
    named = read_claim_names(pod)
    if not named:
        return ()
    spec = Reader(pod).optional_object("spec")
    return tuple(
        ResourceClaimUse(
            named.get(use.text("name"), ""),
            container.text("name"),
            use.optional_text("request").partition("/")[0],
            kind == "initContainers"
            and container.optional_text("restartPolicy") != "Always",
        )
        for kind in ("initContainers", "containers")
        for container in spec.optional_objects(kind)
        for use in container.optional_object("resources").optional_objects("claims")
    )
