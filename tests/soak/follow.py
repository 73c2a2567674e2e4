"""Every state of every pod, as the API server tells it, over its restarts."""

import http.client
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

from tests.testbed.rest import ApiError, Json, Rest

if TYPE_CHECKING:
    from tests.testbed.watch import Watch

PODS = "/api/v1/pods"
AGAIN_S = 0.2
_LONGEST_S = 60.0


class Onlooker(Protocol):
    """Who is told; always from the one thread, in the API server's order."""

    def all_pods(self, pods: list[Json], asked_at: float) -> None: ...

    def changed(self, a_pod: Json) -> None: ...

    def gone(self, a_pod: Json) -> None: ...


class Follower:
    """Lists and watches all pods while its ``with`` lasts."""

    def __init__(self, rest: Rest, *onlookers: Onlooker) -> None:
        self._rest = rest
        self._onlookers = onlookers
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._follow, name="follower")
        self.error: BaseException | None = None
        """What ended it before its time: a mistake of the test's own."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._watch is not None:
            self._watch.close()
        self._thread.join(_LONGEST_S)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self._list_and_watch()
            except (OSError, http.client.HTTPException, ApiError, ValueError):
                # The API server was killed, perhaps in the middle of a line of JSON.
                self._stopping.wait(AGAIN_S)
            except BaseException as error:
                self.error = error
                raise

    def _list_and_watch(self) -> None:
        asked_at = time.monotonic()
        listed = self._rest.must("GET", PODS)
        for onlooker in self._onlookers:
            onlooker.all_pods(listed["items"], asked_at)
        version = listed["metadata"]["resourceVersion"]
        self._watch = self._rest.watch(PODS, resourceVersion=version)
        if self._stopping.is_set():
            self._watch.close()
        for event in self._watch:
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    for onlooker in self._onlookers:
                        onlooker.changed(event["object"])
                case "DELETED":
                    for onlooker in self._onlookers:
                        onlooker.gone(event["object"])
                case "ERROR":
                    return
