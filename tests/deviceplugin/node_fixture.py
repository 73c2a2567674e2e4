"""The device plugin, wired as it ships, over stand-ins for kubelet and API server."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Self, cast

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin import serve
from deviceplugin.allocation.cdi import LimitSpecifications
from deviceplugin.allocation.device_chooser import DeviceQuestion
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.allocation.records import AllocationRecords
from deviceplugin.cards import advertised
from deviceplugin.kubelet import registration
from deviceplugin.serve import PluginParts, assemble_plugin
from deviceplugin.serve import start_plugin as start_serving
from deviceplugin.settings import DevicePluginSettings
from gpushare.cards.source import (
    CardReading,
    FoundCard,
    FoundCards,
    NoCardsYet,
    XidEvent,
)
from gpushare.domain.model import CardUUID, NodeName, Placement, Share, join_shares
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Cluster, Json, Kind, PodTarget, WatchEvent
from gpushare.kube.codec import read_pod_record
from gpushare.kube.errors import Unavailable
from gpushare.kubelet import node_pods
from gpushare.kubelet.node_pods import NodePods
from gpushare.kubelet.pods import NodePod, card_key
from gpusharectl.demo import devices as kubelets
from gpusharectl.demo.devices import (
    CannotStartYetError,
    ContainerConfig,
    Devices,
    Rejection,
)
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.demo.kubelet import running_status
from tests.builders import AT, pod_json
from tests.testbed.waiting import wait_until

NODE = NodeName("n")
M, C = names.MEMORY, names.CORE
UUIDS = tuple(
    CardUUID(f"GPU-{digit * 8}-0000-0000-0000-000000000000") for digit in "abcdef01"
)


def found_card(index: int = 0, units: int = 29, **other: Any) -> FoundCard:
    """Card ``index`` of so many units, with the UUID that its index gives it."""
    uuid = UUIDS[index]
    return FoundCard(uuid, index, units * 256 + 100, "Tesla P4", None, index, **other)


def hasten(patch: pytest.MonkeyPatch) -> None:
    """Let the plugin's threads look again soon, so that they end soon."""
    for module, name in (
        (registration, "_STREAM_LOOK_S"),
        (registration, "_SOCKETS_LOOK_S"),
        (registration, "_GRACE_S"),
        (advertised, "_LOOK_S"),
        (node_pods, "_LOOK_S"),
    ):
        patch.setattr(module, name, 0.02)


class ScriptedCards:
    """A ``CardSource`` that a test holds in its hands."""

    def __init__(self, *cards: FoundCard) -> None:
        self.found = FoundCards(cards)
        self.failures: dict[CardUUID, str] = {}
        self.faults: list[XidEvent] = []
        self.load = "first"
        self.away = ""

    def cards(self) -> FoundCards:
        """The cards, unless their driver is away."""
        if self.away:
            raise NoCardsYet(self.away)
        return self.found

    def readings(self) -> Sequence[CardReading]:
        self.cards()
        why = [
            (card.uuid, self.failures.get(card.uuid, "")) for card in self.found.cards
        ]
        return [CardReading(uuid, None if how else 0, how) for uuid, how in why]

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        if self.faults:
            return self.faults.pop(0)
        Event().wait(min(timeout_s, 0.02))
        return None

    def driver_load(self) -> str:
        return self.load

    def close(self) -> None:
        pass


class ScriptedLimits:
    """A driver with memory limits that a test holds in its hands."""

    def __init__(self) -> None:
        self.driver = "615.38.02"
        self.why: dict[CardUUID, str] = {}

    def driver_version(self) -> str:
        return self.driver

    def why_no_limits(self, uuids: Iterable[CardUUID]) -> Mapping[CardUUID, str]:
        return {uuid: self.why.get(uuid, "") for uuid in uuids}


