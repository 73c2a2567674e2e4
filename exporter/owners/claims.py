"""What the containers of a node hold by ResourceClaims.

The device plugin writes down each claim that it prepares, with the card and the amount.
Which container uses which claim is in the pod. So no right to read claims is needed.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from exporter.owners.owner_pods import Holding, OwnerPod, OwnerPods
from gpushare.kubelet.claim_records import (
    PreparedResourceClaim,
    read_record,
    records_in,
)

_Seen = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class NodeResourceClaims:
    """The prepared claims; not ``complete`` if there may be others."""

    claims: tuple[PreparedResourceClaim, ...] = ()
    complete: bool = False

    def named(self, namespace: str, name: str) -> list[PreparedResourceClaim]:
        """Return the claims of a name.

        An earlier one may be there too, if kubelet has lost its state.
        """
        wanted = (namespace, name)
        return [
            claim for claim in self.claims if (claim.namespace, claim.name) == wanted
        ]


class ResourceClaimsFolder:
    """Reads the folder in which the device plugin keeps its prepared claims.

    The plugin makes the folder at its start. So where there is none, nothing is known:
    most likely it is not mounted, or was removed since.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_there = False
        self._read: dict[Path, tuple[_Seen, PreparedResourceClaim | None]] = {}
        self._found = NodeResourceClaims()

    def read(self) -> NodeResourceClaims:
        """Return the claims: the same object until one of them changes."""
        read: dict[Path, tuple[_Seen, PreparedResourceClaim | None]] = {}
        is_there = _is_there(self._folder)
        for path in records_in(self._folder):
            try:
                stat = path.stat()
            except OSError:
                # It has just been unprepared.
                continue
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            known = self._read.get(path)
            same = known is not None and known[0] == seen
            read[path] = known if known and same else (seen, read_record(path))
        if (is_there, read) != (self._is_there, self._read):
            claims = [claim for _, claim in read.values()]
            understood = tuple(claim for claim in claims if claim is not None)
            self._found = NodeResourceClaims(
                understood, is_there and len(understood) == len(claims)
            )
            self._is_there, self._read = is_there, read
        return self._found


def _is_there(folder: Path) -> bool:
    """Return whether a folder is there; a mounted one stays after its removal."""
    with suppress(OSError):
        return folder.is_dir() and folder.stat().st_nlink > 0
    return False


@dataclass
class PodsWithResourceClaims:
    """The pods of the node, each with what it holds by claims. Any thread may ask."""

    pods: Callable[[], OwnerPods | None]
    claims: Callable[[], NodeResourceClaims]
    _lock: Lock = field(default_factory=Lock)
    _of: tuple[OwnerPods | None, NodeResourceClaims] = (None, NodeResourceClaims())
    _joined: OwnerPods | None = None

    def current(self) -> OwnerPods | None:
        """Return the pods: the same object until a pod or a claim changes.

        None while pods are not known.
        """
        with self._lock:
            pods, claims = self.pods(), self.claims()
            if pods is not self._of[0] or claims is not self._of[1]:
                self._of = (pods, claims)
                self._joined = (
                    None if pods is None else join_resource_claims(pods, claims)
                )
            return self._joined


def join_resource_claims(pods: OwnerPods, prepared: NodeResourceClaims) -> OwnerPods:
    """Return the pods with what they hold by claims.

    A claim of a pod that is not among the prepared ones is another driver's, if all
    prepared ones are known. Else it is not known what the pod holds.
    """
    joined = [
        _with_claims(pod, prepared) if pod.pod.claims else pod for pod in pods.all
    ]
    shares = [device.share for claim in prepared.claims for device in claim.devices]
    known = prepared.complete or not any(pod.unknown_claims for pod in joined)
    return OwnerPods.of(joined, tuple(shares) if known else None)


def _with_claims(owner_pod: OwnerPod, prepared: NodeResourceClaims) -> OwnerPod:
    holdings, unknown = list[Holding](), False
    for name in owner_pod.pod.claims:
        named = prepared.named(owner_pod.name[0], name)
        unknown = unknown or len(named) > 1 or not (named or prepared.complete)
        if len(named) == 1:
            holdings += _holdings(owner_pod, named[0])
    return replace(owner_pod, by_claims=tuple(holdings), unknown_claims=unknown)


def _holdings(owner_pod: OwnerPod, claim: PreparedResourceClaim) -> Iterator[Holding]:
    """Return what each container holds by a claim, however often it names it."""
    requests: dict[str, set[str]] = {}
    for use in owner_pod.pod.claim_uses:
        if use.claim == claim.name and owner_pod.uses_now(use):
            requests.setdefault(use.container, set()).add(use.request)
    for container, of_container in requests.items():
        for device in claim.devices:
            if not of_container.isdisjoint(("", device.request)):
                yield Holding(
                    device.card,
                    container,
                    device.share.amount,
                    exclusive=device.share.is_whole,
                    part=f"{claim.uid}/{device.request}",
                )
