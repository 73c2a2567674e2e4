"""What a pod's containers ask of cards, read from its spec. Pure."""

from collections.abc import Sequence
from functools import lru_cache

import orjson

from gpushare.domain.model import UNIT_MIB, Amount, Claim
from gpushare.domain.quantity import NotAQuantity, NotWhole, is_in_bytes, whole
from gpushare.domain.request import ContainerSpec, Role, claims
from gpushare.domain.summary import Refusal, invalid, users_words
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.essence import LONGEST_KEPT, MOST_KINDS
from gpushare.kube.fields import MOST, Malformed, Reader


class Unmeetable(ValueError):
    """A quantity in order for Kubernetes that no card can meet."""


def claims_of(
    pod: Json, kind: bytes | None, *, apart: bool
) -> tuple[Claim, ...] | Refusal:
    """Give the pod's claims, or why it can have none; ``kind`` is its ``essence``.

    ``Malformed`` and ``Unmeetable`` as ``containers``.
    """
    if kind is None or len(kind) > LONGEST_KEPT:
        return claims_by(containers(pod), apart=apart)
    return _claims_of(kind, apart)


@lru_cache(MOST_KINDS)
def _claims_of(kind: bytes, apart: bool) -> tuple[Claim, ...] | Refusal:  # noqa: FBT001
    return claims_by(containers(orjson.loads(kind)), apart=apart)


def claims_by(
    containers: Sequence[ContainerSpec], *, apart: bool
) -> tuple[Claim, ...] | Refusal:
    """Give the claims; a refusal names the annotation where that alone would help."""
    found = claims(containers, apart=apart)
    if apart or not isinstance(found, Refusal):
        return found
    if isinstance(claims(containers, apart=True), Refusal):
        return found
    return invalid(
        f'{found.detail}, or set {names.CONTAINERS} to "{names.APART}": each container '
        "may then have a card of its own"
    )


def containers(pod: Json) -> list[ContainerSpec]:
    """Read the containers in the order in which kubelet admits them.

    Those that ask nothing too. ``Malformed``, or ``Unmeetable`` for an amount that no
    card can meet.
    """
    spec = Reader(pod).object("spec")
    found = []
    for container in spec.optional_objects("initContainers"):
        stays = container.optional_text("restartPolicy") == "Always"
        role = Role.SIDECAR if stays else Role.INIT
        found.append(ContainerSpec(container.text("name"), role, _amount(container)))
    for container in spec.optional_objects("containers"):
        name = container.text("name")
        found.append(ContainerSpec(name, Role.APP, _amount(container)))
    return found


def _amount(container: Reader) -> Amount:
    resources = container.optional_object("resources")
    return Amount(
        cores=_quantity(resources, names.CORE), units=_quantity(resources, names.MEMORY)
    )


def _quantity(resources: Reader, resource: str) -> int:
    """Read what is asked: ``requests``, or ``limits``, its default."""
    for part in ("requests", "limits"):
        asked = resources.optional_object(part)
        raw = asked.raw.get(resource)
        if raw is None:
            continue
        try:
            number = whole(raw)
        except NotAQuantity as error:
            raise Malformed(asked.path(resource), str(error)) from error
        except NotWhole as error:
            text = users_words(str(raw))
            raise Unmeetable(f"{resource} is {text}; it must be whole") from error
        if is_in_bytes(raw):
            raise Unmeetable(_bytes_for_units(resource, str(raw), number))
        if number > MOST:
            text = users_words(str(raw))
            raise Unmeetable(f"{resource} is {text}; no node has so much")
        return number
    return 0


def _bytes_for_units(resource: str, text: str, number: int) -> str:
    if resource != names.MEMORY:
        return f"{resource} is {users_words(text)}; it must be a plain number"
    units = -(-number // (UNIT_MIB * 1024 * 1024))
    return (
        f"{resource} is {users_words(text)}, but it counts units of "
        f"{UNIT_MIB} MiB; ask {users_words(str(units))}"
    )
