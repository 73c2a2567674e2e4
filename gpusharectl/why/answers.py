"""What why answers: a frozen value for each kind of answer, which is also data. Pure.

``gpusharectl.why.command`` promises the shape of the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from gpushare.domain.model import Amount, Card, CardUUID, NodeName, PodRequest
from gpushare.kube import codec, facts, names, words
from gpushare.kube.annotations import find_unknown_annotations
from gpushare.kube.cluster import Json
from gpusharectl.output import VERSION, Data, encode
from gpusharectl.state.read import Placements
from gpusharectl.why.verdict import DeletionPlan, InSum, NodeVerdict

FINE, WAITS = 0, 3
"""Exit codes: it holds its cards or needs none; it waits."""


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What every answer has: the pod as the API server has it."""

    body: Json
    of_quotas: Sequence[str] = field(default=(), kw_only=True)
    """Sentences about the ResourceQuotas of its namespace."""

    @property
    def pod(self) -> str:
        """Its name with its namespace."""
        return facts.full_name(self.body)

    @property
    def node(self) -> str:
        """The node to which it is bound; empty before that."""
        return facts.node_of(self.body)

    @property
    def waits(self) -> str:
        """Kubelet's message if a container does not start."""
        return facts.waits_because(self.body)

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences about what has no meaning in it and in its quotas."""
        of_pod = (
            *find_unknown_annotations(self.body),
            *codec.find_untranslated_mib(self.body),
        )
        return [*of_pod, *self.of_quotas]

    @property
    def isolation(self) -> str:
        """The tier with which it started; empty for none, or if it is not known."""
        return facts.annotation(self.body, names.ISOLATION)

    @property
    def kube_scheduler(self) -> str:
        """kube-scheduler's message; empty if there is none."""
        return facts.scheduler_says(self.body)


@dataclass(frozen=True, slots=True)
class NoShare(PodAnswer):
    """It requests none of gpushare's resources, has ended, or its request is invalid.

    ``words`` say why it ended, from its status, or what to request instead.
    """

    state: Literal["asks-nothing", "ended", "invalid"]
    words: str = ""

    @property
    def code(self) -> int:
        """It waits if its request is invalid."""
        return WAITS if self.state == "invalid" else FINE

    def details(self) -> Data:
        """Return its own part of the data."""
        data: Data = {"node": self.node or None}
        if self.state != "invalid":
            data["phase"] = facts.phase(self.body)
        if self.state != "asks-nothing":
            data["because"] = self.words or None
        return data


@dataclass(frozen=True, slots=True)
class Pending(PodAnswer):
    """It waits: what each node lacks, and what would help.

    ``nodes`` are all nodes with cards, also those that it may not use. ``ways`` were
    looked for on the ``ways_of`` nearest cards only. ``preempts_on`` are the nodes
    where kube-scheduler may preempt pods for its cards; ``spared`` is why it preempts
    none although pods of a lower priority are in the way. ``never``: it would wait even
    if all cards were empty and open. Each of ``steps`` would help alone. ``in_sum`` is
    a node that has enough in all, while no card has: then an autoscaler adds no node
    for it.
    """

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "pending"
    request: PodRequest
    policy: str
    nodes: tuple[NodeVerdict, ...]
    because: str
    never: bool
    nominated: str
    ways: tuple[DeletionPlan, ...]
    ways_of: int
    preempts_on: tuple[NodeName, ...]
    spared: str
    steps: tuple[str, ...]
    in_sum: InSum | None = None

    def details(self) -> Data:
        """Return its own part of the data."""
        return {
            "asks": words.format_claims(self.request.claims),
            "claims": self.request.claims,
            "policy": self.policy,
            **_limits(self.request),
            "since": facts.created(self.body) or None,
            "because": self.because,
            "kube_scheduler": self.kube_scheduler or None,
            "scheduler_name": facts.scheduler_of(self.body),
            "nominated": self.nominated or None,
            "nodes": self.nodes,
            "ways": self.ways,
            "ways_of": self.ways_of,
            "evicts": bool(self.preempts_on),
            "never": self.never,
            "next": ", or ".join(self.steps),
            "steps": self.steps,
            "fits_in_sum": self.in_sum,
        }


