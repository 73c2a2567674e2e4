"""Read which ResourceClaims a pod has, and what a claim asks of cards. Pure."""

from dataclasses import dataclass

from gpushare.domain.model import NOTHING, UNIT_MIB, Amount
from gpushare.kube.claims.allocated import amount
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed, Reader
from gpushare.kube.names import DRA_CLASS, DRA_CORES, DRA_MEMORY, DRA_UUID


def claims_of(pod: Json) -> dict[str, str]:
    """Return the names of a pod's ResourceClaims by the pod's names for them.

    Empty for one that is made from a template and does not exist yet.
    """
    body = Reader(pod)
    made = {
        one.text("name"): one.optional_text("resourceClaimName")
        for one in body.optional_object("status").optional_objects(
            "resourceClaimStatuses"
        )
    }
    return {
        one.text("name"): one.optional_text("resourceClaimName")
        or made.get(one.text("name"), "")
        for one in body.optional_object("spec").optional_objects("resourceClaims")
    }


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """One container that may use a ResourceClaim of its pod.

    ``claim`` is the claim's name, empty while it does not exist. ``request`` is one of
    its requests, empty for all. ``ends``: it is an init container that ends before the
    next container starts.
    """

    claim: str
    container: str
    request: str = ""
    ends: bool = False


def uses_of(pod: Json) -> tuple[ClaimUse, ...]:
    """Return which containers use which claims of a pod, in the order of the spec."""
    named = claims_of(pod)
    if not named:
        return ()
    spec = Reader(pod).optional_object("spec")
    return tuple(
        ClaimUse(
            named.get(use.text("name"), ""),
            one.text("name"),
            use.optional_text("request").partition("/")[0],
            kind == "initContainers" and one.optional_text("restartPolicy") != "Always",
        )
        for kind in ("initContainers", "containers")
        for one in spec.optional_objects(kind)
        for use in one.optional_object("resources").optional_objects("claims")
    )


def requests_of(claim: Json) -> dict[str, Amount]:
    """Return what each request for our class asks of one card, by its name.

    Requests that must have the same UUID count as one, named ``card-1+card-2``. Where
    a request says nothing it gets the smallest amount. Alternatives
    (``firstAvailable``) are left out. ``Malformed`` names what is not understood.
    """
    found: dict[str, Amount] = {}
    spec = Reader(claim).optional_object("spec").optional_object("devices")
    for one in spec.optional_objects("requests"):
        exactly = one.optional_object("exactly")
        if exactly.optional_text("deviceClassName") != DRA_CLASS:
            continue
        asked = exactly.optional_object("capacity").optional_object("requests")
        least = {DRA_MEMORY: f"{UNIT_MIB}Mi", DRA_CORES: "1"}
        found[one.text("name")] = amount(Reader(least | asked.raw, "requests", one))
    for one in spec.optional_objects("constraints"):
        if one.optional_text("matchAttribute") == DRA_UUID:
            named = one.raw.get("requests") or list(found)
            if type(named) is not list:
                raise Malformed(one.path("requests"), "must be a list of strings")
            if its := [name for name in found if name in named]:
                parts = [found.pop(name) for name in its]
                found["+".join(its)] = sum(parts, NOTHING)
    return found
