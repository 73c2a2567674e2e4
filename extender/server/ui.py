"""Serve the page /ui and the state that it shows, as JSON.

The page is one file. ``state`` is ``/snapshot`` with what an operator asks next: why a
pod waits, which pods are terminating, and whether the ledger is up to date.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from extender.scheduling.bind import Books
from extender.server.public import Readiness
from gpushare.cache.shortage import Shortage, shortage
from gpushare.cache.snapshot import snapshot
from gpushare.domain.model import UNIT_MIB, NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Choice
from gpushare.kube import words
from gpushare.kube.codec import PodRecord
from gpushare.page_policy import page_headers

MOST_REASONS = 32
"""Different requests for which a reason is computed at a time; each takes a look at all
nodes, about 20 ms at 1,000 of them."""


@dataclass(frozen=True, slots=True)
class Page:
    """The file with its headers, and a function that returns the state."""

    html: bytes
    headers: Mapping[str, str]
    state: Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the page shows, read at one time.

    ``not_ready`` are sentences. ``broken`` tells by node why its annotation cannot be
    read. ``heard_s`` is the seconds since the last news of nodes and of pods.
    """

    nodes: Sequence[Node]
    pods: Sequence[PodRecord]
    choice: Choice
    not_ready: Sequence[str]
    broken: Mapping[NodeName, str]
    heard_s: Mapping[str, float]
    at: datetime


def make_page(books: Books, readiness: Readiness) -> Page:
    """Read the page's file from the package, and connect it to the ledger."""
    html = (
        resources.files("extender.server").joinpath("page", "index.html").read_bytes()
    )

    def look() -> dict[str, Any]:
        seen = Seen(
            nodes=tuple(books.ledger.nodes()),
            pods=books.pods.records(),
            choice=books.choice,
            not_ready=readiness.why_not(),
            broken=books.nodes.broken(),
            heard_s=readiness.ages_s(),
            at=datetime.now(UTC),
        )
        return state(seen)

    return Page(html, page_headers(html), look)


def state(seen: Seen) -> dict[str, Any]:
    """Return what the page shows.

    That is ``/snapshot`` and ``{at, unit_mib, not_ready: [sentence], broken: {node:
    sentence}, heard_s: {what: seconds}, leaving: [uid]}``. A pod of ``pending`` has
    ``asks``, ``because`` and ``room`` too; the last two are null if there are too many
    different requests. Pods of ``pending`` are in the order in which they are tried.
    """
    shown = snapshot(seen.nodes, seen.pods, seen.choice)
    held = {uid for node in seen.nodes for uid in node.placements}
    records = {record.pod.uid: record for record in seen.pods}
    reasons = Reasons(seen.nodes, seen.choice)
    # The watch may not have brought the binding of a pod in the ledger yet.
    pending = (pod for pod in shown["pending"] if pod["uid"] not in held)
    shown["pending"] = [
        pod | reasons.of(records[pod["uid"]]) for pod in sorted(pending, key=_in_line)
    ]
    return shown | {
        "at": seen.at.isoformat(timespec="seconds"),
        "unit_mib": UNIT_MIB,
        "not_ready": list(seen.not_ready),
        "broken": dict(seen.broken),
        "heard_s": {what: round(age_s, 1) for what, age_s in seen.heard_s.items()},
        "leaving": [record.pod.uid for record in seen.pods if record.terminating],
    }


class Reasons:
    """Why pods wait; computed once for all that ask for the same."""

    def __init__(self, nodes: Iterable[Node], choice: Choice) -> None:
        self._nodes = sorted(
            (node for node in nodes if node.cards), key=lambda node: node.name
        )
        self._kept = {uid for node in self._nodes for uid in node.nominations}
        self._choice = choice
        self._found: dict[object, Shortage] = {}

    def of(self, record: PodRecord) -> dict[str, Any]:
        """Return ``asks``, ``because`` and ``room`` for one pod."""
        request = record.request
        if not isinstance(request, PodRequest):
            found: Shortage | None = shortage(record, self._nodes, self._choice)
            asks = words.NOT_KNOWN
        else:
            found = self._shared(record, request)
            asks = words.claims(request.claims)
        return {
            "asks": asks,
            "because": found and found.because,
            "room": None if found is None else bool(found.fits),
        }

    def _shared(self, record: PodRecord, request: PodRequest) -> Shortage | None:
        # Room may be kept for this very pod: then it shares no answer with others.
        own = request.pod.uid if request.pod.uid in self._kept else ""
        claims = tuple(claim.amount for claim in request.claims)
        same = (claims, request.policy, request.cards, request.pod.priority, own)
        if same not in self._found:
            if len(self._found) >= MOST_REASONS:
                return None
            self._found[same] = shortage(record, self._nodes, self._choice)
        return self._found[same]


def _in_line(pod: Mapping[str, Any]) -> tuple[int, str, str]:
    return (-pod["priority"], pod["namespace"], pod["name"])