class Line:
    """What the plugin sees of an API server, until the line is cut."""

    def __init__(self, cluster: Embedded) -> None:
        self._cluster = cluster
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **how: Any) -> Any:
            self._insist()
            return getattr(self._cluster, name)(*args, **how)

        return call

    def watch(self, *args: Any, **how: Any) -> Iterator[WatchEvent]:
        """Follow changes until the line is cut, which the next bookmark shows."""
        for event in self._cluster.watch(*args, **how):
            self._insist()
            yield event

    def _insist(self) -> None:
        if self.cut:
            raise Unavailable("no route to host")


class NodeFixture:
    """One node: its kubelet's device manager, its plugin, and an API server."""

    def __init__(
        self, folder: Path, *cards: FoundCard, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.cards = ScriptedCards(*(cards or (found_card(),)))
        self.cluster = Embedded(bookmark_every_s=0.1)
        self.line = Line(self.cluster)
        self.devices = Devices(folder)
        defaults: dict[str, Any] = {
            "kubelet_dir": folder,
            "state_dir": folder / "vcuda",
            "inject": "env",
            "look_every_s": 0.05,
        }
        self.settings = DevicePluginSettings(NODE, **(defaults | dict(settings or {})))
        self.stop = Event()
        self.limits = ScriptedLimits()
        self.library = folder / "libvcuda.so.1"
        self.library.write_bytes(b"the library")
        self.serving: PluginParts
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        hasten(self._stack.enter_context(pytest.MonkeyPatch.context()))
        self.cluster.create(
            Kind.NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        )
        self._stack.enter_context(self.devices)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._stack.close()

    def start(self) -> None:
        """Start the plugin and wait until kubelet has its devices."""
        # Else kubelet would hang up on this one when the former's stream ends.
        wait_until(
            lambda: not any(self.devices.allocatable().values()),
            "kubelet to notice that the plugin before has ended",
        )
        self.stop = Event()
        self.serving = self.assembled()
        self._threads = start_serving(self.serving, self.settings, self.stop)
        self.wait_registered()

    def assembled(self) -> PluginParts:
        """Put a plugin together as it ships; nothing of it runs."""
        self.registry = CollectorRegistry()
        line = cast("Cluster", self.line)
        return assemble_plugin(
            self.settings, self.cards, line, self.registry, self.limits, self.library
        )

    def end(self) -> None:
        """Stop the plugin, as SIGTERM does."""
        self.stop.set()
        for thread in self._threads:
            thread.join(20)

    def restart(self, **settings: Any) -> None:
        """End the plugin and start another one, with other settings."""
        self.end()
        self.settings = replace(self.settings, **settings)
        self.start()

    def wait_registered(self) -> None:
        there = self.devices.allocatable
        wait_until(
            lambda: there().get(M) and there().get(C), "both resources to be there"
        )

    def bind(
        self,
        name: str,
        units: int | None = None,
        cores: int | None = None,
        *,
        card: int | None = 0,
        placement: str | None = None,
        **how: Any,
    ) -> Json:
        """Make a pod, bound to this node, planned on card ``card``; None: no plan."""
        body = pod_json(name, units=units, cores=cores, **how)
        del body["metadata"]["uid"], body["metadata"]["resourceVersion"]
        made = self.cluster.create(Kind.PODS, body)
        target = PodTarget("default", name, made["metadata"]["uid"])
        if placement is None and card is not None:
            placement = encode_placement(self.planned(made, card), AT)
        extra = {} if placement is None else {names.PLACEMENT: placement}
        self.cluster.bind(target, NODE, extra, timeout_s=1)
        if not self.line.cut:
            self.wait_seen(name)
        return self.pod(name)

    def cut_off(self) -> None:
        """Take the API server out of the plugin's reach, and wait until it noticed."""
        self.line.cut = True
        wait_until(
            lambda: not self.serving.parts.prestart.in_touch.is_set(),
            "the watch to break",
        )

    def wait_seen(self, name: str) -> None:
        """Wait until the plugin's watch has told of the pod as it is now."""
        uid = self.pod(name)["metadata"]["uid"]
        self.wait_pod(name, lambda pod: pod and pod.uid == uid, f"{name} to be seen")

    def wait_gone(self, name: str) -> None:
        """Wait until the plugin knows no such pod."""
        self.wait_pod(name, lambda pod: pod is None, f"{name} to be gone")

    def wait_pod(
        self, name: str, accept: Callable[[NodePod | None], object], what: str
    ) -> None:
        """Wait until what the plugin's watch has told of a pod is accepted."""
        wait_until(lambda: accept(self.pods.find(("default", name))), what)

    def plan(self, name: str, text: str) -> None:
        """Write a placement on a pod, and wait until the plugin has seen one."""
        self.cluster.annotate(Kind.PODS, "default", name, {names.PLACEMENT: text})
        self.wait_pod(name, lambda pod: pod and pod.placement, "the plan")

    @property
    def occupancy(self) -> Occupancy:
        """What the plugin knows of its pods and their cards."""
        return self.serving.reporter.occupancy

    @property
    def pods(self) -> NodePods:
        return self.occupancy.pods

    def planned(self, pod: Json, card: int) -> Placement:
        """The placement of all that a pod asks, whole, on the card of this index."""
        record = read_pod_record(pod)
        claims = record.request.claims  # type: ignore[union-attr]
        shares = [
            Share(UUIDS[card], claim.amount, claim.containers) for claim in claims
        ]
        return Placement(record.pod, NODE, join_shares(shares))

    def pod(self, name: str) -> Json:
        return self.cluster.get(Kind.PODS, "default", name)

    def admit(self, pod: Json) -> dict[str, ContainerConfig]:
        answer = self.devices.admit(pod)
        assert not isinstance(answer, Rejection), answer
        return dict(answer)

    def refuse(self, pod: Json) -> str:
        answer = self.devices.admit(pod)
        assert isinstance(answer, Rejection), answer
        return str(answer.message)

    def run(self, pod: Json) -> dict[str, ContainerConfig]:
        """Admit a pod and start its containers."""
        answer = self.admit(pod)
        for container in answer:
            self.start_one(pod, container)
        return answer

    def start_one(self, pod: Json, container: str = "main") -> ContainerConfig:
        """Start a container of a pod that was admitted."""
        return self.devices.start(pod["metadata"]["uid"], container)

    def waits(self, pod: Json, because: str, container: str = "main") -> None:
        """Try to start a container, which may not start for this reason."""
        with pytest.raises(CannotStartYetError, match=because):
            self.start_one(pod, container)

    def allocate(self, resource: str, ids: Sequence[str]) -> None:
        """Ask the admission as Allocate does, or raise ``DeniedError``."""
        self.serving.parts.device_chooser.allocate(
            self.serving.parts.offer.cards, resource, ids
        )

    def start_container(self, resource: str, ids: Sequence[str]) -> None:
        """Make PreStartContainer's check, or raise ``NotYetError``."""
        self.serving.parts.prestart.let_start(
            self.serving.parts.offer.cards, resource, ids
        )

    def tell_running(self, *names: str) -> None:
        """Write what kubelet writes of pods that run, and let the plugin see it."""
        for name in names:
            status = {"status": running_status(self.pod(name))}
            where = (Kind.PODS, "default", name)
            self.cluster.patch(*where, status, subresource="status")
            self.wait_pod(name, lambda pod: pod and pod.running, f"{name} to run")

    def lose_checkpoint(self) -> None:
        """Restart kubelet without its checkpoint; it admits its pods anew."""
        active = sorted(
            self.devices._holdings.active(),
            key=lambda pod: str(pod["metadata"]["creationTimestamp"]),
        )
        self.devices.close()
        self.devices = Devices(self.folder)
        self._stack.enter_context(self.devices)
        self.wait_registered()
        for pod in active:
            now = self.pod(pod["metadata"]["name"])
            runs = [
                status["name"]
                for key in ("initContainerStatuses", "containerStatuses")
                for status in now["status"].get(key, ())
                if "running" in status["state"]
            ]
            answer = self.devices.admit(now, runs)
            assert not isinstance(answer, Rejection), answer

    def reboot_cut_off(self) -> None:
        """Boot out of the API server's reach; kubelet has lost its checkpoint."""
        self.end()
        self.line.cut = True
        self.devices.close()
        self.devices = Devices(self.folder)
        self._stack.enter_context(self.devices)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(serve, "_SYNC_WITHIN_S", 0.02)
            self.start()

    def end_pod(self, name: str) -> None:
        """Delete a pod, whose containers have ended."""
        pod = self.pod(name)
        self.devices.release(pod["metadata"]["uid"])
        self.cluster.delete(Kind.PODS, "default", name, grace_period_s=0)

    def actual(self, name: str) -> tuple[CardUUID, ...] | None:
        """The cards of the actual placement, if one is written."""
        pod = self.pod(name)
        if names.ACTUAL not in pod["metadata"].get("annotations", {}):
            return None
        placement = read_pod_record(pod).placement
        assert placement is not None
        return placement.cards()

    def events(self) -> list[tuple[str, str, str]]:
        """Pod, reason and message of every event."""
        items = self.cluster.list_page(Kind.EVENTS, limit=1000).items
        return [
            (event["involvedObject"]["name"], event["reason"], event["message"])
            for event in items
        ]


def visible(given: ContainerConfig) -> tuple[str, ...]:
    return tuple(given.envs["NVIDIA_VISIBLE_DEVICES"].split(","))


def inside(given: ContainerConfig) -> Any:
    """What the container reads in its ``allocation.json``."""
    host = Path(given.mounts["/etc/vcuda"].host_path)
    return json.loads((host / "allocation.json").read_text())


def allocation_records(folder: Path) -> AllocationRecords:
    """The records in this folder, with CDI specifications beside it."""
    return AllocationRecords(folder, LimitSpecifications(folder.with_name("cdi"), ()))


def driver_limit(given: ContainerConfig) -> dict[str, str]:
    """The variables of NVIDIA's hook that CDI brings into a container at its start."""
    cdi = Path(given.mounts["/etc/vcuda"].host_path).parents[2] / "cdi"
    assert not [name for name in given.envs if "GPU_MEMORY" in name]
    kind = "vcuda.baidu.com/limit="
    names = [name.removeprefix(kind) for name in given.cdi if name.startswith(kind)]
    variables: dict[str, str] = {}
    for name in names:
        file = cdi / f"vcuda.baidu.com-limit_{name}.json"
        body = json.loads(file.read_text())
        assert f"{body['kind']}=" == kind
        [device] = body["devices"]
        assert device["name"] == name
        sets = device["containerEdits"]["env"]
        variables |= dict(variable.split("=") for variable in sets)
    return variables


def asks_first(monkeypatch: pytest.MonkeyPatch, resource: str) -> None:
    """Take the chance out of the order in which kubelet asks."""
    monkeypatch.setattr(
        kubelets, "shuffled", lambda names: sorted(names, key=lambda n: n != resource)
    )


def prefers(node: NodeFixture, uuid: CardUUID) -> None:
    """Let kubelet choose this card's ids, whatever was planned and preferred."""
    real = node.serving.parts.device_chooser.prefer

    def prefer(asked: DeviceQuestion) -> list[str]:
        real(asked)
        return ids_of(uuid, asked.available)[: asked.size]

    node.serving.parts.device_chooser.prefer = prefer  # type: ignore[method-assign]


def ids_of(uuid: CardUUID, ids: Sequence[str]) -> list[str]:
    return [device_id for device_id in ids if device_id.startswith(card_key(uuid))]


def because(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """The reasons that were logged with these words."""
    told = [line for line in list(caplog.records) if line.message == words]
    return [getattr(line, "because", "") for line in told]
