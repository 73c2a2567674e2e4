"""Tell the demo's four scenes, and check each result; or leave a cluster running."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

import orjson
from rich.console import Console, RenderableType
from rich.text import Text

from gpushare.domain.model import NOTHING, UNIT_MIB, Card, Placement
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.codec import read_pod_record
from gpushare.kube.words import units as counted_units
from gpusharectl.demo.cluster import CannotStartError, DemoCluster, NodeSpec
from gpusharectl.demo.devices import ContainerConfig
from gpusharectl.output import Hanging, draw_bar, draw_legend

_FILE = "allocation.json"


class NotAsExpectedError(Exception):
    """A result differs from what the documents say; the text says how."""


def check_container(
    pod: Json, placement: Placement, given: Mapping[str, ContainerConfig]
) -> None:
    """Check that a pod's container sees what is placed: its variables and its file."""
    (container,) = pod["spec"]["containers"]
    name = container["name"]
    if name not in given:
        raise NotAsExpectedError(f"{_of(pod)}: {name} was never started")
    total = sum((share.amount for share in placement.shares), NOTHING)
    variables = {
        names.VISIBLE: ",".join(placement.cards()),
        "VCUDA_CARDS": ",".join(placement.cards()),
        "VCUDA_MEMORY_LIMIT_MIB": str(total.units * UNIT_MIB),
        "VCUDA_CORES": str(total.cores),
    }
    _must_equal(pod, "its variables", variables, dict(given[name].envs))
    allocation = _file(pod, given[name])
    whose = {"pod": _of(pod), "uid": pod["metadata"]["uid"], "container": name}
    _must_equal(pod, _FILE, whose, allocation)
    cards = {card["uuid"]: card for card in allocation["cards"]}
    if cards.keys() != set(placement.cards()):
        raise NotAsExpectedError(f"{_of(pod)}: {_FILE} names {list(cards)}")
    for share in placement.shares:
        has = {"cores": share.amount.cores, "units": share.amount.units}
        has["memory_mib"] = share.amount.units * UNIT_MIB
        _must_equal(pod, _FILE, has, cards[share.card])


def _file(pod: Json, given: ContainerConfig) -> Json:
    if names.SHARE_FOLDER not in given.mounts:
        raise NotAsExpectedError(
            f"{_of(pod)}: nothing is mounted on {names.SHARE_FOLDER}"
        )
    path = Path(given.mounts[names.SHARE_FOLDER].host_path) / _FILE
    try:
        allocation: Json = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise NotAsExpectedError(f"{_of(pod)}: {_FILE}: {error}") from error
    return allocation


def _must_equal(pod: Json, where: str, wanted: Json, actual: Json) -> None:
    compared = {key: actual.get(key) for key in wanted}
    if compared != wanted:
        text = f"{_of(pod)}: {where} should say {wanted}, but it is {compared}"
        raise NotAsExpectedError(text)


