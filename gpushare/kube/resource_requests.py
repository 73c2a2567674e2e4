"""What a pod asks of cards and of its node, computed once for each kind of pod. Pure.

The pods of a Deployment differ in their names only. So the results are kept by the part
of the spec that says what is asked: ``filter`` and the caches read a pod once, and
compute something only for the first pod of a kind.
"""

from collections.abc import Iterable, Sequence

import orjson

from gpushare.domain.model import (
    UNIT_MIB,
    Amount,
    Claim,
    HostAmount,
    Refusal,
    clean_text,
    refuse_invalid,
)
from gpushare.domain.quantity import (
    NotAQuantity,
    NotWhole,
    is_in_bytes,
    parse_mebibytes,
    parse_thousandths,
    parse_whole,
    read_whole,
)
from gpushare.domain.request import ContainerSpec, Role, build_claims, peak_amount
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import MOST, Malformed, Reader

MOST_KINDS = 4096
LONGEST_KEY = 2048
"""Limits of the cache, in results and bytes of a key: at most 8 MiB of keys. Any user
can create pods, and large ones."""
_LISTS = ("initContainers", "containers")


class Unmeetable(ValueError):
    """A quantity that is valid for Kubernetes and that no card can meet."""


class _ResourceKind:
    """What was computed for pods that ask the same; ``host`` may also be None."""

    __slots__ = ("apart", "has_host", "host", "is_ours", "together")

    def __init__(self) -> None:
        self.apart: tuple[Claim, ...] | Refusal | None = None
        self.together: tuple[Claim, ...] | Refusal | None = None
        self.has_host = False
        self.host: HostAmount | None = None
        self.is_ours: bool | None = None


_KINDS: dict[bytes, _ResourceKind] = {}


class RequestedResources:
    """What one pod asks; results are shared with all pods that ask the same."""

    __slots__ = ("_is_readable", "_kind", "_pod")

    def __init__(self, pod: Json) -> None:
        self._pod = pod
        key = _key(pod)
        self._is_readable = key is not None
        self._kind = _KINDS.get(key or b"") or _new_kind(key)

    def is_ours(self) -> bool:
        """Return whether any gpushare resource is named, even with quantity 0."""
        kind = self._kind
        if kind.is_ours is None:
            kind.is_ours = _names_cards(self._pod)
        return kind.is_ours

    def claims(self, *, apart: bool) -> tuple[Claim, ...] | Refusal:
        """Return the pod's claims, or why it can have none.

        Raises ``Malformed`` and ``Unmeetable`` as ``containers`` does.
        """
        kind = self._kind
        claims = kind.apart if apart else kind.together
        if claims is None:
            claims = build_claims_by_annotation(read_containers(self._pod), apart=apart)
            if apart:
                kind.apart = claims
            else:
                kind.together = claims
        return claims

    def host(self) -> HostAmount | None:
        """Return the CPU and memory that the pod needs at its peak (contracts 5).

        Computed as kube-scheduler does, with the pod's overhead; an amount for the pod
        as a whole replaces the sum. None if the spec cannot be read.
        """
        kind = self._kind
        if not kind.has_host:
            kind.host = self._host() if self._is_readable else None
            kind.has_host = True
        return kind.host

    def _host(self) -> HostAmount | None:
        try:
            return _host_amount(self._pod["spec"])
        except (NotAQuantity, KeyError, TypeError, AttributeError):
            return None


def _new_kind(key: bytes | None) -> _ResourceKind:
    """Return an empty kind, kept if its key is short; a full cache starts again."""
    kind = _ResourceKind()
    if key is not None and len(key) <= LONGEST_KEY:
        if len(_KINDS) >= MOST_KINDS:
            _KINDS.clear()
        _KINDS[key] = kind
    return kind


def _key(pod: Json) -> bytes | None:
    spec = pod.get("spec")
    if type(spec) is not dict:
        return None
    key_parts = {"overhead": spec.get("overhead"), "resources": spec.get("resources")}
    for key in _LISTS:
        containers = spec.get(key)
        if containers is None:
            continue
        if type(containers) is not list:
            return None
        kept = []
        for container in containers:
            if type(container) is not dict:
                return None
            kept.append(
                {
                    "name": container.get("name"),
                    "resources": container.get("resources"),
                    "restartPolicy": container.get("restartPolicy"),
                }
            )
        key_parts[key] = kept
    try:
        return orjson.dumps(key_parts)
    except TypeError:
        # orjson parses deeper objects than it writes.
        return None


def _names_cards(pod: Json) -> bool:
    spec = pod.get("spec") or {}
    for key in _LISTS:
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            for part in ("requests", "limits"):
                amounts = resources.get(part) or {}
                if names.MEMORY in amounts or names.CORE in amounts:
                    return True
    return False


def build_claims_by_annotation(
    containers: Sequence[ContainerSpec], *, apart: bool
) -> tuple[Claim, ...] | Refusal:
    """Return the claims; a refusal names the annotation if that alone would help."""
    built = build_claims(containers, apart=apart)
    if apart or not isinstance(built, Refusal):
        return built
    if isinstance(build_claims(containers, apart=True), Refusal):
        return built
    return refuse_invalid(
        f'{built.detail}, or set {names.CONTAINERS} to "{names.APART}": each container '
        "may then have a card of its own"
    )


