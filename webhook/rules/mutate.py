"""Add to a new pod what it did not specify. Pure, except for the pod it gets.

Each function changes the pod in place, since ``review`` passes a copy. Each is
idempotent: the API server may ask twice about one pod.
"""

from collections.abc import Container
from contextlib import suppress
from dataclasses import replace

from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, Amount, Refusal
from gpushare.domain.quantity import read_whole
from gpushare.domain.request import ContainerSpec, Role, peak_amount
from gpushare.kube import names
from gpushare.kube.annotations import MOST_CARDS, MOST_INSTANCES, read_card_selector
from gpushare.kube.cluster import Json
from gpushare.kube.codec import Unmeetable
from gpushare.kube.json_reader import Malformed
from webhook.pod import (
    APP,
    EPHEMERAL,
    INIT,
    PARTS,
    PodContainer,
    asks_for_cards,
    is_apart,
    pair_with_amounts,
    pod_annotations,
    pod_containers,
)
from webhook.pool import CardPool
from webhook.rules.validate import (
    brings_cards,
    read_mib,
    round_up_to_units,
    shows_none,
)

DEFAULT_CORES = 1
"""Cores of a container that asks for memory only."""
_USUAL_SCHEDULER = "default-scheduler"
_NVIDIAS_RESOURCES = "nvidia.com/"


def replace_mib_by_units(pod: Json) -> list[str]:
    """Replace MiB by units, rounded up; return what each container asks then.

    What is not valid stays, and the rules deny it.
    """
    warnings = []
    for container in pod_containers(pod, INIT, APP):
        mib = read_mib(container)
        if not isinstance(mib, int):
            continue
        units = round_up_to_units(mib)
        for part in PARTS:
            amounts = container.amounts(part)
            if names.MEMORY_MIB in amounts:
                amounts[names.MEMORY] = str(units)
                del amounts[names.MEMORY_MIB]
        more = f" ({units * UNIT_MIB} MiB)" if mib % UNIT_MIB else ""
        warnings.append(f"{container.path}: {mib} MiB are {units} units{more}")
    return warnings


def drop_known_mib(pod: Json) -> list[str]:
    """Remove MiB beside the same memory in units; return why other MiB are denied.

    ``kubectl apply`` adds them again to a pod in which units have replaced them.
    """
    denials = []
    for container in pod_containers(pod, INIT, APP):
        for amounts in map(container.amounts, PARTS):
            mib, known = (
                read_whole(amounts.get(n)) for n in (names.MEMORY_MIB, names.MEMORY)
            )
            if mib is None or known is None:
                continue
            if round_up_to_units(mib) == known:
                del amounts[names.MEMORY_MIB]
                continue
            denials.append(
                f"{container.path}: the memory of a pod cannot be changed; it has "
                f"{known} units, and {mib} MiB are {round_up_to_units(mib)}. Delete "
                "the pod first"
            )
    return list(dict.fromkeys(denials))


def lacks_cores(pod: Json) -> bool:
    """Tell whether any container asks for memory and does not mention cores."""
    return any(map(_lacks, pod_containers(pod, INIT, APP)))


def set_default_cores(pod: Json, *, even_zero: bool = False) -> None:
    """Set one core in each container that asks for memory only.

    With ``even_zero`` also in those that ask for 0 cores. If the cores of a pod whose
    containers share a card would then reach 100 or more, which asks for whole cards or
    is invalid, these containers keep 0 cores. If the pod would then have no core at
    all, the first of them gets one, so that a quota of cores counts the pod.
    """
    places = _places(pod)
    lacking = [
        container
        for container, spec in places
        if spec.amount.units
        and (_lacks(container) or (even_zero and not spec.amount.cores))
    ]
    paths = {container.path for container in lacking}
    filled = [
        replace(spec, amount=Amount(DEFAULT_CORES, spec.amount.units))
        if container.path in paths
        else spec
        for container, spec in places
    ]
    if not is_apart(pod) and peak_amount(filled).cores >= CORES_PER_CARD:
        known = peak_amount([spec for _, spec in places]).cores
        lacking = [] if known else lacking[:1]
    for container in lacking:
        _give(container, names.CORE, DEFAULT_CORES, beside=names.MEMORY)


def set_memory_of_whole_cards(pod: Json, pool: CardPool) -> None:
    """Set the memory of whole cards: as much per card as the smallest that may come.

    So the pod fits on the same cards as before. A larger request is kept.
    """
    chosen = read_card_selector(pod_annotations(pod))
    models = None if isinstance(chosen, Refusal) else chosen
    places = _places(pod)
    for group in [[place] for place in places] if is_apart(pod) else [places]:
        cards = peak_amount([spec for _, spec in group]).cores // CORES_PER_CARD
        card_units = pool.whole_card_units(cards, models) or 0
        if cards > MOST_CARDS * MOST_INSTANCES:
            # No node has so many, and the pod is refused everywhere.
            continue
        missing: int | None = None
        for index in _by_whole_cards(group):
            container, spec = group[index]
            missing_of_container = (
                spec.amount.cores // CORES_PER_CARD * card_units - spec.amount.units
            )
            split = spec.amount.cores % CORES_PER_CARD
            if not split and missing_of_container <= 0:
                continue
            if missing is None or spec.role is not Role.APP:
                missing = _missing_units(group, index, cards * card_units)
            if not missing:
                # Stop here: for each container all of them are summed again, and a pod
                # may have thousands.
                break
            more = missing if split else min(missing, missing_of_container)
            # The app containers run together: what one gets, the others lack less.
            missing = missing - more if spec.role is Role.APP else None
            group[index] = container, _with_units(spec, more)
            _give(container, names.MEMORY, spec.amount.units + more, beside=names.CORE)


