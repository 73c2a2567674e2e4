"""What DRA has in a cluster, and whether it can be switched on or taken back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from gpushare.kube.cluster import Json
from gpushare.kube.errors import NotFound
from gpushare.kube.facts import CLAIMS_CONFIGURATION, SYSTEM, full_name, is_part
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import DRA_CLASS, DRA_DRIVER
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.resource_claims.allocated import read_resource_claim
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.manifests import read_documents
from gpusharectl.installer.nodes.facts import minor_version
from gpusharectl.installer.options import InstallOptions
from gpusharectl.installer.preflight import CheckFinding, refusal, well
from gpusharectl.installer.rights import Right, may_get, resource_of_kind
from gpusharectl.installer.survey import ClusterFacts
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


_SLICES, _CLAIMS = resource_of_kind(*SLICE), resource_of_kind(*CLAIM)
_ASKING = resource_of_kind(CONFIGURATION.api_version, CONFIGURATION.kind)
RIGHTS = (
    *(Right(verb, _SLICES) for verb in ("create", "list")),
    *(Right(verb, _ASKING) for verb in ("get", "create", "patch")),
    *(Right(verb, "pods/portforward", SYSTEM) for verb in ("get", "create")),
)
"""To try a slice, to see that slices are written, and to see that arbiters answer."""
RIGHTS_BACK = (
    Right("list", _CLAIMS),
    *(Right(verb, _SLICES) for verb in ("list", "delete")),
    *(Right(verb, _ASKING) for verb in ("get", "delete")),
)
"""To take DRA back."""
_SHOWN = 20


def read_dra(
    objects: Objects, facts: ClusterFacts, refs: Sequence[Ref], *, wanted: bool
) -> InstalledDra:
    """Read what there is of DRA, and whether it can be, as far as it matters.

    ``refs`` are the objects that only DRA needs. The DeviceClass is created first and
    deleted last, so without it there are none.
    """
    if wanted:
        number = minor_version(facts.version)
        old = number is not None and number < OLDEST
        served = not old and objects.serves(*SLICE)
        return InstalledDra(
            facts.installed.dra, shares=shares_devices(objects) if served else None
        )
    device_class = objects.get(CLASS) if may_get(objects, CLASS) else None
    leftover = (
        existing_in_order(objects, refs)
        if device_class and is_part(device_class)
        else ()
    )
    # Claims outlive a driver that somebody has switched off, or an install that was
    # cut off. A missing right to list them is refused with the others.
    asks = (facts.installed.dra or leftover) and objects.may("list", _CLAIMS, "")
    return InstalledDra(
        facts.installed.dra, leftover, used=list_used_claims(objects) if asks else ()
    )


def judge_dra(
    facts: ClusterFacts, options: InstallOptions, seen: InstalledDra
) -> Iterator[CheckFinding]:
    """Judge DRA, with the settings that are kept filled in ``options``."""
    if options.dra:
        yield from _wanted(facts, options, seen)
    elif seen.there and not options.force:
        forced = replace(options, dra=False, force=True).again()
        yield from judge_used(seen.used, forced)
    if seen.leftover and not seen.on:
        yield well(
            "what an earlier install has begun of DRA, or not taken back, is removed; "
            "--dra switches it on"
        )


def judge_used(used: Sequence[str], forced: str) -> Iterator[CheckFinding]:
    """Refuse to take the driver from pods, which kubelet could not end without it.

    ``forced`` is the command that does it all the same.
    """
    if used:
        more = f"; and {len(used) - _SHOWN} more" if len(used) > _SHOWN else ""
        yield refusal(
            f"pods use ResourceClaims with cards: {'; '.join(used[:_SHOWN])}{more}. "
            "Without the driver kubelet cannot end these pods, and what their claims "
            "hold would be given to others",
            f"delete these pods first, or:\n  {forced}",
        )


def _wanted(
    facts: ClusterFacts, options: InstallOptions, seen: InstalledDra
) -> Iterator[CheckFinding]:
    without = (
        "install with --no-dra" if facts.installed.dra else "install without --dra"
    )
    if seen.shares is None:
        yield refusal(
            f"DRA needs Kubernetes 1.{OLDEST[1]} or newer, which serves {GROUP}, and "
            f"this is {facts.version.removeprefix('v')}",
            f"{without}, or upgrade the cluster first",
        )
    elif not seen.shares:
        yield refusal(
            "the API server lets only one claim use a device: the feature gate "
            "DRAConsumableCapacity is off",
            "switch it on for kube-apiserver, kube-scheduler and kubelet (it is on by "
            f"default from 1.{OLDEST[1]}), or {without}",
        )
    if options.tls is False:
        yield refusal(
            "DRA needs the certificates that --no-tls removes: by them the API server "
            "asks the extender",
            "leave out --no-tls, or add --no-dra",
        )
    elif not facts.installed.tls:
        yield well("DRA needs the certificates of --tls, so TLS is switched on too")
    if facts.flavour is Flavour.K3S and len(facts.control_plane) > 1:
        yield refusal(
            "DRA on k3s with several servers is not supported: the API server has to "
            "know the authorities of all of them, and this command reads only one",
            f"{without}; classic pods share cards on all servers",
        )