def _of(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


NAMESPACE = "default"
_WITHIN_S = 60.0
_MOST = 1000
_BAR = 24
_WIDE = 80
"""Columns of a screen on which a card and the names of its pods fit into a line."""
_INDENT = 4

Seen = TypeVar("Seen")


@dataclass
class Story:
    """One small cluster, and a console that shows each step."""

    demo: DemoCluster
    console: Console
    _node: NodeSpec | None = None

    def node(self, spec: NodeSpec) -> None:
        """Set the one node of a scene; it stays if the scene before had the same."""
        if self._node and self._node != spec:
            self.demo.leave(self._node.name)
        if self._node != spec:
            self.demo.join(spec)
        self._node = spec

    def clear(self) -> None:
        """Remove all pods, for the next scene."""
        for pod in self._pods():
            self._delete(pod["metadata"]["name"])
        self._until(lambda: not self._pods(), "all pods to go")

    def create(self, name: str, units: int, *, say: str = "create") -> None:
        """Create a pod, as a Deployment would, and show the result."""
        self.demo.cluster.create(Kind.PODS, _pod(name, units))
        pod = self._until(lambda: self._settled(name), f"{name} to be decided")
        placement = read_pod_record(pod).placement
        if placement is not None:
            self._check(pod, placement)
            where = f"→ {placement.node} {self._card_names(placement)}"
            self._step(say, name, counted_units(units), Text(where, "green"))
        else:
            self._step(say, name, counted_units(units), Text("Pending", "yellow"))
            self._print(_indented(Text(self.message(name))))
            self._why(units)
        self.draw()

    def message(self, name: str) -> str:
        """Return the text of a pod's newest warning."""
        events = self.demo.cluster.list_page(Kind.EVENTS, limit=_MOST).items
        warnings = [
            (int(event["metadata"]["resourceVersion"]), str(event["message"]))
            for event in events
            if event["involvedObject"]["name"] == name and event["type"] == "Warning"
        ]
        return max(warnings)[1] if warnings else ""

    def delete(self, name: str) -> None:
        """Delete a running pod that takes its time to end."""
        self.demo.kubelet.hold(name)
        self._delete(name)
        words = "Terminating: it holds its units until it is gone"
        self._step("delete", name, "", Text(words, "yellow"))
        self.draw()

    def gone(self, name: str) -> None:
        """Let a deleted pod end, and wait until it is gone."""
        self.demo.kubelet.release(name)
        self._until(lambda: self._find(name) is None, f"{name} to go")
        self._step("gone", name, "", Text(""))
        self.draw()

    def inside(self, *names_: str) -> None:
        """Show what containers see of their cards; it was checked when they started."""
        for name in names_:
            pod = self._find(name)
            placement = read_pod_record(pod).placement if pod else None
            if pod is None or placement is None:
                raise NotAsExpectedError(f"{name} is gone")
            self._check(pod, placement)
            total = sum(share.amount.units for share in placement.shares)
            self._step("inside", name, mib(total), Text(",".join(placement.cards())))
        words = "so say their variables and /etc/vcuda/allocation.json"
        self._print(_indented(Text(words, "dim")))

    def withdraw(self, name: str) -> None:
        """Delete a pod that never ran."""
        self._delete(name)
        self._until(lambda: self._find(name) is None, f"{name} to go")
        self._step("delete", name, "", Text("it held nothing"))

    def draw(self) -> None:
        """Draw what each card holds, one line for each."""
        for card in self._cards():
            self._print(*card_lines(self.console.width, card, self._units_by_pod(card)))

    def expect(self, result: str, *, pods: Sequence[Sequence[str]]) -> None:
        """Check that the node's cards hold these pods, and say so."""
        seen = [set(self._units_by_pod(card)) for card in self._cards()]
        if seen != [set(names_) for names_ in pods]:
            raise NotAsExpectedError(f"{result}: the cards hold {seen}")
        self._print(_indented(Text(f"As expected: {result}.", "bold green"), 2))

    def expect_event(self, name: str, begins: str) -> None:
        """Check the beginning of a pod's newest warning."""
        message = self._until(lambda: self.message(name), f"an event of {name}")
        if not message.startswith(begins):
            raise NotAsExpectedError(f"{name} says: {message}")

    def _step(self, say: str, name: str, units: str, what: Text) -> None:
        begin = Text(f"  {say:<6} {name:<10} {units:>8}  ", "bold")
        self._print(*step_lines(self.console.width, begin, what))

    def _print(self, *parts: RenderableType) -> None:
        for part in parts:
            self.console.print(part)

    def _why(self, units: int) -> None:
        for card in self._cards():
            free = card.units - sum(self._units_by_pod(card).values())
            missing = f"card {card.index} has {free} free, {units} are asked"
            self._print(_indented(Text(missing, "dim")))

    def _cards(self) -> tuple[Card, ...]:
        return self._node.cards() if self._node else ()

    def _check(self, pod: Json, placement: Placement) -> None:
        given = self.demo.kubelet.given(pod["metadata"]["uid"])
        check_container(pod, placement, given)

    def _units_by_pod(self, card: Card) -> dict[str, int]:
        placements = filter(None, (read_pod_record(p).placement for p in self._pods()))
        return {
            placement.pod.name: amount.units
            for placement in placements
            for uuid, amount in placement.by_card().items()
            if uuid == card.uuid
        }

    def _card_names(self, placement: Placement) -> str:
        indexes = {card.uuid: card.index for card in self._cards()}
        return ", ".join(f"card {indexes[uuid]}" for uuid in placement.cards())

    def _settled(self, name: str) -> Json | None:
        pod = self._find(name)
        running = pod is not None and pod["status"]["phase"] == "Running"
        return pod if running or self.message(name) else None

    def _find(self, name: str) -> Json | None:
        return next((p for p in self._pods() if p["metadata"]["name"] == name), None)

    def _pods(self) -> tuple[Json, ...]:
        return self.demo.cluster.list_page(Kind.PODS, limit=_MOST).items

    def _delete(self, name: str) -> None:
        self.demo.cluster.delete(Kind.PODS, NAMESPACE, name)

    def _until(self, look: Callable[[], Seen | None], what: str) -> Seen:
        deadline = time.monotonic() + _WITHIN_S
        while not (seen := look()):
            self.demo.check_children()
            if time.monotonic() > deadline:
                raise NotAsExpectedError(f"waited {_WITHIN_S:.0f} s for {what}")
            time.sleep(0.02)
        return seen


def card_lines(
    width: int, card: Card, units_by_pod: Mapping[str, int]
) -> Iterator[RenderableType]:
    """Draw what a card holds; on a narrow screen its pods are named below the bar."""
    line = Text(f"    card {card.index} ")
    line.append_text(draw_bar(card.units, list(units_by_pod.values()), _BAR))
    line.append(f" {sum(units_by_pod.values()):>2}/{card.units}")
    if not units_by_pod:
        yield line
    elif width < _WIDE:
        yield line
        yield _indented(draw_legend(units_by_pod), _INDENT + len("card 0 "))
    else:
        yield line.append(" ").append_text(draw_legend(units_by_pod))


def step_lines(width: int, begin: Text, what: Text) -> Iterator[RenderableType]:
    """Write a step in a line, or what came of it below, where it fits better."""
    if not what:
        begin.rstrip()
        yield begin
    elif begin.cell_len + what.cell_len <= width:
        yield begin.append_text(what)
    else:
        begin.rstrip()
        yield begin
        yield _indented(what)


def _indented(text: Text, by: int = _INDENT) -> Hanging:
    return Hanging(Text(" " * by), text)


def _pod(name: str, units: int) -> Json:
    limits = {names.CORE: "1", names.MEMORY: str(units)}
    app = {"name": "app", "image": "nvidia/cuda:11.0-base"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"containers": [app | {"resources": {"limits": limits}}]},
    }


