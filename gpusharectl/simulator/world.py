"""A cluster in memory with the books that the extender keeps of a real one.

What is written goes to the embedded API server; what it then tells is read into the
books, as the extender's reflectors do; and what is decided, ``schedule`` decides. There
is no other path by which a pod could get a card.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, Placement, PodRef, PodRequest
from gpushare.domain.packer import Packer
from gpushare.domain.policies import Choice, Policy
from gpushare.domain.scheduling import schedule
from gpushare.domain.summary import Refusal
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.bookkeeper import NodeBook, PodBook
from gpushare.kube.cluster import Json, Kind, Target, WatchEvent
from gpushare.kube.embedded import Embedded
from gpusharectl.simulator.candidates import Candidates, Question
from gpusharectl.simulator.clock import Clock
from gpusharectl.simulator.nodewishes import traits_of, wish_of

_FOREVER_S = 1e12
_DEADLINE_S = 4.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a pod was not placed: nodes by reason, or what is wrong with the pod."""

    reasons: Mapping[str, int]
    nodes: int
    """How many there are; some may have several reasons."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A pod that has come, and what it asks."""

    ref: PodRef
    question: Question


class World:
    """Nodes and pods, and what is decided about them; for one thread."""

    def __init__(self, choice: Choice) -> None:
        self.clock = Clock()
        self.learns = True
        """Whether ``frag`` learns of pods that come; not while room is counted."""
        self.hosts = Hosts()
        self.ledger = Ledger()
        self._packer = Packer(self.ledger, self.hosts)
        self.choice = replace(choice, packer=self._packer)
        self.candidates = Candidates(self.ledger, self.hosts)
        self._uids = (f"simulated-{number}" for number in count(1))
        self._uid = ""
        self.cluster = Embedded(
            now=self.clock.moment,
            clock=lambda: 0.0,
            new_uid=self._new_uid,
            bookmark_every_s=0.0,
        )
        self._pods = PodBook(
            self.ledger, self.choice, hosts=self.hosts, on_new=self._see
        )
        self._nodes = NodeBook(
            self.ledger, set_cards=self._pods.set_cards, hosts=self.hosts
        )
        self._node_watch = self._watch(Kind.NODES)
        self._pod_watch = self._watch(Kind.PODS)
        self._catch_up()

    def add_node(self, node: Json) -> None:
        """Add a node, whatever is on it."""
        self.cluster.create(Kind.NODES, node)
        self._catch_up()
        self.candidates.put(NodeName(node["metadata"]["name"]), traits_of(node))

    def close_node(self, name: NodeName) -> None:
        """Let nothing more on a node."""
        closed = {"spec": {"unschedulable": True}}
        node = self.cluster.patch(Kind.NODES, "", name, closed)
        self._catch_up()
        self.candidates.put(name, traits_of(node))

    def remove_node(self, name: NodeName) -> None:
        """Take a node away; its pods must have gone."""
        self.cluster.delete(Kind.NODES, "", name)
        self._catch_up()
        self.candidates.drop(name)

    def untouched(self) -> int:
        """Count the cards of which nobody holds anything, on nodes that take pods."""
        pages = self.ledger.nodes()
        takes = self.candidates.takes
        return sum(len(page.untouched) for page in pages if takes(page.name))

    def add_bound(self, pod: Json) -> PodRef:
        """Add a pod that runs already, by its own UID: its placement names it."""
        self._uid = str(pod["metadata"].get("uid") or "")
        made = self.cluster.create(Kind.PODS, pod)
        self._catch_up()
        self.candidates.count(NodeName(pod["spec"]["nodeName"]), 1)
        return codec.pod_ref(made)

    def add(self, pod: Json) -> Newcomer | Refusal:
        """Add a pod that waits; a refusal where no node could ever take it."""
        made = self.cluster.create(Kind.PODS, pod)
        self._catch_up()
        ref = codec.pod_ref(made)
        request = codec.pod_request(made, ref)
        if isinstance(request, Refusal):
            return request
        policy = self.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            return policy
        self._learn()
        return Newcomer(ref, self._question(request, policy, made))

    def place(self, newcomer: Newcomer) -> Placement | Refused:
        """Decide where the pod goes, and bind it there; or say why it must wait."""
        question = newcomer.question
        fitting = self.candidates.offered(question)
        decided = self._decided(question, fitting)
        if not isinstance(decided, Placement):
            reasons = self.candidates.reasons(question)
            return Refused(reasons, len(self.candidates.names()))
        self._bind(newcomer.ref, decided)
        return decided

    def take_away(self, ref: PodRef, node: NodeName | None) -> None:
        """Delete a pod, at once; ``node`` None for one that waits."""
        self.cluster.delete(
            Kind.PODS, ref.namespace, ref.name, grace_period_s=0, uid=ref.uid
        )
        self._catch_up()
        if node is not None:
            self.candidates.count(node, -1)

    def _decided(
        self, question: Question, fitting: tuple[NodeName, ...]
    ) -> Placement | Mapping[NodeName, Refusal]:
        pages = (self.ledger.node(name) for name in fitting)
        found = [page for page in pages if page is not None]
        return schedule(question.request, found, question.policy)

    def _bind(self, ref: PodRef, decided: Placement) -> None:
        at = self.clock.moment().isoformat()
        told = {names.PLACEMENT: encode_placement(decided, at)}
        self.cluster.bind(
            Target(ref.namespace, ref.name, ref.uid),
            decided.node,
            told if decided.shares else {},
            timeout_s=_DEADLINE_S,
        )
        self._catch_up()
        self.candidates.count(decided.node, 1)

    def _question(self, request: PodRequest, policy: Policy, pod: Json) -> Question:
        return Question(request, policy, wish_of(pod, request.host))

    def _see(self, request: PodRequest) -> None:
        if self.learns:
            self._packer.see(request)

    def _learn(self) -> None:
        if self._packer.due:
            self._packer.learn()

    def _new_uid(self) -> str:
        uid, self._uid = self._uid, ""
        return uid or next(self._uids)

    def _watch(self, kind: Kind) -> Iterator[WatchEvent]:
        return self.cluster.watch(kind, resource_version="0", timeout_s=_FOREVER_S)

    def _catch_up(self) -> None:
        """Read into the books all that the API server has told by now."""
        for stream, book in (
            (self._node_watch, self._nodes),
            (self._pod_watch, self._pods),
        ):
            # Bookmarks come without a pause: the first one means that all is read.
            for event in stream:
                if event.type == "BOOKMARK":
                    break
                book.apply(event)
