"""What DRA has in a cluster: claims in use, slices, and the webhook's configuration."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from gpushare.kube.cluster import Json
from gpushare.kube.errors import NotFound
from gpushare.kube.facts import CLAIMS_CONFIGURATION, full_name
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import DRA_CLASS, DRA_DRIVER
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.resource_claims.allocated import read_resource_claim
from gpusharectl.installer.manifests import read_documents
from gpusharectl.installer.webhook.objects import read_bundle, with_bundle

GROUP = "resource.k8s.io/v1"
CLASS = Ref(GROUP, "DeviceClass", DRA_CLASS)
CONFIGURATION = CLAIMS_CONFIGURATION
SLICE = (GROUP, "ResourceSlice")
CLAIM = (GROUP, "ResourceClaim")
OLDEST = (1, 36)
"""Older API servers have ``DRAConsumableCapacity`` off, or do not know it."""
_SHARED = "allowMultipleAllocations"


@dataclass(frozen=True, slots=True)
class InstalledDra:
    """What there is of DRA in a cluster before anything is done."""

    on: bool = False
    """Whether the device plugin offers cards to claims."""
    leftover: tuple[Ref, ...] = ()
    """Objects that only DRA needs, in the order in which they are deleted."""
    shares: bool | None = None
    """Whether the API server lets several claims share a device; None if not asked."""
    used: tuple[str, ...] = ()
    """The claims that pods use, each with its pods, in words."""

    @property
    def there(self) -> bool:
        """Whether anything is to be taken back."""
        return self.on or bool(self.leftover)


def existing_in_order(objects: Objects, refs: Iterable[Ref]) -> tuple[Ref, ...]:
    """Return those objects that exist, in the order in which they are deleted.

    What makes the API server ask is first, and what binds a right before the right.
    """
    ordered = [CONFIGURATION, *reversed(list(refs))]
    return tuple(ref for ref in ordered if objects.get(ref) is not None)


def shares_devices(objects: Objects) -> bool:
    """Return whether several claims can share a device.

    Where the feature gate is off, the API server drops the field without a word.
    """
    made = objects.create(_trial(), dry_run=True)
    return any(device.get(_SHARED) for device in made["spec"].get("devices") or ())


def _trial() -> Json:
    """Return a slice that is never created."""
    policy = {"default": "1", "validRange": {"min": "0", "step": "1"}}
    capacity = {"cores": {"value": "1", "requestPolicy": policy}}
    device = {"name": "trial", _SHARED: True, "capacity": capacity}
    name = f"gpushare-trial-{DRA_DRIVER}"
    return {
        "apiVersion": SLICE[0],
        "kind": SLICE[1],
        "metadata": {"name": name},
        "spec": {
            "driver": DRA_DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }


def list_slices(objects: Objects) -> list[Json]:
    """Return the slices of the driver; none where the API server serves none."""
    chosen = f"spec.driver={DRA_DRIVER}"
    try:
        return list(objects.list(*SLICE, field_selector=chosen))
    except NotFound:
        return []


def list_used_claims(objects: Objects) -> tuple[str, ...]:
    """Return the claims of ours that pods use, each with its pods, in words."""
    return tuple(sorted(words for words, _ in _used(objects)))


def nodes_with_claims(objects: Objects) -> frozenset[str]:
    """Return the nodes on which pods use claims of ours; "" if one is not known."""
    return frozenset(node for _, node in _used(objects))


def _used(objects: Objects) -> Iterator[tuple[str, str]]:
    try:
        bodies = objects.list(*CLAIM)
    except NotFound:
        return
    for body in bodies:
        users = (body.get("status") or {}).get("reservedFor") or ()
        pods = ", ".join(str(user.get("name")) for user in users)
        try:
            claim = read_resource_claim(body)
        except Malformed as error:
            # It may be a claim of ours.
            yield f"{full_name(body)}, which is not understood: {error}", ""
            continue
        if claim is not None and users:
            yield f"{claim} on {claim.node}, used by {pods}", claim.node


def claims_configuration(authorities: bytes) -> Json:
    """Return the webhook's configuration; the API server trusts these authorities."""
    (body,) = read_documents(files("manifests"), "dra/webhook.yaml")
    return with_bundle(body, authorities)


def trusted_authorities(objects: Objects) -> bytes:
    """Return the authorities that the API server trusts now; empty for none."""
    webhook = objects.get(CONFIGURATION)
    return read_bundle([webhook] if webhook else [])


def join_authorities(authorities: Mapping[str, bytes]) -> bytes:
    """Return the certificates of several hosts' authorities, in the hosts' order."""
    texts = [text.strip() + b"\n" for _, text in sorted(authorities.items())]
    return b"".join(dict.fromkeys(texts))
