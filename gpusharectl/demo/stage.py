"""What the story's scenes do on the desk, and how each step is shown."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
_BAR = 24

Seen = TypeVar("Seen")


class NotAsPromisedError(Exception):
    """Something came out otherwise than the documents promise; says what."""


@dataclass
class Stage:
    """One small cluster, and a console to tell of it."""

    desk: Desk
    console: Console
    _nodes: dict[str, tuple[Card, ...]] = field(default_factory=dict)

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
            self._delete(pod["metadata"]["name"])
        self._until(lambda: not self._pods(), "all pods to go")
        for name in self._nodes:
            self.desk.kubelet.leave(name)
        self._nodes.clear()

    def create(self, name: str, units: int, *, say: str = "create") -> None:
        """Make a pod, as a Deployment would, and show what became of it."""
        self.desk.cluster.create(Kind.PODS, _pod(name, units))
        pod = self._until(lambda: self._settled(name), f"{name} to be decided")
        placement = pod_record(pod).placement
        if placement is not None:
            where = f"→ {placement.node} {self._card_names(placement)}"
            self._step(say, name, _units(units), Text(where, "green"))
        else:
            self._step(say, name, _units(units), Text("Pending", "yellow"))
            self.console.print(Text(f"    {self.message(name)}"), soft_wrap=True)
            self._why(units)
        self.draw()

    def message(self, name: str) -> str:
        """Give the text of a pod's newest warning."""
        events = self.desk.cluster.list_page(Kind.EVENTS, limit=_MOST).items
        found = [
            (int(event["metadata"]["resourceVersion"]), str(event["message"]))
            for event in events
            if event["involvedObject"]["name"] == name and event["type"] == "Warning"
        ]
        return max(found)[1] if found else ""

    def delete(self, name: str) -> None:
        """Delete a running pod that takes its time to end."""
        self.desk.kubelet.hold(name)
        self._delete(name)
        words = "Terminating: it holds its units until it is gone"
        self._step("delete", name, "", Text(words, "yellow"))
        self.draw()

    def gone(self, name: str) -> None:
        """Let a deleted pod end, and wait until it is gone."""
        self.desk.kubelet.release(name)
        self._until(lambda: self._find(name) is None, f"{name} to go")
        self._step("gone", name, "", Text(""))
        self.draw()

    def withdraw(self, name: str) -> None:
        """Delete a pod that never ran."""
        self._delete(name)
        self._until(lambda: self._find(name) is None, f"{name} to go")
        self._step("delete", name, "", Text("it held nothing"))

    def draw(self) -> None:
        """Draw what each card holds, a line for each."""
        for cards in self._nodes.values():
            for card in cards:
                pieces = self._held(card)
                used = sum(piece.units for piece in pieces)
                line = Text(f"    card {card.index} ")
                line.append_text(bar(card.units, pieces, _BAR))
                line.append(f" {used:>2}/{card.units} ")
                self.console.print(line.append_text(legend(pieces)))

    def expect(self, promise: str, *, held: Sequence[Sequence[str]]) -> None:
        """Insist that the cards of all nodes hold these pods, and say so."""
        cards = [card for cards in self._nodes.values() for card in cards]
        seen = [{piece.name for piece in self._held(card)} for card in cards]
        if seen != [set(names_) for names_ in held]:
            raise NotAsPromisedError(f"{promise}: the cards hold {seen}")
        self.console.print(Text(f"  As promised: {promise}.", "bold green"))

    def expect_event(self, name: str, begins: str) -> None:
        """Insist on the beginning of a pod's newest warning."""
        message = self._until(lambda: self.message(name), f"an event of {name}")
        if not message.startswith(begins):
            raise NotAsPromisedError(f"{name} says: {message}")

    def _step(self, say: str, name: str, units: str, what: Text) -> None:
        text = Text(f"  {say:<6} {name:<10} {units:>8}  ", "bold")
        self.console.print(text.append_text(what))

    def _why(self, units: int) -> None:
        for cards in self._nodes.values():
            for card in cards:
                free = card.units - sum(piece.units for piece in self._held(card))
                missing = f"card {card.index} has {free} free, {units} are asked"
                self.console.print(Text(f"    {missing}", "dim"))

    def _held(self, card: Card) -> list[Piece]:
        placements = filter(None, (pod_record(p).placement for p in self._pods()))
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

    def _find(self, name: str) -> Json | None:
        here = [p for p in self._pods() if p["metadata"]["name"] == name]
        return here[0] if here else None

    def _pods(self) -> tuple[Json, ...]:
        return self.desk.cluster.list_page(Kind.PODS, limit=_MOST).items

    def _delete(self, name: str) -> None:
        self.desk.cluster.delete(Kind.PODS, NAMESPACE, name)

    def _until(self, look: Callable[[], Seen | None], what: str) -> Seen:
        deadline = time.monotonic() + _WITHIN_S
        while not (seen := look()):
            if time.monotonic() > deadline or not self.desk.extender_runs():
                raise NotAsPromisedError(f"waited in vain for {what}")
            time.sleep(0.02)
        return seen


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
