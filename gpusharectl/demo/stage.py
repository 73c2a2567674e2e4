"""What the story's scenes do on the desk, and how each step is shown."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from gpushare.domain.model import UNIT_MIB, Card, CardUUID, Placement, units_of
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.codec import pod_record
from gpusharectl.demo.desk import Desk
from gpusharectl.output import Piece, bar, legend

NAMESPACE = "default"
_WITHIN_S = 20.0
_MOST = 1000
_LABEL_WIDTH = 18

Seen = TypeVar("Seen")


class NotAsPromisedError(Exception):
    """Something came out otherwise than the documents promise; says what."""


@dataclass
class Stage:
    """One small cluster, and a console to tell of it."""

    desk: Desk
    console: Console
    _nodes: dict[str, tuple[Card, ...]] = field(default_factory=dict)
    _generation: count[int] = field(default_factory=lambda: count(1))

    def node(self, name: str, model: str, *cards: tuple[str, int]) -> None:
        """Add a node; each card is its UUID and its memory in MiB."""
        made = tuple(
            Card(CardUUID(uuid), index, units_of(mib), model=model)
            for index, (uuid, mib) in enumerate(cards)
        )
        self._nodes[name] = made
        self.desk.kubelet.join(name, made)

    def clear(self) -> None:
        """Remove all pods and nodes, for the next scene."""
        for pod in self._pods():
            self._delete(pod)
        self._until(lambda: not self._pods(), "all pods to go")
        for name in self._nodes:
            self.desk.kubelet.leave(name)
        self._nodes.clear()

    def create(self, name: str, units: int, *, say: str = "create") -> str:
        """Make a pod, as a Deployment would, and show where it went; its name."""
        self.desk.cluster.create(Kind.PODS, _pod(name, units))
        return self.arrive(name, units, say=say)

    def arrive(self, name: str, units: int, *, say: str) -> str:
        """Wait until the pod runs or an event says why not, and show which."""
        pod = self._until(lambda: self._settled(name), f"{name} to be decided")
        text = Text(f"  {say:<7} {name:<12} {_units(units):>8}   ")
        placement = _placement(pod)
        if placement is not None:
            text.append(f"→  {placement.node} {self._card_names(placement)}", "green")
        else:
            text.append("Pending", "yellow")
        self.console.print(text)
        if placement is None:
            self.event(name)
        return name

    def event(self, name: str) -> None:
        """Show the newest event of a pod as ``kubectl describe`` has it."""
        message = self.message(name)
        self.console.print(Text("          Warning  FailedScheduling  "), end="")
        self.console.print(Text(message), soft_wrap=True)

    def message(self, name: str) -> str:
        """Give the text of a pod's newest warning."""
        events = self.desk.cluster.list_page(Kind.EVENTS, limit=_MOST).items
        found = [
            event["message"]
            for event in events
            if event["involvedObject"]["name"] == name and event["type"] == "Warning"
        ]
        return str(found[-1]) if found else ""

    def delete(self, name: str) -> None:
        """Delete a pod that takes its time to end, and show that it still holds."""
        self.desk.kubelet.hold(name)
        self._delete(self._pod(name))
        self.console.print(
            f"  delete  {name:<12}            Terminating; it holds its units until "
            "it is gone"
        )

    def gone(self, name: str) -> None:
        """Let a deleted pod end, and wait until it is gone."""
        self.desk.kubelet.release(name)
        self._until(lambda: self._find(name) is None, f"{name} to go")
        self.console.print(f"  gone    {name}")

    def draw(self) -> None:
        """Draw what each card holds."""
        for node, cards in self._nodes.items():
            for card in cards:
                pieces = self._held(card)
                used = sum(piece.units for piece in pieces)
                where = f"  {node} card {card.index}".ljust(_LABEL_WIDTH)
                line = Text(where).append_text(bar(card.units, pieces, 40))
                line.append(f"  {used}/{card.units} units")
                self.console.print(line)
                self.console.print(Text(" " * _LABEL_WIDTH).append_text(legend(pieces)))

    def expect(self, promise: str, *, held: Sequence[Sequence[str]]) -> None:
        """Insist that the cards of all nodes hold these pods, and say so."""
        cards = [card for cards in self._nodes.values() for card in cards]
        seen = [{piece.name for piece in self._held(card)} for card in cards]
        if seen != [set(names_) for names_ in held]:
            raise NotAsPromisedError(f"{promise}: the cards hold {seen}")
        self.console.print(Text(f"  as promised: {promise}", "bold"))

    def expect_event(self, name: str, begins: str) -> None:
        """Insist on the beginning of a pod's newest warning."""
        message = self._until(lambda: self.message(name), f"an event of {name}")
        if not message.startswith(begins):
            raise NotAsPromisedError(f"{name} says: {message}")

    def _held(self, card: Card) -> list[Piece]:
        placements = filter(None, (_placement(pod) for pod in self._pods()))
        return [
            Piece(placement.pod.name, share.amount.units)
            for placement in placements
            for share in placement.shares
            if share.card == card.uuid
        ]

    def _card_names(self, placement: Placement) -> str:
        indexes = {card.uuid: card.index for card in self._nodes[placement.node]}
        return ", ".join(f"card {indexes[uuid]}" for uuid in placement.cards())

    def _settled(self, name: str) -> Json | None:
        pod = self._find(name)
        if pod is None:
            return None
        running = pod["status"]["phase"] == "Running"
        return pod if running or self.message(name) else None

    def _pod(self, name: str) -> Json:
        return self.desk.cluster.get(Kind.PODS, NAMESPACE, name)

    def _find(self, name: str) -> Json | None:
        here = [p for p in self._pods() if p["metadata"]["name"] == name]
        return here[0] if here else None

    def _pods(self) -> tuple[Json, ...]:
        return self.desk.cluster.list_page(Kind.PODS, limit=_MOST).items

    def _delete(self, pod: Json) -> None:
        self.desk.cluster.delete(Kind.PODS, NAMESPACE, pod["metadata"]["name"])

    def _until(self, look: Callable[[], Seen | None], what: str) -> Seen:
        deadline = time.monotonic() + _WITHIN_S
        while not (seen := look()):
            if time.monotonic() > deadline or not self.desk.extender_runs():
                raise NotAsPromisedError(f"waited in vain for {what}")
            time.sleep(0.02)
        return seen


def _placement(pod: Json) -> Placement | None:
    return pod_record(pod).placement


def _units(units: int) -> str:
    return f"{units} unit" if units == 1 else f"{units} units"


def _pod(name: str, units: int) -> Json:
    asked = {names.CORE: "1", names.MEMORY: str(units)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "containers": [
                {
                    "name": "app",
                    "image": "nvidia/cuda:11.0-base",
                    "resources": {"limits": asked},
                }
            ]
        },
    }


def mib(units: int) -> str:
    """Say units in MiB."""
    return f"{units * UNIT_MIB} MiB"
