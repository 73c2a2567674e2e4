"""Read ResourceClaims that have devices of ours, and which of them a pod uses. Pure.

A device is a card of the pool's node. Its name is made from the card's UUID, because a
UUID need not be a DNS label, which a device's name must be.
"""

import hashlib
import re
from dataclasses import dataclass

from gpushare.domain.model import UNIT_MIB, Amount, CardUUID, NodeName, PodUID
from gpushare.domain.quantity import (
    NotAQuantity,
    NotWhole,
    parse_mebibytes,
    parse_whole,
)
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import MOST, Malformed, Reader
from gpushare.kube.names import DRA_CORES, DRA_DRIVER, DRA_MEMORY

_UUID = re.compile(r"(?:GPU|MIG)-[-0-9a-z]{0,58}[0-9a-z]", re.ASCII)
"""A UUID that is a DNS label of at most 63 characters in lower case.

A UUID without the prefix in capitals is left out: two cards, ``GPU-1`` and ``gpu-1``,
must not share a name.
"""
_PODS = "pods"


def name_device(uuid: CardUUID) -> str:
    """Return the name of a card's device; two cards never share one.

    So a device whose name no card has is none of the node's cards.

    >>> name_device(CardUUID("GPU-9f12f917-ac5b-9b75-9d2b-6e9b9d3ef5c8"))
    'gpu-9f12f917-ac5b-9b75-9d2b-6e9b9d3ef5c8'
    >>> name_device(CardUUID("MIG-GPU-9f12f917/1/0"))
    'card-18710a34bfe2145b'
    """
    if _UUID.fullmatch(uuid):
        return uuid.lower()
    return f"card-{hashlib.sha256(uuid.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A part of a card that a request of a claim has; ``name`` is the device's."""

    request: str
    name: str
    amount: Amount
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class ResourceClaimUser:
    """A pod for which a claim is reserved: the pod may run with its devices."""

    name: str
    uid: PodUID


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A ResourceClaim with devices of ours, all of one node.

    The domain's ``Claim`` is another thing: what a pod asks to have on one card.
    """

    uid: PodUID
    namespace: str
    name: str
    node: NodeName
    devices: tuple[AllocatedDevice, ...]
    reserved_for: tuple[ResourceClaimUser, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_resource_claim(claim: Json) -> ResourceClaim | None:
    """Read a claim; None if it holds nothing of our driver's devices.

    A result with ``adminAccess`` holds nothing of its device and is left out. Raises
    ``Malformed`` with the path of the field that is not understood.
    """
    body = Reader(claim)
    status = body.optional_object("status")
    ours = [device for device in _results(status) if not _has_admin_access(device)]
    if not ours:
        return None
    metadata = body.object("metadata")
    node = ours[0].text("pool")
    for device in ours:
        if device.text("pool") != node:
            wrong = f"must be {node}, as that of the others"
            raise Malformed(device.path("pool"), wrong)
    return ResourceClaim(
        PodUID(metadata.text("uid")),
        metadata.text("namespace"),
        metadata.text("name"),
        NodeName(node),
        tuple(map(_device, ours)),
        tuple(
            ResourceClaimUser(user.text("name"), PodUID(user.text("uid")))
            for user in status.optional_objects("reservedFor")
            if user.optional_text("resource") == _PODS
        ),
    )


def refused_access(claim: Json) -> list[str]:
    """Return a sentence for each of our devices that a claim may only look at.

    Raises ``Malformed`` as ``read_resource_claim`` does.
    """
    results = _results(Reader(claim).optional_object("status"))
    looks = filter(_has_admin_access, results)
    return [no_admin_access(result.optional_text("request")) for result in looks]


def no_admin_access(request: str) -> str:
    """Say that a request gets no card without a part of it.

    Its containers would use what was given to others, with no limit. And one that only
    wants to know what is used need not have the cards.
    """
    return (
        f"request {request} has adminAccess, which {DRA_DRIVER} does not give; ask for "
        "a part of a card, or see in the exporter's metrics what is used"
    )


def _results(status: Reader) -> list[Reader]:
    """Return the results of an allocation that are devices of ours."""
    devices = status.optional_object("allocation").optional_object("devices")
    results = devices.optional_objects("results")
    return [
        result for result in results if result.optional_text("driver") == DRA_DRIVER
    ]


def _has_admin_access(result: Reader) -> bool:
    return result.optional_boolean("adminAccess", default=False)


def read_amount(capacity: Reader) -> Amount:
    """Read what a capacity has of a card.

    Memory is rounded up to units, so that the ledger never charges less than that.
    """
    units = -(-_number(capacity, DRA_MEMORY) // UNIT_MIB)
    return Amount(_number(capacity, DRA_CORES), units)


def _device(result: Reader) -> AllocatedDevice:
    capacity = result.object("consumedCapacity")
    share_id = result.optional_text("shareID")
    return AllocatedDevice(
        result.text("request"), result.text("device"), read_amount(capacity), share_id
    )


def _number(capacity: Reader, key: str) -> int:
    """Read MiB of memory, or cores."""
    quantity = capacity.text(key)
    try:
        number = (parse_mebibytes if key == DRA_MEMORY else parse_whole)(quantity)
    except (NotAQuantity, NotWhole) as error:
        raise Malformed(capacity.path(key), f"is {quantity!r}: {error}") from error
    if number > MOST:
        raise Malformed(capacity.path(key), f"must be at most {MOST}")
    return number


def read_claim_names(pod: Json) -> dict[str, str]:
    """Return the names of a pod's ResourceClaims by the pod's names for them.

    Empty for one that is made from a template and does not exist yet.
    """
    body = Reader(pod)
    made = {
        entry.text("name"): entry.optional_text("resourceClaimName")
        for entry in body.optional_object("status").optional_objects(
            "resourceClaimStatuses"
        )
    }
    return {
        entry.text("name"): entry.optional_text("resourceClaimName")
        or made.get(entry.text("name"), "")
        for entry in body.optional_object("spec").optional_objects("resourceClaims")
    }


@dataclass(frozen=True, slots=True)
class ResourceClaimUse:
    """One container that may use a ResourceClaim of its pod.

    ``claim`` is the claim's name, empty while it does not exist. ``request`` is one of
    its requests, empty for all. ``ends``: it is an init container that ends before the
    next container starts.
    """

    claim: str
    container: str
    request: str = ""
    ends: bool = False


def read_claim_uses(pod: Json) -> tuple[ResourceClaimUse, ...]:
    """Return which containers use which claims of a pod, in the order of the spec."""
    named = read_claim_names(pod)
    if not named:
        return ()
    spec = Reader(pod).optional_object("spec")
    return tuple(
        ResourceClaimUse(
            named.get(use.text("name"), ""),
            container.text("name"),
            use.optional_text("request").partition("/")[0],
            kind == "initContainers"
            and container.optional_text("restartPolicy") != "Always",
        )
        for kind in ("initContainers", "containers")
        for container in spec.optional_objects(kind)
        for use in container.optional_object("resources").optional_objects("claims")
    )