def mib(units: int) -> str:
    """Write units in MiB."""
    return f"{units * UNIT_MIB} MiB"


_SHORT = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory."
_ONE_CARD = f"{_SHORT[:-1]} on one card."
_RTX_3090 = NodeSpec(
    "node-1", "RTX 3090", {"GPU-5d3cc7ba-1bb4-4f1c-8f4e-2a60a3b7d9c1": 24259}
)
_TESLA_P4 = NodeSpec(
    "node-2",
    "Tesla P4",
    {
        "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7": 7611,
        "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a": 7611,
    },
)
_T400 = NodeSpec(
    "node-3",
    "T400",
    {
        "GPU-31a0d2c4-6f0e-4a39-9d67-0c8be52f14aa": 4096,
        "GPU-e84b9f70-2d15-4c8b-b3f2-7719ac60d5be": 4096,
    },
)
HELD_NODES: Sequence[NodeSpec] = (_RTX_3090, _TESLA_P4)
"""The nodes of the cluster that ``--hold`` leaves running."""


def one_card(story: Story) -> None:
    """One RTX 3090 of 24259 MiB, 94 units: three pods share it."""
    story.node(_RTX_3090)
    for name, units in (("app-1", 50), ("app-2", 40), ("app-3", 1)):
        story.create(name, units)
    story.expect(
        f"91 units, {mib(91)}, of 24259 MiB are in use",
        pods=[["app-1", "app-2", "app-3"]],
    )


def rolling_update(story: Story) -> None:
    """app-3 is updated from 1 unit to 10: 50 + 40 + 10 exceed 94."""
    story.node(_RTX_3090)
    for name, units in (("app-1", 50), ("app-2", 40), ("app-3a", 1)):
        story.create(name, units)
    story.delete("app-3a")
    story.create("app-3b", 10, say="update")
    story.expect_event("app-3b", _SHORT)
    story.gone("app-3a")
    story.expect("it still does not fit, and waits", pods=[["app-1", "app-2"]])
    story.expect_event("app-3b", _SHORT)
    story.withdraw("app-3b")
    story.create("app-3c", 1, say="update")
    story.expect(
        "with the limit put back to 1 it runs", pods=[["app-1", "app-2", "app-3c"]]
    )


def two_cards(story: Story) -> None:
    """Two Tesla P4 of 7611 MiB, 29 units each: pods of 4, 20 and 20."""
    story.node(_TESLA_P4)
    for name, units in (("cuda-1", 4), ("cuda-2", 20), ("cuda-3", 20)):
        story.create(name, units)
    story.expect(
        "the first card with room: 4 and 20 units on card 0, 20 on card 1",
        pods=[["cuda-1", "cuda-2"], ["cuda-3"]],
    )
    story.inside("cuda-1", "cuda-2", "cuda-3")


