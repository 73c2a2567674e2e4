"""Read ResourceClaims that Dynamic Resource Allocation has given our devices. Pure.

A device is a card of the pool's node. Its name is made from the card's UUID, because a
UUID need not be a DNS label, which a device's name must be.
"""

import hashlib
import re
from dataclasses import dataclass

from gpushare.domain.model import NOTHING, UNIT_MIB, Amount, CardUUID, NodeName, PodUID
from gpushare.domain.quantity import NotAQuantity, NotWhole, mebibytes, whole
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import MOST, Malformed, Reader
from gpushare.kube.names import (
    DRA_CLASS,
    DRA_CORES,
    DRA_DRIVER,
    DRA_MEMORY,
    DRA_UUID,
)

_UUID = re.compile(r"(?:GPU|MIG)-[-0-9a-z]{0,58}[0-9a-z]", re.ASCII)
"""A UUID that is a DNS label of at most 63 characters in lower case.

A UUID without the prefix in capitals is left out: two cards, ``GPU-1`` and ``gpu-1``,
must not share a name.
"""
_PODS = "pods"


def device_name(uuid: CardUUID) -> str:
    """Return the name of a card's device; two cards never share one.

    So a device whose name no card has is none of the node's cards.

    >>> device_name(CardUUID("GPU-9f12f917-ac5b-9b75-9d2b-6e9b9d3ef5c8"))
    'gpu-9f12f917-ac5b-9b75-9d2b-6e9b9d3ef5c8'
    >>> device_name(CardUUID("MIG-GPU-9f12f917/1/0"))
    'card-18710a34bfe2145b'
    """
    if _UUID.fullmatch(uuid):
        return uuid.lower()
    return f"card-{hashlib.sha256(uuid.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Device:
    """A part of a card that a request of a claim has; ``name`` is the device's."""

    request: str
    name: str
    amount: Amount
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """A pod for which a claim is reserved: the pod may run with its devices."""

    name: str
    uid: PodUID


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim with devices of ours, all of one node.

    The domain's ``Claim`` is another thing: what a pod asks to have on one card.
    """

    uid: PodUID
    namespace: str
    name: str
    node: NodeName
    devices: tuple[Device, ...]
    reserved_for: tuple[User, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_claim(claim: Json) -> Claim | None:
    """Read a claim; None if it holds nothing of our driver's devices.

    A result with ``adminAccess`` holds nothing of its device and is left out. Raises
    ``Malformed`` with the path of the field that is not understood.
    """
    body = Reader(claim)
    status = body.optional_object("status")
    allocation = status.optional_object("allocation").optional_object("devices")
    ours = [
        one
        for one in allocation.optional_objects("results")
        if one.optional_text("driver") == DRA_DRIVER
        and not one.optional_boolean("adminAccess", default=False)
    ]
    if not ours:
        return None
    metadata = body.object("metadata")
    node = ours[0].text("pool")
    for one in ours:
        if one.text("pool") != node:
            raise Malformed(one.path("pool"), f"must be {node}, as that of the others")
    return Claim(
        PodUID(metadata.text("uid")),
        metadata.text("namespace"),
        metadata.text("name"),
        NodeName(node),
        tuple(map(_device, ours)),
        tuple(
            User(one.text("name"), PodUID(one.text("uid")))
            for one in status.optional_objects("reservedFor")
            if one.optional_text("resource") == _PODS
        ),
    )


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
        found[one.text("name")] = _amount(Reader(least | asked.raw, "requests", one))
    for one in spec.optional_objects("constraints"):
        if one.optional_text("matchAttribute") == DRA_UUID:
            named = one.raw.get("requests") or list(found)
            if type(named) is not list:
                raise Malformed(one.path("requests"), "must be a list of strings")
            if its := [name for name in found if name in named]:
                parts = [found.pop(name) for name in its]
                found["+".join(its)] = sum(parts, NOTHING)
    return found


def _amount(capacity: Reader) -> Amount:
    # Rounded up, so that the ledger never charges less than the claim has.
    units = -(-_number(capacity, DRA_MEMORY) // UNIT_MIB)
    return Amount(_number(capacity, DRA_CORES), units)


def _device(result: Reader) -> Device:
    capacity = result.object("consumedCapacity")
    amount, share_id = _amount(capacity), result.optional_text("shareID")
    return Device(result.text("request"), result.text("device"), amount, share_id)


def _number(capacity: Reader, key: str) -> int:
    """Read MiB of memory, or cores."""
    quantity = capacity.text(key)
    try:
        number = (mebibytes if key == DRA_MEMORY else whole)(quantity)
    except (NotAQuantity, NotWhole) as error:
        raise Malformed(capacity.path(key), f"is {quantity!r}: {error}") from error
    if number > MOST:
        raise Malformed(capacity.path(key), f"must be at most {MOST}")
    return number
