"""Let a pod that asks for a part of a card get it by a ResourceClaim. Pure.

A pod is translated only if the claim then means exactly what the pod asked: the same
amounts, for the same containers, on one card. Any other pod keeps its request, which
gives it a card of the same ledger (decision 0067), and a warning says why.
"""

from gpushare.domain.model import CORES_PER_CARD, Amount
from gpushare.domain.request import ContainerSpec, Role
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Reader
from gpushare.kube.resource_claims.templates import (
    MOST_PARTS,
    name_request,
    name_template,
    read_template_name,
)
from webhook.bitfusion import resources
from webhook.pod import (
    APP,
    INIT,
    PARTS,
    PodContainer,
    copy_to_change,
    pair_with_amounts,
    pod_annotations,
    pod_containers,
)

CLAIM = "vcuda"
"""The name of the claim in a translated pod's ``spec.resourceClaims``."""
_CHOOSING = (names.MODELS, names.UUIDS, names.POLICY, names.CONTAINERS)
"""Annotations by which a pod chooses cards; a template by its content cannot."""
_OURS = (names.MEMORY, names.CORE)
_SECOND = "with --set-scheduler the extender may not be asked about claims"
_Asking = list[tuple[PodContainer, ContainerSpec]]


def replace_request_by_claim(
    pod: Json, namespace: str, *, second_scheduler: bool
) -> tuple[Json, list[str]]:
    """Return the pod with a claim in place of its request, and what to warn of.

    The pod must be valid. It is returned as it is if it asks for nothing, or if a claim
    could not mean the same. ``second_scheduler``: the webhook gives such pods to
    another scheduler than the usual one.
    """
    pod, warnings = _without_defaults(pod)
    asking = _asking(pod)
    if not asking:
        return pod, warnings
    why = _SECOND if second_scheduler else _why_not(pod, asking)
    amounts = [spec.amount for _, spec in asking]
    name = None if why else name_template(amounts)
    if name is None:
        why = why or "its amounts are too large"
        return pod, [*warnings, f"the pod gets no claim: {why}"]
    after = copy_to_change(pod)
    places = [container.path for container, _ in asking]
    for container in pod_containers(after, INIT, APP):
        for part in PARTS:
            for resource in _OURS:
                container.amounts(part).pop(resource, None)
        if container.path in places:
            number = places.index(container.path)
            _with_claim(container, name_request(number, len(places)))
    claim = {"name": CLAIM, "resourceClaimTemplateName": name}
    spec = after["spec"]
    spec["resourceClaims"] = [*(spec.get("resourceClaims") or ()), claim]
    make = f"gpusharectl claim-template {name} | kubectl -n {namespace} apply -f -"
    return after, [f"it gets a claim; create its template: {make}"]


def _why_not(pod: Json, asking: _Asking) -> str:
    """Say why no claim means what the pod asks; empty if one does."""
    spec = Reader(pod).object("spec")
    annotations = pod_annotations(pod)
    chosen = [name for name in _CHOOSING if name in annotations]
    if chosen:
        return f"a claim cannot express {chosen[0]}"
    if resources.STATUS in annotations:
        return "it was written for Bitfusion"
    if spec.optional_text("nodeName"):
        return "with spec.nodeName no scheduler would allocate one"
    if any(
        claim.optional_text("name") == CLAIM
        for claim in spec.optional_objects("resourceClaims")
    ):
        return f"spec.resourceClaims already has one with the name {CLAIM}"
    if len(asking) > MOST_PARTS:
        return f"more than {MOST_PARTS} containers ask for a part of a card"
    for container, requested in asking:
        if requested.role is Role.INIT:
            return f"{container.path} ends first, but a claim keeps its part"
        if not (requested.amount.units and requested.amount.cores):
            least = "a claim has at least 1 of each"
            return f"{container.path} asks for 0 units or 0 cores; {least}"
    total = sum((requested.amount for _, requested in asking), Amount())
    if total.cores >= CORES_PER_CARD:
        return "it asks for whole cards, and a claim does not get all their memory"
    return ""


def _asking(pod: Json) -> _Asking:
    return [pair for pair in pair_with_amounts(pod) if pair[1].amount]


def _without_defaults(pod: Json) -> tuple[Json, list[str]]:
    """Set to 0 what a container asks beside the part that its claim has.

    When the webhook has changed a pod, the API server adds the defaults of a LimitRange
    again. They are not removed, since a LimitRange with a maximum demands a value.
    """
    claims = Reader(pod).object("spec").optional_objects("resourceClaims")
    if not any(
        claim.optional_text("name") == CLAIM
        and read_template_name(claim.optional_text("resourceClaimTemplateName"))
        for claim in claims
    ):
        return pod, []
    twice = {container.path for container, _ in _asking(pod) if _has_part(container)}
    after = copy_to_change(pod) if twice else pod
    for container in pod_containers(after, INIT, APP):
        for part in PARTS if container.path in twice else ():
            amounts = container.amounts(part)
            amounts.update((name, "0") for name in _OURS if name in amounts)
    return after, [
        f"{path}: it has its part of a card by a claim; its own request is set to 0"
        for path in sorted(twice)
    ]


def _has_part(container: PodContainer) -> bool:
    used = container.raw["resources"].get("claims") or ()
    return any(claim.get("name") == CLAIM for claim in used)


def _with_claim(container: PodContainer, request: str) -> None:
    kept = container.raw["resources"]
    used = {"name": CLAIM, "request": request}
    kept["claims"] = [*(kept.get("claims") or ()), used]
