"""Check whether DRA can be switched on here, and whether it may be taken back."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpushare.kube.facts import SYSTEM, is_part
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.dra.objects import (
    CLAIM,
    CLASS,
    CONFIGURATION,
    GROUP,
    OLDEST,
    SLICE,
    InstalledDra,
    existing_in_order,
    list_used_claims,
    shares_devices,
)
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.nodes.facts import minor_version
from gpusharectl.installer.options import InstallOptions
from gpusharectl.installer.preflight import CheckFinding, refusal, well
from gpusharectl.installer.rights import Right, may_get, resource_of_kind
from gpusharectl.installer.survey import ClusterFacts

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
