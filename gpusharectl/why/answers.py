"""What ``why`` can answer: one frozen value for each case; ``why`` finds it.

The ``warnings`` of each are sentences about what the pod says in vain.
"""

from dataclasses import dataclass
from typing import ClassVar

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.model import Amount, Card, CardUUID, PodRef
from gpusharectl.why.verdict import NodeVerdict

FINE, WAITS = 0, 3
"""Exit codes: it holds its cards or needs none; it waits. 1 is for no answer at all."""


@dataclass(frozen=True, slots=True)
class AsksNothing:
    """No container names our resources, or all ask zero."""

    code: ClassVar[int] = FINE
    state: ClassVar[str] = "asks-nothing"
    pod: str
    phase: str
    node: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Its containers have ended for good, so that it holds nothing."""

    code: ClassVar[int] = FINE
    state: ClassVar[str] = "ended"
    pod: str
    phase: str
    node: str
    words: str
    """Why, in the words of kubelet or whoever ended it; mostly empty."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unmeetable:
    """No node can ever meet the request, and the words say what to ask instead."""

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "invalid"
    pod: str
    words: str
    node: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GoingPod:
    """A pod that would have to go, and what of the card it holds."""

    pod: PodRef
    amount: Amount


@dataclass(frozen=True, slots=True)
class Way:
    """Who would have to go for the pod to fit: from one card, or from the node."""

    node: str
    card: Card | None
    pods: tuple[GoingPod, ...]


@dataclass(frozen=True, slots=True)
class Pending:
    """It waits: what each node says, and what would help.

    ``scheduler`` are kube-scheduler's own words, ``scheduler_name`` whom it waits for;
    ``cards`` are those that it may have, None where it does not say.
    ``ways`` are worked out for the nearest cards only, as ``ways_of`` says.
    ``evicts``: every pod of the best way is of lower priority than this one.
    """

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "pending"
    pod: PodRef
    asks: str
    claims: tuple[Amount, ...]
    policy: str
    cards: CardSelector | None
    since: str
    nodes: tuple[NodeVerdict, ...]
    because: str
    scheduler: str
    scheduler_name: str
    nominated: str
    ways: tuple[Way, ...]
    ways_of: int
    evicts: bool
    next_step: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """What the pod has of one card; ``card`` None for one that is no more there."""

    uuid: CardUUID
    card: Card | None
    amount: Amount


@dataclass(frozen=True, slots=True)
class Earlier:
    """A card that the policy likes better than the pod's own, and why it is not it."""

    card: Card
    words: str


@dataclass(frozen=True, slots=True)
class Placed:
    """It has its cards: which, since when, by which policy, and why those.

    ``planned`` are those that it should have had, none where it has them; without a
    plan (``is_planned``) the device plugin chose. ``waits`` are kubelet's words when a
    container may not start.
    """

    state: ClassVar[str] = "placed"
    pod: PodRef
    asks: str
    node: str
    held: tuple[Held, ...]
    at: str
    policy: str
    own_policy: bool
    cards: CardSelector | None
    planned: tuple[Held, ...]
    is_planned: bool
    earlier: tuple[Earlier, ...]
    because: str
    phase: str
    leaving: bool
    waits: str
    warnings: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """It may have its card and still not run."""
        return WAITS if self.waits else FINE


@dataclass(frozen=True, slots=True)
class Unplaced:
    """It is bound, and nobody knows which cards it has."""

    state: ClassVar[str] = "unplaced"
    pod: PodRef
    asks: str
    node: str
    complaint: str
    waits: str
    warnings: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """Unknown is not fine."""
        return WAITS


Answer = AsksNothing | Ended | Unmeetable | Pending | Placed | Unplaced