def not_on_one_card(story: Story) -> None:
    """Two cards of 4 GiB, 16 units each: a pod lives on one of them."""
    story.node(_T400)
    for name, units in (("ai-1", 8), ("ai-2", 12)):
        story.create(name, units)
    story.expect("2 GiB and 3 GiB use both cards", pods=[["ai-1"], ["ai-2"]])
    story.create("ai-3", 10)
    story.expect_event("ai-3", _ONE_CARD)
    story.create("ai-4", 8)
    story.expect(
        "12 units were free, but no card had 10; 8 and 8 share one card",
        pods=[["ai-1", "ai-4"], ["ai-2"]],
    )


SCENES: Sequence[Callable[[Story], None]] = (
    one_card,
    rolling_update,
    two_cards,
    not_on_one_card,
)

_TERMINATED = 128 + signal.SIGTERM
_INTRODUCTION = """\
GPU memory sharing, shown in four short scenes. No GPU, no cluster: an embedded \
API server, stand-ins for scheduler and kubelet, simulated cards, and the real \
extender and device plugin.
1 unit is 256 MiB of one card's memory; every pod also asks 1 core of 100.

"""


def tell_story(console: Console) -> int:
    """Play all scenes; return 0 if each had the expected result, else 1."""
    # An exception ends the children, as Ctrl-C does; the signal alone would not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    _print(console, _INTRODUCTION.splitlines())
    began = time.monotonic()
    try:
        with _folder() as folder, DemoCluster(Path(folder)) as demo:
            story = Story(demo, console)
            for number, scene in enumerate(SCENES, start=1):
                title = (scene.__doc__ or "").rstrip(".")
                console.print(f"[bold]Scene {number}[/bold] · {title}")
                scene(story)
                story.clear()
                console.print()
    except (CannotStartError, NotAsExpectedError) as error:
        console.print(f"Not as expected: {error}", style="bold red", markup=False)
        return 1
    took_s = time.monotonic() - began
    console.print(
        f"All {len(SCENES)} scenes had the expected result, in {took_s:.0f} s."
    )
    console.print("Try it with kubectl: make hold, or gpusharectl demo --hold")
    return 0


def hold_cluster(console: Console, stop: Event) -> int:
    """Start a cluster with two nodes, say how to use it, and wait for ``stop``."""
    try:
        with _folder() as folder, DemoCluster(Path(folder)) as demo:
            demo.join(*HELD_NODES)
            manifest = Path(folder) / "pod.yaml"
            manifest.write_text(_MANIFEST)
            words = _TRY.format(folder=folder, page=demo.page)
            _print(console, words.splitlines())
            while not stop.wait(0.2):
                demo.check_children()
            console.print("Stopping ...")
    except CannotStartError as error:
        console.print(f"Stopped: {error}", style="bold red", markup=False)
        return 1
    return 0


def _print(console: Console, lines: Iterable[str]) -> None:
    """Print texts, wrapped for this screen, and indented commands, which are not."""
    for line in lines:
        console.print(line, soft_wrap=line.startswith(" "))


def _folder() -> tempfile.TemporaryDirectory[str]:
    # Sockets are in it, and their paths must be short.
    usual = tempfile.gettempdir()
    place = usual if len(os.fsencode(usual)) <= _LONGEST_PLACE else "/tmp"  # noqa: S108
    return tempfile.TemporaryDirectory(prefix="gpushare-", dir=place)


_LONGEST_PLACE = 34
"""Bytes; ``/gpushare-12345678/node-1/device-plugins/`` and a name must still fit."""

_MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  name: app-1
spec:
  containers:
  - name: app
    image: nvidia/cuda:12.4.1-base-ubuntu22.04
    resources:
      limits:
        baidu.com/vcuda-core: 1
        baidu.com/vcuda-memory: 20
"""

_TRY = """\
A cluster of two nodes is running: node-1 with one card of 94 units, node-2 with \
two of 29. Try in another terminal:

  export KUBECONFIG={folder}/kubeconfig
  kubectl create -f {folder}/pod.yaml
  kubectl get pods -o wide
  kubectl describe pod app-1
  kubectl get pod app-1 -o yaml    # see baidu.com/vcuda-placement
  kubectl get node node-1 -o yaml  # see baidu.com/vcuda-cards
  kubectl delete pod app-1

Nodes, cards and pods in a browser on this machine: {page}

No container runs; what one would find as /etc/vcuda/allocation.json, and what the \
device plugin says:

  cat {folder}/node-*/vcuda/containers/*/allocation.json
  cat {folder}/node-*/deviceplugin.log

Ctrl-C stops everything and leaves nothing behind."""
