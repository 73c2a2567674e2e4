"""The prepared claims of this node: on disk, over restarts, and what they hold.

``<folder>/<uid>.json`` says what a claim was given. ``<folder>/<uid>/<request>/`` is
mounted into the containers that use that request. The CDI specification that brings
both into a container is beside NVIDIA's, where the runtime reads it.
"""

import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from deviceplugin.allocation.cdi import BUNDLE, BUNDLE_CONFIG, put_specification
from deviceplugin.allocation.records import ALLOCATION, make_region
from gpushare.domain.model import NodeName, Placement, PodUID
from gpushare.files import replace_file
from gpushare.kube.names import DRA_DRIVER
from gpushare.kubelet.claim_records import (
    SUFFIX,
    VERSION,
    PreparedResourceClaim,
    read_record,
    records_in,
)
from gpushare.kubelet.limit_files import LIMITS, REGION

logger = logging.getLogger(__name__)

SHARE_KIND = f"{DRA_DRIVER}/share"
"""The kind of our devices in CDI specifications: what one request of a claim gets."""
_OF_TIER = {"preload": (LIMITS, REGION), "driver": (f"{BUNDLE}/{BUNDLE_CONFIG}",)}
_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,62}")


@dataclass(frozen=True, slots=True)
class RequestFiles:
    """What the containers that use one request find in its folder.

    ``limits`` is what the library of tier ``preload`` reads, and ``bundle`` what the
    hook of tier ``driver`` reads; empty without it.
    """

    request: str
    allocation: str
    limits: str = ""
    bundle: str = ""


class PreparedResourceClaims:
    """All prepared claims, in memory and on disk. ``node`` is this one's name."""

    def __init__(self, folder: Path, cdi: Path, node: NodeName) -> None:
        self._folder = folder
        self._cdi = cdi
        self._node = node
        self._lock = Lock()
        self._claims: dict[str, PreparedResourceClaim] = {}
        # Also while there are no claims: the exporter reads them there, and takes a
        # folder that is missing for one that it cannot see.
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        for path in records_in(folder):
            if (claim := read_record(path)) is not None:
                self._claims[claim.uid] = claim

    def get(self, uid: str) -> PreparedResourceClaim | None:
        """Return a prepared claim."""
        with self._lock:
            return self._claims.get(uid)

    def all(self) -> tuple[PreparedResourceClaim, ...]:
        """Return all prepared claims."""
        with self._lock:
            return tuple(self._claims.values())

    def placements(self) -> Mapping[PodUID, Placement]:
        """Return what each claim holds, by its key among those of pods."""
        placements = (claim.placement(self._node) for claim in self.all())
        return {placement.pod.key: placement for placement in placements}

    def tiers(self) -> Mapping[tuple[str, str], str]:
        """Return the isolation tier of claims that have one, by namespace and name."""
        return {
            (claim.namespace, claim.name): claim.tier
            for claim in self.all()
            if claim.tier
        }

    def folder(self, uid: str, request: str) -> Path:
        """Return the folder of the node that containers with the request mount."""
        return self._folder / uid / request

    def put(self, claim: PreparedResourceClaim, files: Iterable[RequestFiles]) -> None:
        """Write a claim that was prepared; raises ``OSError`` if that fails.

        The record comes first: whatever else was written is then found and removed.
        """
        body = {"v": VERSION, **asdict(claim)}
        replace_file(self._folder / f"{claim.uid}{SUFFIX}", json.dumps(body))
        with self._lock:
            self._claims[claim.uid] = claim
        for of_request in files:
            folder = self.folder(claim.uid, of_request.request)
            folder.mkdir(parents=True, exist_ok=True)
            # Whatever the umask is: any user of the container must be able to read it.
            folder.parent.chmod(0o755)
            folder.chmod(0o755)
            if of_request.limits:
                replace_file(folder / LIMITS, of_request.limits)
                make_region(folder / REGION)
            if of_request.bundle:
                (folder / BUNDLE).mkdir(exist_ok=True, mode=0o755)
                replace_file(folder / BUNDLE / BUNDLE_CONFIG, of_request.bundle)
            replace_file(folder / ALLOCATION, of_request.allocation)
        self.put_right(claim)

    def put_right(self, claim: PreparedResourceClaim) -> None:
        """Write a claim's CDI specification unless it is there; raises ``OSError``."""
        put_specification(self._specification(claim.uid), claim.cdi)

    def lacking(self, claim: PreparedResourceClaim) -> frozenset[str]:
        """Return the requests whose containers would not find their files."""

        def has_all(request: str) -> bool:
            limit, folder = claim.limits.get(request), self.folder(claim.uid, request)
            of_tier = () if limit is None else _OF_TIER.get(limit.tier, ())
            paths = [folder / name for name in (ALLOCATION, *of_tier)]
            return all(path.exists() and not path.is_dir() for path in paths)

        return frozenset(request for request in claim.requests if not has_all(request))

    def remove(self, uid: str) -> bool:
        """Remove a claim and its files; return whether there was one.

        Raises ``OSError`` if the specification or the record cannot be removed.
        """
        if not _UID.fullmatch(uid):
            return False
        self._specification(uid).unlink(missing_ok=True)
        shutil.rmtree(self._folder / uid, ignore_errors=True)
        (self._folder / f"{uid}{SUFFIX}").unlink(missing_ok=True)
        with self._lock:
            return self._claims.pop(uid, None) is not None

    def restore(self) -> None:
        """Write all specifications that are missing.

        Hold ``Occupancy.room_lock``: one of a claim that is taken back meanwhile would
        stay for ever.
        """
        for claim in self.all():
            try:
                self.put_right(claim)
            except OSError as error:
                facts = {"claim": f"{claim.namespace}/{claim.name}"}
                facts["because"] = str(error)
                logger.warning("CDI specification not written", extra=facts)

    def are_left(self) -> bool:
        """Return whether there are prepared claims, also such as are not understood."""
        return bool(records_in(self._folder))

    def remove_stale(self) -> None:
        """Remove the specifications of all claims; call it while none is prepared."""
        for path in self._cdi.glob(f"{_specification_name('*')}*"):
            try:
                path.unlink()
            except OSError as error:
                # The folder is read-only where the manifest is one of before.
                facts = {"file": str(path), "because": str(error)}
                logger.info("CDI specification not removed", extra=facts)
            else:
                facts = {"file": str(path)}
                logger.info("CDI specification without a claim removed", extra=facts)

    def _specification(self, uid: str) -> Path:
        return self._cdi / _specification_name(uid)


def _specification_name(uid: str) -> str:
    return f"{SHARE_KIND.replace('/', '-')}_{uid}{SUFFIX}"


def is_uid(text: str) -> bool:
    """Return whether a text can be a UID, and so a part of a path."""
    return _UID.fullmatch(text) is not None
