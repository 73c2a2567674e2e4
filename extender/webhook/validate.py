"""What is wrong with what a pod asks of cards, field by field. Pure.

What a request means, and which one no card can meet, the extender judges: here each of
its complaints is put to the field that a person wrote, all of them at once.

What a pod must not bring along: forged annotations, and the card variables. Pure.

The device plugin tells a container its card and its share by variables. A pod's own
variables win over those, so they would lift the pod's own limit.
"""

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from posixpath import normpath
from typing import Literal

from extender.pool import Pool
from extender.webhook.pod import APP, EPHEMERAL, INIT, Spot, spots
from gpushare.domain.model import Claim, PodRef, PodRequest, PodUID
from gpushare.domain.policies import Choice
from gpushare.domain.refusal import Refusal, users_words
from gpushare.domain.request import ContainerSpec
from gpushare.kube import codec, names
from gpushare.kube.annotations import card_selector
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.request_cache import Unmeetable, claims_by, containers

_RESOURCES = (names.CORE, names.MEMORY)
_NOBODY = PodRef(PodUID(""), "", "")
_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Judged:
    """What a pod asks, or all that makes it a request that no card can meet."""

    request: PodRequest | None
    """None where there are complaints."""
    complaints: tuple[str, ...] = ()
    summed: bool = False
    """Whether one of them is about the sum of what several containers ask."""


def judged_request(pod: Json) -> Judged:
    """Judge what a pod asks, and put each complaint to the field that says it.

    Cores are judged together, or each container's alone where they are *apart*.
    """
    found = list(_policy(pod))
    try:
        request = codec.pod_request(pod, _NOBODY)
    except Malformed as error:
        return Judged(None, (*found, *(_quantities(pod) or [str(error)])))
    if isinstance(request, Refusal):
        return _refused(pod, request, found)
    return Judged(None, tuple(found)) if found else Judged(request)


def _refused(pod: Json, refusal: Refusal, found: list[str]) -> Judged:
    """Say all that is wrong, of which the refusal is the first that was found."""
    before = len(found)
    wrong = [refusal.detail] if refusal.detail.startswith(names.CONTAINERS) else []
    chosen = card_selector(_annotations(pod))
    if isinstance(chosen, Refusal):
        wrong.append(chosen.detail)
    found += [_of_annotation(detail, pod) for detail in wrong]
    quantities = _quantities(pod)
    # Where a quantity is none, there is nothing to add up.
    cores = [] if quantities else list(_cores(pod, containers(pod)))
    found += quantities or [_of_cores(*each) for each in cores]
    if len(found) == before:
        found.append(_of_annotation(refusal.detail, pod))
    summed = any(len(fields) != 1 for fields, _ in cores)
    return Judged(None, tuple(found), summed)


def pool_warnings(request: PodRequest, pool: Pool) -> Iterator[str]:
    """Say why a pod that is in order may wait for long: no card, or none so large."""
    if not request.claims:
        return
    if pool.has_resource is False:
        yield f"no node of this cluster offers {names.MEMORY}; the pod waits for one"
    largest = pool.largest_units
    if largest is None:
        return
    for claim in request.claims:
        most = largest * max(claim.whole_cards, 1)
        if claim.amount.units > most:
            yield _too_large(claim, most)


def unknown_resources(pod: Json) -> Iterator[str]:
    """Warn of resources that are called like ours and are none."""
    for spot in spots(pod, INIT, APP):
        for name in spot.asked("limits"):
            if name.startswith(names.PREFIX) and name not in _RESOURCES:
                known = " and ".join(_RESOURCES)
                yield f"{spot.path}: {name} is unknown here; known are {known}"


def _too_large(claim: Claim, most: int) -> str:
    cards = claim.whole_cards
    where = f"the {cards} largest cards have" if cards > 1 else "the largest card has"
    return f"{names.MEMORY}: {claim.amount.units} units asked, {where} {most}"