@dataclass(frozen=True, slots=True)
class HeldCard:
    """What the pod has of one card; ``card`` is None if it no longer exists."""

    uuid: CardUUID
    card: Card | None
    amount: Amount

    def as_data(self) -> Data:
        """Return the card's names and the amount."""
        index, model = (self.card and self.card.index), (self.card and self.card.model)
        names_of = {"uuid": self.uuid, "index": index, "model": model}
        return {**names_of, **encode(self.amount)}


@dataclass(frozen=True, slots=True)
class EarlierCard:
    """A card that the policy prefers to the pod's own, and why the pod is not there."""

    uuid: CardUUID
    index: int
    because: str


@dataclass(frozen=True, slots=True)
class Placed(PodAnswer):
    """It has its cards: which, since when, by which policy, and why those.

    ``planned`` are the planned cards, if it is on other ones; without a plan
    (``is_planned``) the device plugin chose.
    """

    state: ClassVar[str] = "placed"
    request: PodRequest
    held: tuple[HeldCard, ...]
    at: str
    policy: str
    planned: tuple[HeldCard, ...]
    is_planned: bool
    earlier: tuple[EarlierCard, ...]
    because: str

    @property
    def code(self) -> int:
        """It waits if a container does not start."""
        return WAITS if self.waits else FINE

    def details(self) -> Data:
        """Return its own part of the data."""
        return {
            "asks": words.format_claims(self.request.claims),
            "node": self.node,
            "cards": self.held,
            "at": self.at or None,
            "policy": self.policy,
            "own_policy": self.request.policy is not None,
            **_limits(self.request),
            "planned": [card.uuid for card in self.planned],
            "is_planned": self.is_planned,
            "because": self.because or None,
            "earlier": self.earlier,
            "phase": facts.phase(self.body),
            "leaving": facts.is_leaving(self.body),
            "waits": self.waits or None,
            "isolation": self.isolation or None,
        }


@dataclass(frozen=True, slots=True)
class Unplaced(PodAnswer):
    """It is bound, but its cards are not known."""

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "unplaced"
    request: PodRequest
    complaint: str

    def details(self) -> Data:
        """Return its own part of the data."""
        return {
            "asks": words.format_claims(self.request.claims),
            "node": self.node,
            "complaint": self.complaint or None,
            "waits": self.waits or None,
        }


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """One ResourceClaim of a pod: what it has, or each card's answer to it.

    ``because`` says what it has or lacks. ``room`` are the cards that have room now, as
    node and index; ``refusals`` are a sentence for each other card, or for all of a
    node. ``not_judged`` are sentences about what else decides.
    """

    name: str
    allocated: bool
    because: str
    room: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ByClaims(PodAnswer):
    """It asks by ResourceClaims, to which kube-scheduler gives cards itself."""

    state: ClassVar[str] = "by-claims"
    claims: tuple[ClaimVerdict, ...]
    not_judged: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """It waits until each claim is allocated."""
        return FINE if all(one.allocated for one in self.claims) else WAITS

    def details(self) -> Data:
        """Return its own part of the data."""
        return {
            "node": self.node or None,
            "phase": facts.phase(self.body),
            "claims": self.claims,
            "not_judged": self.not_judged,
            "kube_scheduler": self.kube_scheduler or None,
        }


Explanation = NoShare | Pending | Placed | Unplaced | ByClaims


def _limits(request: PodRequest) -> Data:
    cards = request.cards
    return {
        "models": (cards and cards.models) or None,
        "uuids": (cards and cards.uuids) or None,
    }


def encode_answer(answer: Explanation, placements: Placements) -> Data:
    """Return an answer in full."""
    data: Data = encode(
        {
            "v": VERSION,
            "state": answer.state,
            "pod": answer.pod,
            "code": answer.code,
            "warnings": answer.warnings,
            "books": placements,
            **answer.details(),
        }
    )
    return data
