"""What a pod must not bring along: forged annotations, and the card variables. Pure.

The device plugin tells a container its card and its share by variables. A pod's own
variables win over those, so they would lift the pod's own limit.
"""

from collections.abc import Container, Iterator
from posixpath import normpath
from typing import Literal

from extender.podshape import APP, EPHEMERAL, INIT, Spot, spots
from gpushare.domain.summary import users_words
from gpushare.kube import names
from gpushare.kube.cluster import Json

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