def _policy(pod: Json) -> Iterator[str]:
    wish = _annotations(pod).get(names.POLICY)
    found = None if wish is None else Choice().policy(wish)
    if isinstance(found, Refusal):
        yield f"{_annotation(names.POLICY)}: {found.detail}"


def _quantities(pod: Json) -> list[str]:
    return [text for spot in spots(pod, INIT, APP) for text in _quantities_of(spot)]


def _quantities_of(spot: Spot) -> Iterator[str]:
    limits = spot.asked("limits")
    for part in ("limits", "requests"):
        asked = spot.asked(part)
        for resource in _RESOURCES:
            # The API server copies limits into requests: once is enough.
            copied = part == "requests" and limits.get(resource) == asked.get(resource)
            if asked.get(resource) is None or copied:
                continue
            if complaint := _unmeetable(resource, asked[resource]):
                yield f"{_resource(spot, part, resource)}: {complaint}"


def _unmeetable(resource: str, value: object) -> str:
    """Have the extender's own reading judge one quantity; empty where it is well."""
    alone = {"name": "any", "resources": {"limits": {resource: value}}}
    try:
        containers({"spec": {"containers": [alone]}})
    except Malformed as error:
        return f"{users_words(str(value))} will not do: {error.problem}"
    except Unmeetable as error:
        return _less_its_name(str(error), resource) + _as_written(value)
    return ""


def _as_written(value: object) -> str:
    """Say what a fraction was, which the API server has written in thousandths."""
    number, thousandths, rest = str(value).partition("m")
    if not thousandths or rest or not (number.isascii() and number.isdigit()):
        return ""
    if len(number) > _MOST_DIGITS:
        return ""
    units = int(number) / 1000
    return f" ({value} is {units:g}); ask {math.ceil(units)}"


def _cores(
    pod: Json, specs: list[ContainerSpec]
) -> Iterator[tuple[list[str], Refusal]]:
    """Return what is wrong with cores, each with the fields that ask them."""
    asking = [
        (spot, spec)
        for spot, spec in zip(spots(pod, INIT, APP), specs, strict=True)
        if spec.amount
    ]
    if _annotations(pod).get(names.CONTAINERS) == names.APART:
        groups = [[one] for one in asking]
    else:
        groups = [asking]
    for group in groups:
        found = claims_by([spec for _, spec in group], apart=False)
        if isinstance(found, Refusal):
            with_cores = (spot for spot, spec in group if spec.amount.cores)
            yield [_resource(s, "limits", names.CORE) for s in with_cores], found


def _of_cores(fields: list[str], found: Refusal) -> str:
    """Name the one field that says so many cores, or tell that it is their sum."""
    where = " + ".join(fields)
    if len(fields) != 1:
        where = f"the containers of a pod share one card, and {where}"
    return f"{where}: {found.detail}"


def _of_annotation(detail: str, pod: Json) -> str:
    """Put a complaint of the whole pod to the annotation that it is about."""
    about = [name for name in _annotations(pod) if detail.startswith(f"{name} ")]
    if about:
        return f"{_annotation(about[0])}: {_less_its_name(detail, about[0])}"
    if _annotations(pod).get(names.CONTAINERS) != names.APART:
        return detail
    asking = ", ".join(s.path for s in spots(pod, INIT) if s.is_ours)
    if asking:
        detail = (
            f"{detail} for a card, as {asking} does; take the annotation out, or let "
            "it ask for none"
        )
    return f"{_annotation(names.CONTAINERS)}: {detail}"


def _less_its_name(text: str, name: str) -> str:
    return "it " + text.removeprefix(f"{name} ")


def _annotations(pod: Json) -> Json:
    return (pod.get("metadata") or {}).get("annotations") or {}


def _annotation(name: str) -> str:
    return f'metadata.annotations["{name}"]'


def _resource(spot: Spot, part: str, name: str) -> str:
    return f'{spot.path}.resources.{part}["{name}"]'