def hide_cards(
    pod: Json, classes: Container[str], before_debugging: Json | None
) -> list[str]:
    """Hide all cards from containers under nvidia's RuntimeClass that ask for none.

    ``classes`` are more RuntimeClasses that bring cards. Return a warning for each of
    the pod's own variables that is replaced. In a pod that asks for a card such a
    variable is kept, and the rules deny it.
    """
    if not brings_cards(pod, classes):
        return []
    known = {
        container.name
        for container in pod_containers(before_debugging or {}, EPHEMERAL)
    }
    none = {"name": names.VISIBLE, "value": names.VOID}
    warnings = []
    asks_cards = asks_for_cards(pod)
    for container in pod_containers(
        pod, *([INIT, APP] if before_debugging is None else [EPHEMERAL])
    ):
        if container.name in known or not _asks_nothing(container):
            continue
        variables = container.variables
        visible = [each for each in variables if each["name"] == names.VISIBLE]
        showing = [variable for variable in visible if not shows_none(variable)]
        if showing and asks_cards:
            continue
        if showing or not visible:
            rewritten = [
                none if variable in visible else variable for variable in variables
            ]
            container.raw["env"] = rewritten if visible else [*rewritten, none]
        if showing:
            warnings.append(
                f"{container.path}: {names.VISIBLE} was set to {names.VOID}, because "
                f"the container asks for no {names.MEMORY}"
            )
    return warnings


def set_scheduler(pod: Json, name: str) -> list[str]:
    """Set the pod's scheduler; return a warning if it names another one."""
    spec = pod["spec"]
    named = spec.get("schedulerName") or _USUAL_SCHEDULER
    if named == name:
        return []
    if named == _USUAL_SCHEDULER:
        spec["schedulerName"] = name
        return []
    return [f"spec.schedulerName: only {name} knows which cards have room"]


def set_runtime_class(pod: Json, name: str) -> None:
    """Set the pod's RuntimeClass, if it names none."""
    spec = pod["spec"]
    if not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = name


def _lacks(container: PodContainer) -> bool:
    resources = container.resources()
    return names.MEMORY in resources and names.CORE not in resources


def _places(pod: Json) -> list[tuple[PodContainer, ContainerSpec]]:
    """Return the containers with what each asks for; empty if that is not valid."""
    with suppress(Malformed, Unmeetable):
        return pair_with_amounts(pod)
    return []


def _by_whole_cards(group: list[tuple[PodContainer, ContainerSpec]]) -> list[int]:
    """Return the containers that ask for cores: whole cards first, init ones last."""

    def rank(index: int) -> tuple[bool, bool, int]:
        spec = group[index][1]
        cores = spec.amount.cores
        return cores % CORES_PER_CARD > 0, spec.role is Role.INIT, -cores

    asking = (index for index, (_, spec) in enumerate(group) if spec.amount.cores)
    return sorted(asking, key=rank)


def _missing_units(
    group: list[tuple[PodContainer, ContainerSpec]], index: int, wanted: int
) -> int:
    """Return the units that this container lacks for the pod to hold so many."""
    specs = [spec for _, spec in group]
    if peak_amount(specs).units >= wanted:
        return 0
    # The largest sum over time counts: with so many units it includes this container.
    specs[index] = _with_units(specs[index], wanted)
    return 2 * wanted - peak_amount(specs).units


def _with_units(spec: ContainerSpec, more: int) -> ContainerSpec:
    return replace(spec, amount=spec.amount + Amount(units=more))


def _give(container: PodContainer, resource: str, count: int, *, beside: str) -> None:
    for part in PARTS:
        if beside in container.amounts(part):
            container.amounts(part)[resource] = str(count)


def _asks_nothing(container: PodContainer) -> bool:
    """Tell whether it asks no plugin or driver, gpushare's or NVIDIA's, for a card."""
    if (container.raw.get("resources") or {}).get("claims"):
        return False
    return not any(
        name.startswith((_NVIDIAS_RESOURCES, names.PREFIX)) and not _is_none(raw)
        for part in PARTS
        for name, raw in container.amounts(part).items()
    )


def _is_none(quantity: object) -> bool:
    """Tell whether it is 0: kubelet then asks no plugin (contracts 2.4)."""
    return read_whole(quantity) == 0
