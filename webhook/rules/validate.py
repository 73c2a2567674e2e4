"""Find what is wrong with a pod's request for cards, field by field. Pure.

The extender's own code (``kube.codec``) judges a request. Here each of its complaints
is assigned to the field that a person wrote, and all are reported at once.

Also find what a pod must not bring: annotations that only gpushare writes, and
variables or volumes that would override those by which the device plugin tells a
container its card and its share, and so lift the pod's limit.
"""

import math
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import product
from posixpath import basename, normpath
from typing import Literal

from gpushare.domain.model import (
    UNIT_MIB,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
    clean_text,
)
from gpushare.domain.policies import PolicyChoice
from gpushare.domain.quantity import (
    NotAQuantity,
    NotWhole,
    is_in_bytes,
    parse_mebibytes,
    parse_whole,
)
from gpushare.kube import codec, names
from gpushare.kube.annotations import read_card_selector
from gpushare.kube.cluster import Json
from gpushare.kube.codec import (
    Unmeetable,
    build_claims_by_annotation,
    read_containers,
)
from gpushare.kube.json_reader import Malformed
from webhook.pod import (
    APP,
    EPHEMERAL,
    INIT,
    PodContainer,
    asks_for_cards,
    is_apart,
    pair_with_amounts,
    pod_annotations,
    pod_containers,
)
from webhook.pool import CardPool

_RESOURCES = (names.CORE, names.MEMORY)
_KNOWN = (*_RESOURCES, names.MEMORY_MIB)
_NOBODY = PodRef(PodUID(""), "", "")
_MOST_MIB = 10**7
"""About 10 TiB. A larger number was meant as bytes: the API server writes 5G for it."""
_THOUSANDTHS = re.compile(r"([0-9]{1,12})m")


@dataclass(frozen=True, slots=True)
class JudgedRequest:
    """What a pod asks for, or all reasons why no card can meet it."""

    request: PodRequest | None
    """None if there are complaints."""
    complaints: tuple[str, ...] = ()
    summed: bool = False
    """Whether one of them is about the sum of several containers."""


def judge_request(pod: Json) -> JudgedRequest:
    """Judge what a pod asks for, with each complaint assigned to its field.

    Cores are judged as a sum, or per container if the containers are *apart*.
    """
    complaints = list(_policy(pod))
    try:
        request = codec.read_pod_request(pod, _NOBODY)
    except Malformed as error:
        return JudgedRequest(None, (*complaints, *(_quantities(pod) or [str(error)])))
    if isinstance(request, Refusal):
        return _refused(pod, request, complaints)
    return (
        JudgedRequest(None, tuple(complaints)) if complaints else JudgedRequest(request)
    )


def _refused(pod: Json, refusal: Refusal, complaints: list[str]) -> JudgedRequest:
    """Return all that is wrong; the refusal is only the first that was found."""
    before = len(complaints)
    wrong = [refusal.detail] if refusal.detail.startswith(names.CONTAINERS) else []
    chosen = read_card_selector(pod_annotations(pod))
    if isinstance(chosen, Refusal):
        wrong.append(chosen.detail)
    complaints += [_of_annotation(detail, pod) for detail in wrong]
    quantities = _quantities(pod)
    # Quantities that cannot be read cannot be added.
    cores = [] if quantities else list(_cores(pod))
    complaints += quantities or [_of_cores(*each) for each in cores]
    if len(complaints) == before:
        complaints.append(_of_annotation(refusal.detail, pod))
    summed = any(len(fields) != 1 for fields, _ in cores)
    return JudgedRequest(None, tuple(complaints), summed)


