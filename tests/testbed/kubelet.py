"""A stand-in for kubelet: sets bound pods Running, and lets deleted ones end."""

import http.client
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Self

from tests.testbed.objects import finish_deletion, set_running
from tests.testbed.rest import ApiError, Json, Rest, Watch

Key = tuple[str, str]


@dataclass
class Terminating:
    """Pods on their way out; ``due`` hands each out once, unless it is held."""

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _pods: dict[str, Json] = field(default_factory=dict)
    _held: set[Key] = field(default_factory=set)
    _closed: bool = False

    def add(self, pod: Json) -> None:
        with self._changed:
            self._pods.setdefault(pod["metadata"]["uid"], pod)
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
                if ready := [pod for pod in self._pods.values() if self._is_free(pod)]:
                    for pod in ready:
                        del self._pods[pod["metadata"]["uid"]]
                    return ready
                self._changed.wait()
            return []

    def _is_free(self, pod: Json) -> bool:
        metadata = pod["metadata"]
        return (metadata["namespace"], metadata["name"]) not in self._held


PODS = "/api/v1/pods"
BOUND = "spec.nodeName!="
RETRY_S = 0.2


class StandInKubelet:
    """Acts for every node while its ``with`` lasts, over the API server's restarts.

    A deleted pod ends at once, or stays Terminating for as long as it is held.
    """

    _watch: Watch | None = None

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._terminating = Terminating()
        self._started: set[str] = set()
        self._addresses = count(1)
        self._stopping = threading.Event()
        self._writers = ThreadPoolExecutor(4, "kubelet-writer")
        self._threads = [
            threading.Thread(target=loop, name="kubelet")
            for loop in (self._follow, self._end_due)
        ]

    def hold(self, name: str, namespace: str = "default") -> None:
        """Keep this pod Terminating, once it is deleted, until ``release``."""
        self._terminating.hold((namespace, name))

    def release(self, name: str, namespace: str = "default") -> None:
        self._terminating.release((namespace, name))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._terminating.close()
        if self._watch is not None:
            self._watch.close()
        for thread in self._threads:
            thread.join()
        self._writers.shutdown(cancel_futures=True)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self._list_and_watch()
            except (OSError, http.client.HTTPException, ApiError):
                # The API server is away: tests restart it.
                self._stopping.wait(RETRY_S)

    def _list_and_watch(self) -> None:
        listed = self._rest.must("GET", f"{PODS}?fieldSelector={BOUND}")
        self._started.clear()
        for pod in listed["items"]:
            self._see(pod)
        version = listed["metadata"]["resourceVersion"]
        self._watch = self._rest.watch(
            PODS, fieldSelector=BOUND, resourceVersion=version
        )
        if self._stopping.is_set():
            self._watch.close()
        for event in self._watch:
            if event["type"] == "ERROR":
                return
            if event["type"] in {"ADDED", "MODIFIED"}:
                self._see(event["object"])

    def _see(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            self._terminating.add(pod)
        elif pod["status"]["phase"] == "Pending" and uid not in self._started:
            self._started.add(uid)
            number = next(self._addresses)
            address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            self._write(partial(set_running, self._rest, pod, address))

    def _end_due(self) -> None:
        while pods := self._terminating.due():
            for pod in pods:
                self._write(partial(finish_deletion, self._rest, pod))

    def _write(self, write: Callable[[], tuple[int, Json]]) -> None:
        if not self._stopping.is_set():
            self._writers.submit(self._until_answered, write)

    def _until_answered(self, write: Callable[[], tuple[int, Json]]) -> None:
        while not self._stopping.is_set():
            try:
                write()
            except (OSError, http.client.HTTPException):
                self._stopping.wait(RETRY_S)
            else:
                # Refused is settled as well: the pod is gone, or another by that name.
                return
