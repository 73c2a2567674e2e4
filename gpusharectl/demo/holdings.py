"""Who holds which devices of a node, as kubelet writes it down."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Lock

from gpushare.kube.cluster import Json
from gpushare.kube.proto.deviceplugin_pb2 import ContainerAllocateResponse


@dataclass(frozen=True, slots=True)
class Held:
    """One container's devices of one resource, and what the plugin gave with them."""

    ids: frozenset[str]
    answer: ContainerAllocateResponse


class Holdings:
    """Active pods, what is recorded of them, and what is taken before it is recorded.

    What an ended pod held is free only after the next ``sweep``, and a sweep that frees
    anything forgets what is taken but not yet recorded. The second is a mistake of
    kubelet's that a plugin must live with (contracts 2.7), so it is kept.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pods: dict[str, Json] = {}
        self._held: dict[str, dict[str, dict[str, Held]]] = {}
        self._taken: dict[str, set[str]] = {}

    def begin(self, pod: Json) -> None:
        """Take a pod as active; its admission begins."""
        with self._lock:
            self._pods[pod["metadata"]["uid"]] = pod

    def end(self, uid: str) -> None:
        """Take a pod as active no more."""
        with self._lock:
            self._pods.pop(uid, None)

    def active(self) -> tuple[Json, ...]:
        """Give the active pods."""
        with self._lock:
            return tuple(self._pods.values())

    def sweep(self) -> None:
        """Free what ended pods held."""
        with self._lock:
            ended = self._held.keys() - self._pods.keys()
            for uid in ended:
                del self._held[uid]
            if ended:
                self._recount()

    def take(self, resource: str, ids: Collection[str]) -> None:
        """Keep devices from others while their container is being admitted."""
        with self._lock:
            self._taken.setdefault(resource, set()).update(ids)

    def record(self, uid: str, container: str, resource: str, held: Held) -> None:
        """Write down what a container holds."""
        with self._lock:
            containers = self._held.setdefault(uid, {})
            containers.setdefault(container, {})[resource] = held

    def untake(self) -> None:
        """Let go of all that is taken and not recorded."""
        with self._lock:
            self._recount()

    def in_use(self, resource: str) -> frozenset[str] | None:
        """Give the devices that are taken; None where none ever was."""
        with self._lock:
            ids = self._taken.get(resource)
            return None if ids is None else frozenset(ids)

    def of(self, uid: str, container: str) -> Mapping[str, Held]:
        """Give what a container holds, by resource."""
        with self._lock:
            return dict(self._held.get(uid, {}).get(container, {}))

    def _recount(self) -> None:
        self._taken = {}
        for containers in self._held.values():
            for resources in containers.values():
                for resource, held in resources.items():
                    self._taken.setdefault(resource, set()).update(held.ids)