def warn_of_waits(request: PodRequest, pool: CardPool) -> Iterator[str]:
    """Warn that a valid pod may wait for long: there is no card, or none so large."""
    if not request.claims:
        return
    if pool.has_resource is False:
        yield f"no node of this cluster offers {names.MEMORY}; the pod waits for one"
    largest = pool.largest_units
    if largest is None:
        return
    for claim in request.claims:
        cards, units = max(claim.whole_cards, 1), claim.amount.units
        have = f"{cards} largest cards have" if cards > 1 else "largest card has"
        if units > largest * cards:
            lack = f"{units} units are asked, but the {have} {largest * cards}"
            yield f"{names.MEMORY}: {lack}"


def warn_of_unknown_resources(pod: Json) -> Iterator[str]:
    """Warn of unknown resources with the prefix of gpushare's resources."""
    for container in pod_containers(pod, INIT, APP):
        for name in container.amounts("limits"):
            if name.startswith(names.PREFIX) and name not in _KNOWN:
                known = " and ".join(_RESOURCES)
                problem = f"{name} is not a known resource; known are {known}"
                yield f"{container.path}: {problem}"


def read_mib(container: PodContainer) -> int | str | None:
    """Return the MiB that a container asks for, or why that is not valid.

    None if it does not name them.
    """
    given = {
        part: container.amounts(part)[names.MEMORY_MIB]
        for part in ("limits", "requests")
        if names.MEMORY_MIB in container.amounts(part)
    }
    if not given:
        return None
    part, value = next(iter(given.items()))
    answer: int | str = _mib(value)
    # A LimitRange with a maximum of units needs a default, and 0 is the usual one.
    if any(container.amounts(part).get(names.MEMORY, "0") != "0" for part in given):
        answer = (
            f"{names.MEMORY} asks for the same memory in units; remove one of them, "
            "from the pod or from a LimitRange of the namespace that adds it"
        )
    elif any(str(other) != str(value) for other in given.values()):
        answer = "its request and its limit must be equal"
    if isinstance(answer, int):
        return answer
    return f"{container.resource_path(part, names.MEMORY_MIB)}: {answer}"


