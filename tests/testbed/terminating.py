"""Which deleted pods still run, and until when."""

import threading
import time
from dataclasses import dataclass, field

from tests.testbed.rest import Json

Key = tuple[str, str]


@dataclass
class Terminating:
    """Pods on their way out; ``due`` hands each out once, when its time has come."""

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _pods: dict[str, tuple[float, Json]] = field(default_factory=dict)
    _held: set[Key] = field(default_factory=set)
    _closed: bool = False

    def add(self, pod: Json, grace_s: float) -> None:
        """Let the pod end after its grace; a pod already known keeps its time."""
        with self._changed:
            uid = pod["metadata"]["uid"]
            self._pods.setdefault(uid, (time.monotonic() + grace_s, pod))
            self._changed.notify_all()

    def hold(self, key: Key) -> None:
        with self._changed:
            self._held.add(key)

    def release(self, key: Key) -> None:
        with self._changed:
            self._held.discard(key)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def due(self) -> list[Json]:
        """Wait for pods that may end now and give them; an empty list after close."""
        with self._changed:
            while not self._closed:
                free = [entry for entry in self._pods.values() if self._is_free(entry)]
                now = time.monotonic()
                if ready := [pod for at, pod in free if at <= now]:
                    for pod in ready:
                        del self._pods[pod["metadata"]["uid"]]
                    return ready
                self._changed.wait(min((at - now for at, _ in free), default=None))
            return []

    def _is_free(self, entry: tuple[float, Json]) -> bool:
        metadata = entry[1]["metadata"]
        return (metadata["namespace"], metadata["name"]) not in self._held