EnvFrom = Literal["auto", "allow", "deny"]
ENV_FROM: tuple[EnvFrom, ...] = ("auto", "allow", "deny")

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""What the nvidia container runtime goes by."""
VOID = "void"
"""Its value for no card at all, whatever the image says."""
NONE_VISIBLE = frozenset({"", VOID, "none"})
"""Values that show no card."""
_FAMILIES = ("CUDA_MPS_", "NVIDIA_GPU_MEMORY_", "VCUDA_")
_WRITTEN_BY = {names.PLACEMENT: "extender", names.ACTUAL: "device plugin"}
_NVIDIA = "nvidia"


def forged(pod: Json) -> Iterator[str]:
    """Say which annotations a new pod brings that are for others to write."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    for name, writer in _WRITTEN_BY.items():
        if name in annotations:
            yield (
                f'metadata.annotations["{name}"]: only the {writer} of vcuda writes '
                "it; leave it out of a new pod, as when it is made from a copy"
            )


def covered(pod: Json) -> Iterator[str]:
    """Say which volumes of a pod would hide what a container is told of its share."""
    for spot in spots(pod, INIT, APP):
        for place, mount in enumerate(spot.container.get("volumeMounts") or ()):
            # kubelet takes a path without its first / for the same.
            inside = normpath(f"/{(mount.get('mountPath') or '').lstrip('/')}")
            if spot.is_ours and f"{inside}/".startswith(f"{names.SHARE_FOLDER}/"):
                yield (
                    f"{spot.path}.volumeMounts[{place}].mountPath: the device plugin "
                    f"of vcuda tells a container its share in {names.SHARE_FOLDER}; "
                    "mount the volume elsewhere"
                )


def card_variables(
    pod: Json, env_from: EnvFrom, classes: Container[str], old: Json | None = None
) -> Iterator[str]:
    """Say which variables of a pod that asks for a card could lift its limit.

    ``classes`` are the RuntimeClasses that bring cards and are not called by nvidia's
    name. Debugging containers that ``old`` has already are nobody's business any more.
    """
    if not any(spot.is_ours for spot in spots(pod, INIT, APP)):
        return
    known = {spot.name for spot in spots(old, EPHEMERAL)} if old else set()
    from_all = env_from == "deny" or (env_from == "auto" and brings_cards(pod, classes))
    for spot in spots(pod):
        if spot.kind == EPHEMERAL and spot.name in known:
            continue
        yield from _named(spot)
        if from_all and (spot.is_ours or spot.kind == EPHEMERAL):
            yield from _from_elsewhere(spot)


def brings_cards(pod: Json, classes: Container[str]) -> bool:
    """Tell whether the pod's RuntimeClass shows its containers the cards they name."""
    own = (pod.get("spec") or {}).get("runtimeClassName") or ""
    return bool(own) and (_NVIDIA in own.lower() or own in classes)


def shows_none(variable: Json) -> bool:
    """Tell whether a variable is no more than a refusal to see any card."""
    plain = variable.get("valueFrom") is None
    return (
        plain
        and variable.get("name") == VISIBLE
        and (variable.get("value") or "") in NONE_VISIBLE
    )


def _named(spot: Spot) -> Iterator[str]:
    for place, variable in enumerate(spot.variables):
        name = variable["name"]
        if name != VISIBLE and not name.startswith(_FAMILIES):
            continue
        if not spot.is_ours and shows_none(variable):
            continue
        yield (
            f"{spot.path}.env[{place}]: {users_words(name)} is for the device plugin "
            "of vcuda to set, and would lift the pod's own limit; leave it out"
        )


def _from_elsewhere(spot: Spot) -> Iterator[str]:
    for place, source in enumerate(spot.container.get("envFrom") or ()):
        if _could_name_one(source.get("prefix") or ""):
            yield (
                f"{spot.path}.envFrom[{place}]: could set {VISIBLE}, and so hide the "
                "pod's card or show it others; give it a prefix such as APP_, or name "
                "its variables one by one under env"
            )


def _could_name_one(prefix: str) -> bool:
    """Tell whether some variable of that prefix is one of the card's."""
    return VISIBLE.startswith(prefix) or any(
        family.startswith(prefix) or prefix.startswith(family) for family in _FAMILIES
    )