def read_containers(pod: Json) -> list[ContainerSpec]:
    """Read all containers in the order in which kubelet admits them.

    Raises ``Malformed``, or ``Unmeetable`` for an amount that no card can meet.
    """
    spec = Reader(pod).object("spec")
    specs = []
    for container in spec.optional_objects("initContainers"):
        role = _first_role(container.optional_text("restartPolicy"))
        specs.append(ContainerSpec(container.text("name"), role, _amount(container)))
    for container in spec.optional_objects("containers"):
        name = container.text("name")
        specs.append(ContainerSpec(name, Role.APP, _amount(container)))
    return specs


def _first_role(restart_policy: object) -> Role:
    return Role.SIDECAR if restart_policy == "Always" else Role.INIT


def effective_request(pod: Json) -> Amount:
    """Return what kube-scheduler counts of a pod in the sums of its node (contracts 5).

    What is no whole number counts as nothing, because no API server accepts it.
    """
    first, rest = (pod["spec"].get(key) or () for key in _LISTS)
    specs = [
        ContainerSpec(
            "", _first_role(container.get("restartPolicy")), _counted(container)
        )
        for container in first
    ]
    specs += [ContainerSpec("", Role.APP, _counted(container)) for container in rest]
    return peak_amount(specs)


def _counted(container: Json) -> Amount:
    amounts = _amounts_of(container)
    cores, units = (read_whole(amounts.get(n)) for n in (names.CORE, names.MEMORY))
    return Amount(cores or 0, units or 0)


def _amount(container: Reader) -> Amount:
    resources = container.optional_object("resources")
    return Amount(
        cores=_quantity(resources, names.CORE), units=_quantity(resources, names.MEMORY)
    )


def _quantity(resources: Reader, resource: str) -> int:
    for part in ("requests", "limits"):
        amounts = resources.optional_object(part)
        raw = amounts.raw.get(resource)
        if raw is None:
            continue
        try:
            number = parse_whole(raw)
        except NotAQuantity as error:
            raise Malformed(amounts.path(resource), str(error)) from error
        except NotWhole as error:
            text = clean_text(str(raw))
            raise Unmeetable(f"{resource} is {text}; it must be whole") from error
        if is_in_bytes(raw):
            raise Unmeetable(_bytes_for_units(resource, str(raw), number))
        if number > MOST:
            text = clean_text(str(raw))
            raise Unmeetable(f"{resource} is {text}; no node has so much")
        return number
    return 0


def _bytes_for_units(resource: str, text: str, number: int) -> str:
    if resource != names.MEMORY:
        return f"{resource} is {clean_text(text)}; it must be a plain number"
    units = -(-number // (UNIT_MIB * 1024 * 1024))
    return (
        f"{resource} is {clean_text(text)}, but it counts units of "
        f"{UNIT_MIB} MiB; ask {clean_text(str(units))}"
    )


def _host_amount(spec: Json) -> HostAmount:
    cpu, memory = _peak(spec)
    whole = _amounts_of(spec)
    over = spec.get("overhead") or {}
    return HostAmount(
        (parse_thousandths(whole["cpu"]) if "cpu" in whole else cpu)
        + parse_thousandths(over.get("cpu", 0)),
        (parse_mebibytes(whole["memory"]) if "memory" in whole else memory)
        + parse_mebibytes(over.get("memory", 0)),
    )


def _peak(spec: Json) -> tuple[int, int]:
    """Return the sum of containers and sidecars, or an init container's larger need."""
    cpu, memory = _sum(spec.get("containers") or ())
    first = spec.get("initContainers")
    if not first:
        return cpu, memory
    side_cpu, side_memory, most_cpu, most_memory = 0, 0, 0, 0
    for container in first:
        more_cpu, more_memory = _sum((container,))
        if container.get("restartPolicy") == "Always":
            side_cpu += more_cpu
            side_memory += more_memory
            more_cpu = more_memory = 0
        most_cpu = max(most_cpu, side_cpu + more_cpu)
        most_memory = max(most_memory, side_memory + more_memory)
    return max(cpu + side_cpu, most_cpu), max(memory + side_memory, most_memory)


def _sum(containers: Iterable[Json]) -> tuple[int, int]:
    cpu = memory = 0
    for container in containers:
        amounts = _amounts_of(container)
        if "cpu" in amounts:
            cpu += parse_thousandths(amounts["cpu"])
        if "memory" in amounts:
            memory += parse_mebibytes(amounts["memory"])
    return cpu, memory


def _amounts_of(thing: Json) -> Json:
    """Return ``requests``, completed from ``limits``, which is the default of each."""
    resources = thing.get("resources")
    if not resources:
        return {}
    amounts: Json = resources.get("requests") or {}
    limits = resources.get("limits")
    return {**limits, **amounts} if limits else amounts
