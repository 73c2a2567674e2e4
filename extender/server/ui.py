"""Serve the page /ui and the state that it shows, as JSON.

The page is one file. Its state is ``/snapshot`` with what an operator asks next: why a
pod waits, which pods are terminating, and whether the ledger is up to date.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from types import MappingProxyType
from typing import Any

from extender.scheduling.state import ExtenderState
from gpushare.domain.model import UNIT_MIB, NodeName, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.shortage import Shortage, find_shortage
from gpushare.informers.snapshot import Users, write_snapshot
from gpushare.kube import words
from gpushare.kube.codec import PodRecord
from gpushare.kube.node_filters import NodeProperties
from gpushare.kube.reflector import Readiness
from gpushare.server.page_policy import make_page_headers

MOST_REASONS = 32
"""Different requests for which a reason is computed at a time; each takes a look at all
nodes, about 20 ms at 1,000 of them."""


class ExtenderPage:
    """The page's file with its headers, and the state that it shows."""

    def __init__(self, known: ExtenderState, readiness: Readiness) -> None:
        file = resources.files("extender.server").joinpath("page", "index.html")
        self.html = file.read_bytes()
        self.headers = make_page_headers(self.html)
        self._known = known
        self._readiness = readiness

    def state(self) -> dict[str, Any]:
        """Return what the page shows now."""
        known, ages_s = self._known, self._readiness.ages_s()
        facts = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "not_ready": self._readiness.why_not(),
            "broken": dict(known.nodes.broken()),
            "isolation": dict(known.nodes.isolation),
            "heard_s": {
                resource: round(age_s, 1) for resource, age_s in ages_s.items()
            },
        }
        nodes = tuple(known.ledger.nodes())
        return facts | page_state(
            nodes,
            known.pods.records(),
            known.choice,
            known.nodes.properties,
            known.ledger.reservations(),
            known.resource_claims.users(),
        )


def page_state(
    nodes: Sequence[Node],
    pods: Sequence[PodRecord],
    choice: PolicyChoice,
    properties: Mapping[NodeName, NodeProperties] = MappingProxyType({}),
    reserved: Container[PodUID] = (),
    users: Users = MappingProxyType({}),
) -> dict[str, Any]:
    """Return what the page shows of nodes and pods.

    That is ``/snapshot`` and ``{unit_mib, leaving: [uid]}``; the page adds ``{at,
    not_ready: [sentence], broken: {node: sentence}, isolation: {node: tier, empty if
    not known}, heard_s: {what: seconds}}``. A pod of ``pending`` has ``asks``,
    ``because`` and ``room`` too; the last two are null if there are too many different
    requests. ``room`` and ``because`` count nodes that the pod may use by its
    nodeSelector, node affinity and tolerations. Pods of ``pending`` are in the order in
    which they are tried.
    """
    shown = write_snapshot(nodes, pods, choice, reserved, users)
    placed = {uid for node in nodes for uid in node.placements}
    records = {record.pod.uid: record for record in pods}
    reasons = PendingReasons(nodes, choice, properties)
    # The watch may not have brought the binding of a pod in the ledger yet.
    pending = [pod for pod in shown["pending"] if pod["uid"] not in placed]
    pending.sort(key=lambda pod: (-pod["priority"], pod["namespace"], pod["name"]))
    shown["pending"] = [pod | reasons.of(records[pod["uid"]]) for pod in pending]
    leaving = [record.pod.uid for record in pods if record.terminating]
    return shown | {"unit_mib": UNIT_MIB, "leaving": leaving}


class PendingReasons:
    """Why pods wait; computed once for all that ask for the same."""

    def __init__(
        self,
        nodes: Iterable[Node],
        choice: PolicyChoice,
        properties: Mapping[NodeName, NodeProperties],
    ) -> None:
        self._nodes = sorted(nodes, key=lambda node: node.name)
        self._kept = {uid for node in self._nodes for uid in node.nominations}
        self._choice = choice
        self._properties = properties
        self._found: dict[object, Shortage] = {}

    def of(self, record: PodRecord) -> dict[str, Any]:
        """Return ``asks``, ``because`` and ``room`` for one pod."""
        request = record.request
        if not isinstance(request, PodRequest):
            lack: Shortage | None = self._shortage(record)
            asks = words.NOT_KNOWN
        else:
            lack = self._shared(record, request)
            asks = words.format_claims(request.claims)
        return {
            "asks": asks,
            "because": lack and str(lack),
            "room": None if lack is None else bool(lack.fits),
        }

    def _shared(self, record: PodRecord, request: PodRequest) -> Shortage | None:
        # Room may be kept for this very pod: then it shares no answer with others.
        keeps_for = request.pod.uid if request.pod.uid in self._kept else ""
        claims = tuple(claim.amount for claim in request.claims)
        limits = (request.cards, record.constraints)
        same = (claims, request.policy, *limits, request.pod.priority, keeps_for)
        if same not in self._found:
            if len(self._found) >= MOST_REASONS:
                return None
            self._found[same] = self._shortage(record)
        return self._found[same]

    def _shortage(self, record: PodRecord) -> Shortage:
        return find_shortage(record, self._nodes, self._choice, self._properties)