def round_up_to_units(mib: int) -> int:
    """Return the units that hold so many MiB.

    >>> [round_up_to_units(mib) for mib in (0, 1, 256, 257, 5000)]
    [0, 1, 1, 2, 20]
    """
    return -(-mib // UNIT_MIB)


def deny_mib_left(pod: Json) -> Iterator[str]:
    """Yield a denial for each container whose MiB were not turned into units."""
    for container in pod_containers(pod, INIT, APP):
        mib = read_mib(container)
        if isinstance(mib, str):
            yield mib
        elif mib is not None:
            yield (
                f"{container.path}: no node offers {names.MEMORY_MIB}, and it was "
                "added after this webhook had turned MiB into units; let it be added "
                f"as {names.MEMORY}: {round_up_to_units(mib)}"
            )


def _mib(value: object) -> int | str:
    text = clean_text(str(value))
    try:
        mib = parse_whole(value)
    except NotAQuantity as error:
        return f"{text} is not valid: {error}"
    except NotWhole:
        return f"it is {text}; it must be whole{_as_written(value)}"
    if not is_in_bytes(value) and mib <= _MOST_MIB:
        return mib
    if is_in_bytes(value):
        why, amount = f"{text} is in bytes", f"{text[:-2]} {text[-2:]}B"
    else:
        why, amount = f"{text} is more than any node has", f"{text} bytes"
    return f"{why}, and this counts MiB; for {amount} write {parse_mebibytes(value)}"


def _policy(pod: Json) -> Iterator[str]:
    policy_name = pod_annotations(pod).get(names.POLICY)
    policy = None if policy_name is None else PolicyChoice().policy(policy_name)
    if isinstance(policy, Refusal):
        yield f"{_annotation(names.POLICY)}: {policy.detail}"


def _quantities(pod: Json) -> list[str]:
    complaints = []
    for container, part, resource in product(
        pod_containers(pod, INIT, APP), ("limits", "requests"), _RESOURCES
    ):
        value = container.amounts(part).get(resource)
        # The API server copies limits into requests: report them once.
        copied = (
            part == "requests" and container.amounts("limits").get(resource) == value
        )
        if value is not None and not copied and (why := _unmeetable(resource, value)):
            complaints.append(f"{container.resource_path(part, resource)}: {why}")
    return complaints


def _unmeetable(resource: str, value: object) -> str:
    """Judge one quantity by the extender's own code; return empty if it is valid."""
    alone = {"name": "any", "resources": {"limits": {resource: value}}}
    try:
        read_containers({"spec": {"containers": [alone]}})
    except Malformed as error:
        return f"{clean_text(str(value))} is not valid: {error.problem}"
    except Unmeetable as error:
        return _less_its_name(str(error), resource) + _as_written(value)
    return ""


def _as_written(value: object) -> str:
    """Return the fraction that the API server has written in thousandths."""
    thousandths = _THOUSANDTHS.fullmatch(str(value))
    if thousandths is None:
        return ""
    units = int(thousandths[1]) / 1000
    return f" ({value} is {units:g}); ask {math.ceil(units)}"


def _cores(pod: Json) -> Iterator[tuple[list[str], Refusal]]:
    """Yield what is wrong with cores, each with the fields that ask for them."""
    asking = [pair for pair in pair_with_amounts(pod) if pair[1].amount]
    for group in [[pair] for pair in asking] if is_apart(pod) else [asking]:
        claims = build_claims_by_annotation([spec for _, spec in group], apart=False)
        if isinstance(claims, Refusal):
            with_cores = (container for container, spec in group if spec.amount.cores)
            fields = [c.resource_path("limits", names.CORE) for c in with_cores]
            yield fields, claims


def _of_cores(fields: list[str], refusal: Refusal) -> str:
    """Return a complaint that names the field, or says that it is about a sum."""
    where = " + ".join(fields)
    if len(fields) != 1:
        where = f"the containers of a pod share one card, and {where}"
    return f"{where}: {refusal.detail}"


def _of_annotation(detail: str, pod: Json) -> str:
    """Assign a complaint about the whole pod to the annotation that it names."""
    about = [name for name in pod_annotations(pod) if detail.startswith(f"{name} ")]
    if about:
        return f"{_annotation(about[0])}: {_less_its_name(detail, about[0])}"
    if not is_apart(pod):
        return detail
    asking = ", ".join(c.path for c in pod_containers(pod, INIT) if c.is_ours)
    if asking:
        detail = (
            f"{detail} for a card, as {asking} does; remove the annotation, or let it "
            "ask for none"
        )
    return f"{_annotation(names.CONTAINERS)}: {detail}"


def _less_its_name(text: str, name: str) -> str:
    return "it " + text.removeprefix(f"{name} ")


def _annotation(name: str) -> str:
    return f'metadata.annotations["{name}"]'


EnvFrom = Literal["auto", "allow", "deny"]
ENV_FROM: tuple[EnvFrom, ...] = ("auto", "allow", "deny")
"""``auto`` is ``deny``; before, it went by the pod's RuntimeClass."""

_NONE_VISIBLE = frozenset({"", names.VOID, "none"})
"""Values that show no card."""
_FAMILIES = ("CUDA_MPS_", "NVIDIA_GPU_MEMORY_", "VCUDA_")
_LIMITS_BY = "may limit a container's memory by"
_OWN_PATHS = {
    names.SHARE_FOLDER: "tells a container its share in",
    names.PRELOAD_FILE: _LIMITS_BY,
    names.LIBRARY_FOLDER: _LIMITS_BY,
    names.REGION_FOLDER: _LIMITS_BY,
    f"/var{names.REGION_FOLDER}": _LIMITS_BY,
}
"""What the device plugin mounts into containers, each with why."""
_OWN_NAMES = {basename(path) for path in _OWN_PATHS}
_PLUGIN = "device plugin"
_WRITTEN_BY = {
    names.PLACEMENT: "extender",
    names.ACTUAL: _PLUGIN,
    names.ISOLATION: _PLUGIN,
}
_NVIDIA = "nvidia"


def deny_forged_annotations(pod: Json) -> Iterator[str]:
    """Yield a denial for each annotation that only gpushare may write on a pod."""
    for name, writer in _WRITTEN_BY.items():
        if name in pod_annotations(pod):
            yield (
                f"{_annotation(name)}: only the vcuda {writer} may write "
                "it; remove it from a new pod, also if the pod is a copy of another"
            )


def deny_mounts_over_share(pod: Json) -> Iterator[str]:
    """Yield a denial for each mount that would hide a container's share or limit."""
    for container in pod_containers(pod, INIT, APP):
        for place, mount in enumerate(container.raw.get("volumeMounts") or ()):
            path = mount.get("mountPath") or ""
            # First, because most paths of most pods need no closer look.
            if not any(map(path.__contains__, _OWN_NAMES)) or not container.is_ours:
                continue
            # For kubelet a path without its first / is the same.
            inside = normpath(f"/{path.lstrip('/')}")
            for our_path, why in _OWN_PATHS.items():
                if f"{inside}/".startswith(f"{our_path}/"):
                    yield (
                        f"{container.path}.volumeMounts[{place}].mountPath: the vcuda "
                        f"device plugin {why} {our_path}; mount the volume elsewhere"
                    )


def deny_card_variables(
    pod: Json, env_from: EnvFrom, before_debugging: Json | None = None
) -> Iterator[str]:
    """Yield a denial for each variable that could lift the limit of a pod with a card.

    Whatever its RuntimeClass: NVIDIA's hook for memory limits reads variables under
    any. Debugging containers that ``before_debugging`` has are not judged again.
    """
    if not asks_for_cards(pod):
        return
    known = (
        {container.name for container in pod_containers(before_debugging, EPHEMERAL)}
        if before_debugging
        else set()
    )
    for container in pod_containers(pod):
        if container.kind == EPHEMERAL and container.name in known:
            continue
        yield from _named(container)
        if env_from != "allow" and (container.is_ours or container.kind == EPHEMERAL):
            yield from _from_elsewhere(container)


def brings_cards(pod: Json, classes: Container[str]) -> bool:
    """Tell whether the pod's RuntimeClass gives containers the cards they name."""
    runtime_class = (pod.get("spec") or {}).get("runtimeClassName") or ""
    return bool(runtime_class) and (
        _NVIDIA in runtime_class.lower() or runtime_class in classes
    )


def shows_none(variable: Json) -> bool:
    """Tell whether a variable only says that no card is to be shown."""
    plain = variable.get("valueFrom") is None and variable.get("name") == names.VISIBLE
    return plain and (variable.get("value") or "") in _NONE_VISIBLE


def _named(container: PodContainer) -> Iterator[str]:
    for place, variable in enumerate(container.variables):
        name = variable["name"]
        if name != names.VISIBLE and not name.startswith(_FAMILIES):
            continue
        if not container.is_ours and shows_none(variable):
            continue
        yield (
            f"{container.path}.env[{place}]: only the vcuda device plugin may set "
            f"{clean_text(name)}, because it can lift the pod's limit; remove it"
        )


def _from_elsewhere(container: PodContainer) -> Iterator[str]:
    for place, source in enumerate(container.raw.get("envFrom") or ()):
        prefix = source.get("prefix") or ""
        if names.VISIBLE.startswith(prefix) or any(
            family.startswith(prefix) or prefix.startswith(family)
            for family in _FAMILIES
        ):
            yield (
                f"{container.path}.envFrom[{place}]: it could set {names.VISIBLE} or "
                "NVIDIA_GPU_MEMORY_LIMIT, and so show other cards or lift the pod's "
                "limit; give it a prefix such as APP_, or list its variables under env"
            )
