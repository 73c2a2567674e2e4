"""A stand-in for kubelet: sets bound pods Running, and lets deleted ones end."""

import http.client
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Self

from tests.testbed.objects import finish_deletion, set_running
from tests.testbed.rest import ApiError, Json, Rest, Watch

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
        self._changed = threading.Condition()
        self._leaving: dict[str, Json] = {}
        self._held: set[tuple[str, str]] = set()
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
        with self._changed:
            self._held.add((namespace, name))

    def release(self, name: str, namespace: str = "default") -> None:
        with self._changed:
            self._held.discard((namespace, name))
            self._changed.notify_all()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
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
            with self._changed:
                self._leaving.setdefault(uid, pod)
                self._changed.notify_all()
        elif pod["status"]["phase"] == "Pending" and uid not in self._started:
            self._started.add(uid)
            number = next(self._addresses)
            address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            self._write(partial(set_running, self._rest, pod, address))

    def _end_due(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._stopping.is_set() or self._free())
                pods = self._free()
                for pod in pods:
                    del self._leaving[pod["metadata"]["uid"]]
            for pod in pods:
                self._write(partial(finish_deletion, self._rest, pod))

    def _free(self) -> list[Json]:
        """Give the pods that may end now."""
        return [pod for pod in self._leaving.values() if not self._is_held(pod)]

    def _is_held(self, pod: Json) -> bool:
        metadata = pod["metadata"]
        return (metadata["namespace"], metadata["name"]) in self._held

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
