"""The records of this node's prepared ResourceClaims.

The device plugin writes ``<folder>/<uid>.json`` for each claim that it prepares; the
exporter reads it.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushare.domain.model import (
    Amount,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodUID,
    Share,
)
from gpushare.kube.cluster import Json
from gpushare.kubelet.pods import HardLimit

logger = logging.getLogger(__name__)

VERSION = 1
"""Of the form of a record."""
SUFFIX = ".json"
_NOT_UNDERSTOOD = "a prepared claim's record is not understood"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """What a claim holds of one card, and the CDI names that bring it.

    ``device`` is the card's name in the slice, ``request`` the claim's request.
    """

    request: str
    device: str
    card: CardUUID
    cores: int
    units: int
    share_id: str
    cdi: tuple[str, ...]

    @property
    def share(self) -> Share:
        """What is charged for it; several devices of one card are not added up."""
        return Share(self.card, Amount(self.cores, self.units))


@dataclass(frozen=True, slots=True)
class PreparedResourceClaim:
    """A claim that was prepared. ``limits`` has the hard limits by request.

    ``cdi`` is its CDI specification.
    """

    uid: str
    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    limits: Mapping[str, HardLimit]
    cdi: Json

    @property
    def tier(self) -> str:
        """What holds its containers to their limits; empty if it has none."""
        return next((limit.tier for limit in self.limits.values()), "")

    @property
    def requests(self) -> frozenset[str]:
        """The requests that have devices."""
        return frozenset(device.request for device in self.devices)

    def placement(self, node: NodeName) -> Placement:
        """Return what it holds as a placement."""
        shares = tuple(device.share for device in self.devices)
        uid = PodUID(self.uid)
        claim = PodRef(uid, self.namespace, self.name, is_resource_claim=True)
        return Placement(claim, node, shares)


def records_in(folder: Path) -> list[Path]:
    """Return the records of prepared claims in a folder, also those not understood."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_record(path: Path) -> PreparedResourceClaim | None:
    """Read the record of a prepared claim; None, and a warning, if that fails."""
    try:
        body = json.loads(path.read_text())
        if (body["v"], body["uid"]) != (VERSION, path.name.removesuffix(SUFFIX)):
            facts = {"file": str(path), "because": "another version or another claim"}
            logger.warning(_NOT_UNDERSTOOD, extra=facts)
            return None
        devices = tuple(
            PreparedDevice(**{**device, "cdi": tuple(device["cdi"])})
            for device in body["devices"]
        )
        return PreparedResourceClaim(
            body["uid"],
            body["namespace"],
            body["name"],
            devices,
            {name: HardLimit.read(limit) for name, limit in body["limits"].items()},
            body["cdi"],
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        facts = {"file": str(path), "because": str(error)}
        logger.warning(_NOT_UNDERSTOOD, extra=facts)
        return None
