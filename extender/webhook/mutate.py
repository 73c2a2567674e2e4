"""Add to a new pod what it did not specify. Pure, except for the pod it gets.

Each function changes the pod in place, since ``rules`` passes a copy. Each is
idempotent: the API server may ask twice about one pod.
"""

from collections.abc import Container
from contextlib import suppress
from dataclasses import replace

from extender.webhook.pod import APP, EPHEMERAL, INIT, PARTS, Spot, annotations, spots
from extender.webhook.validate import VISIBLE, VOID, brings_cards, shows_none
from gpushare.domain.model import CORES_PER_CARD, Amount
from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.domain.request import ContainerSpec, Role, effective
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.request_cache import Unmeetable, containers

DEFAULT_CORES = 1
"""Cores of a container that asks for memory only (seed 001)."""
_USUAL_SCHEDULER = "default-scheduler"
_NVIDIAS_RESOURCES = "nvidia.com/"


def asks(pod: Json) -> bool:
    """Tell whether any container names a resource of cards."""
    return any(spot.is_ours for spot in spots(pod, INIT, APP))


def lacks_cores(pod: Json) -> bool:
    """Tell whether any container asks for memory and does not mention cores."""
    return any(map(_lacks, spots(pod, INIT, APP)))


def default_cores(pod: Json, *, even_zero: bool = False) -> None:
    """Set one core in each container that asks for memory only.

    With ``even_zero`` also in those that ask for 0 cores. No container gets it if the
    sum would become whole cards or an invalid number: 0 cores are valid too. But at
    least one gets it if the pod would otherwise ask for memory and no core, which no
    quota of cores would count.
    """
    places = _places(pod)
    lacking = [
        spot
        for spot, spec in places
        if spec.amount.units and (_lacks(spot) or (even_zero and not spec.amount.cores))
    ]
    paths = {spot.path for spot in lacking}
    filled = [
        replace(spec, amount=Amount(DEFAULT_CORES, spec.amount.units))
        if spot.path in paths
        else spec
        for spot, spec in places
    ]
    if not _apart(pod) and effective(filled).cores >= CORES_PER_CARD:
        known = effective([spec for _, spec in places]).cores
        lacking = [] if known else lacking[:1]
    for spot in lacking:
        _give(spot, names.CORE, DEFAULT_CORES, beside=names.MEMORY)


def memory_of_whole_cards(pod: Json, card_units: int) -> None:
    """Set the memory of whole cards: as much per card as the smallest card has.

    So the pod fits on the same cards as before. A larger request is kept.
    """
    places = _places(pod)
    for group in [[each] for each in places] if _apart(pod) else [places]:
        cards = effective([spec for _, spec in group]).cores // CORES_PER_CARD
        for index in _by_whole_cards(group):
            spot, spec = group[index]
            own = spec.amount.cores // CORES_PER_CARD * card_units - spec.amount.units
            lack = _lack_of_units(group, index, cards * card_units)
            split = spec.amount.cores % CORES_PER_CARD
            more = lack if split else min(lack, own)
            if more > 0:
                group[index] = spot, _with_units(spec, more)
                _give(spot, names.MEMORY, spec.amount.units + more, beside=names.CORE)


def void(pod: Json, classes: Container[str], old: Json | None) -> list[str]:
    """Hide all cards from containers under nvidia's RuntimeClass that ask for none.

    ``classes`` are more RuntimeClasses that bring cards. Return a warning for each of
    the pod's own variables that is replaced. In a pod that asks for a card such a
    variable is kept, and the rules deny it.
    """
    if not brings_cards(pod, classes):
        return []
    known = {spot.name for spot in spots(old or {}, EPHEMERAL)}
    none = {"name": VISIBLE, "value": VOID}
    warnings = []
    ours = asks(pod)
    for spot in spots(pod, *([INIT, APP] if old is None else [EPHEMERAL])):
        if spot.name in known or not _asks_nothing(spot):
            continue
        variables = spot.variables
        own = [one for one in variables if one["name"] == VISIBLE]
        told = [one for one in own if not shows_none(one)]
        if told and ours:
            continue
        if told or not own:
            found = [none if one in own else one for one in variables]
            spot.container["env"] = found if own else [*found, none]
        if told:
            warnings.append(
                f"{spot.path}: {VISIBLE} was set to {VOID}, because the container asks "
                f"for no {names.MEMORY}"
            )
    return warnings


def scheduler(pod: Json, name: str) -> list[str]:
    """Set the pod's scheduler; return a warning if it names another one."""
    spec = pod["spec"]
    own = spec.get("schedulerName") or _USUAL_SCHEDULER
    if own == name:
        return []
    if own == _USUAL_SCHEDULER:
        spec["schedulerName"] = name
        return []
    return [f"spec.schedulerName: only {name} knows which cards have room"]


def runtime_class(pod: Json, name: str) -> None:
    """Set the pod's RuntimeClass, if it names none."""
    spec = pod["spec"]
    if not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = name


def _lacks(spot: Spot) -> bool:
    resources = spot.resources()
    return names.MEMORY in resources and names.CORE not in resources


def _places(pod: Json) -> list[tuple[Spot, ContainerSpec]]:
    """Return the containers with what each asks for; empty if that is not valid."""
    try:
        specs = containers(pod)
    except (Malformed, Unmeetable):
        return []
    return list(zip(spots(pod, INIT, APP), specs, strict=True))


def _apart(pod: Json) -> bool:
    return annotations(pod).get(names.CONTAINERS) == names.APART


def _by_whole_cards(group: list[tuple[Spot, ContainerSpec]]) -> list[int]:
    """Return the containers that ask for cores: whole cards first, init ones last."""

    def rank(index: int) -> tuple[bool, bool, int]:
        spec = group[index][1]
        cores = spec.amount.cores
        return cores % CORES_PER_CARD > 0, spec.role is Role.INIT, -cores

    asking = (index for index, (_, spec) in enumerate(group) if spec.amount.cores)
    return sorted(asking, key=rank)


def _lack_of_units(
    group: list[tuple[Spot, ContainerSpec]], index: int, wanted: int
) -> int:
    """Return the units that this container lacks for the pod to hold so many."""
    specs = [spec for _, spec in group]
    if effective(specs).units >= wanted:
        return 0
    # The largest sum over time counts: with so many units it includes this container.
    specs[index] = _with_units(specs[index], wanted)
    return 2 * wanted - effective(specs).units


def _with_units(spec: ContainerSpec, more: int) -> ContainerSpec:
    return replace(spec, amount=spec.amount + Amount(units=more))


def _give(spot: Spot, resource: str, count: int, *, beside: str) -> None:
    for part in PARTS:
        if beside in spot.asked(part):
            spot.asked(part)[resource] = str(count)


def _asks_nothing(spot: Spot) -> bool:
    """Tell whether it gets no card from us, or from NVIDIA's plugin or driver."""
    if (spot.container.get("resources") or {}).get("claims"):
        return False
    return not any(
        name.startswith((_NVIDIAS_RESOURCES, names.PREFIX)) and not _is_none(raw)
        for part in PARTS
        for name, raw in spot.asked(part).items()
    )


def _is_none(quantity: object) -> bool:
    """Tell whether it is 0: kubelet then asks no plugin (contracts 2.4)."""
    with suppress(NotAQuantity, NotWhole):
        return whole(quantity) == 0
    return False
