"""What the story's scenes do on the desk, and how each step is shown."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from gpushare.domain.model import UNIT_MIB, Card, Placement
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.codec import pod_record
from gpusharectl.demo.desk import Desk, NodeSpec
from gpusharectl.demo.inside import Inside, NotAsPromisedError, look_inside
from gpusharectl.output import Piece, bar, legend

NAMESPACE = "default"
_WITHIN_S = 20.0
_MOST = 1000
_BAR = 24

Seen = TypeVar("Seen")


@dataclass
class Stage:
    """One small cluster, and a console to tell of it."""

    desk: Desk
    console: Console
    _node: NodeSpec | None = None

    def node(self, spec: NodeSpec) -> None:
        """Set a scene's one node; that of the scene before stays if it is the same."""
        if self._node and self._node != spec:
            self.desk.leave(self._node.name)
        if self._node != spec:
            self.desk.join(spec)
        self._node = spec

    def clear(self) -> None:
        """Remove all pods, for the next scene."""
        for pod in self._pods():
            self._delete(pod["metadata"]["name"])
        self._until(lambda: not self._pods(), "all pods to go")

    def create(self, name: str, units: int, *, say: str = "create") -> None:
        """Make a pod, as a Deployment would, and show what became of it."""
        self.desk.cluster.create(Kind.PODS, _pod(name, units))
        pod = self._until(lambda: self._settled(name), f"{name} to be decided")
        placement = pod_record(pod).placement
        if placement is not None:
            self._inside(pod, placement)
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

    def inside(self, *names_: str) -> None:
        """Show what containers see of their cards; it was checked when they started."""
        for name in names_:
            pod = self._find(name)
            placement = pod_record(pod).placement if pod else None
            if pod is None or placement is None:
                raise NotAsPromisedError(f"{name} is gone")
            seen = self._inside(pod, placement)
            self._step("inside", name, f"{seen.memory_mib} MiB", Text(seen.cards))
        words = "so say their variables and /etc/vcuda/allocation.json"
        self.console.print(Text(f"    {words}", "dim"))

    def withdraw(self, name: str) -> None:
        """Delete a pod that never ran."""
        self._delete(name)
        self._until(lambda: self._find(name) is None, f"{name} to go")
        self._step("delete", name, "", Text("it held nothing"))

    def draw(self) -> None:
        """Draw what each card holds, a line for each."""
        for card in self._cards():
            pieces = self._held(card)
            used = sum(piece.units for piece in pieces)
            line = Text(f"    card {card.index} ")
            line.append_text(bar(card.units, pieces, _BAR))
            line.append(f" {used:>2}/{card.units} ")
            self.console.print(line.append_text(legend(pieces)))

    def expect(self, promise: str, *, held: Sequence[Sequence[str]]) -> None:
        """Insist that the node's cards hold these pods, and say so."""
        seen = [{piece.name for piece in self._held(card)} for card in self._cards()]
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
        for card in self._cards():
            free = card.units - sum(piece.units for piece in self._held(card))
            missing = f"card {card.index} has {free} free, {units} are asked"
            self.console.print(Text(f"    {missing}", "dim"))

    def _cards(self) -> tuple[Card, ...]:
        return self._node.cards() if self._node else ()

    def _inside(self, pod: Json, placement: Placement) -> Inside:
        given = self.desk.kubelet.given(pod["metadata"]["uid"])
        return look_inside(pod, placement, given)

    def _held(self, card: Card) -> list[Piece]:
        placements = filter(None, (pod_record(p).placement for p in self._pods()))
        return [
            Piece(placement.pod.name, share.amount.units)
            for placement in placements
            for share in placement.shares
            if share.card == card.uuid
        ]

    def _card_names(self, placement: Placement) -> str:
        indexes = {card.uuid: card.index for card in self._cards()}
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
            self.desk.insist()
            if time.monotonic() > deadline:
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
