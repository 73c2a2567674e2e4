"""The page at /ui: one file for a browser, and what it shows, as JSON.

The page is the same for everybody; ``state`` is ``/snapshot`` with what an operator
asks next: why a pod waits, who is leaving, and whether the books can be trusted.
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
"""Requests that differ, for which a reason is looked up at a time: each is a look at
all nodes, some 20 ms at 1,000 of them."""


@dataclass(frozen=True, slots=True)
class Page:
    """What is served: the file with its headers, and the state whenever it is asked."""

    html: bytes
    headers: Mapping[str, str]
    state: Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the page is made of, taken at one time.

    ``not_ready`` are sentences; ``broken`` the nodes whose annotation cannot be read,
    with what is wrong; ``heard_s`` how long ago the API server last said anything, by
    what it was about.
    """

    nodes: Sequence[Node]
    pods: Sequence[PodRecord]
    choice: Choice
    not_ready: Sequence[str]
    broken: Mapping[NodeName, str]
    heard_s: Mapping[str, float]
    at: datetime


def make_page(books: Books, readiness: Readiness) -> Page:
    """Read the file, which is part of the package, and bind it to the books."""
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
    """Write what the page shows.

    Shape: ``/snapshot``'s, and beside it ``{at, unit_mib, not_ready: [sentence],
    broken: {node: sentence}, heard_s: {what: seconds}, leaving: [uid]}``; a pod of
    ``pending`` has ``asks``, ``because`` and ``room`` more, the last two null where
    there are too many different ones to say. The first in line stands first.
    """
    shown = snapshot(seen.nodes, seen.pods, seen.choice)
    held = {uid for node in seen.nodes for uid in node.placements}
    records = {record.pod.uid: record for record in seen.pods}
    reasons = Reasons(seen.nodes, seen.choice)
    # A pod on the books may not have been seen bound yet.
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
    """Why pods wait; found once for all that ask the same."""

    def __init__(self, nodes: Iterable[Node], choice: Choice) -> None:
        self._pages = sorted(
            (node for node in nodes if node.cards), key=lambda node: node.name
        )
        self._kept = {uid for node in self._pages for uid in node.nominations}
        self._choice = choice
        self._found: dict[object, Shortage] = {}

    def of(self, record: PodRecord) -> dict[str, Any]:
        """Return ``asks``, ``because`` and ``room`` for one pod."""
        request = record.request
        if not isinstance(request, PodRequest):
            found: Shortage | None = shortage(record, self._pages, self._choice)
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
        # For its own sake room may be kept, which nobody else's answer knows of.
        own = request.pod.uid if request.pod.uid in self._kept else ""
        claims = tuple(claim.amount for claim in request.claims)
        same = (claims, request.policy, request.cards, request.pod.priority, own)
        if same not in self._found:
            if len(self._found) >= MOST_REASONS:
                return None
            self._found[same] = shortage(record, self._pages, self._choice)
        return self._found[same]


def _in_line(pod: Mapping[str, Any]) -> tuple[int, str, str]:
    return (-pod["priority"], pod["namespace"], pod["name"])
