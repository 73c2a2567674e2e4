"""Who acts for the device plugins: each node's ResourceSlice, as its pods change."""

import http.client
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Self

from deviceplugin.dra.slices import build_slices, slice_devices
from gpushare.domain.model import Card as OurCard
from tests.controlplane.books import Books
from tests.controlplane.claims import RESOURCE
from tests.soak.observer import Listing
from tests.testbed.rest import ApiError, Json, Rest

SLICES = f"{RESOURCE}/resourceslices"
_EVERY_S = 0.2
_LONGEST_S = 60.0


class SliceWriter:
    """Offers to claims what classic pods leave, a moment later, as on a real node."""

    def __init__(self, rest: Rest, nodes: Mapping[str, Sequence[OurCard]]) -> None:
        self._rest = rest
        self._nodes = nodes
        self._units = {
            (node, str(card.uuid)): card.units
            for node, cards in nodes.items()
            for card in cards
        }
        self._lock = threading.Lock()
        self._books = Books(self._units)
        self._written: dict[str, list[Json]] = {}
        self._generation = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="slices")
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_LONGEST_S)

    def listed(self, kind: str, listing: Listing) -> None:
        if kind == "pods":
            with self._lock:
                self._books = Books(self._units)
            for a_pod in listing.objects:
                self.changed(kind, a_pod)

    def changed(self, kind: str, an_object: Json) -> None:
        if kind == "pods":
            with self._lock:
                self._books.put(kind, an_object)

    def gone(self, kind: str, an_object: Json) -> None:
        if kind == "pods":
            with self._lock:
                self._books.drop(an_object["metadata"]["uid"])

    def write(self) -> None:
        """Write the slices that differ from what was written."""
        for node, cards in self._nodes.items():
            with self._lock:
                charged = {
                    card.uuid: self._books.charged((node, str(card.uuid)))
                    for card in cards
                }
            offered = slice_devices(cards, charged)
            if self._written.get(node) != offered:
                self._put(node, offered)
                self._written[node] = offered

    def _put(self, node: str, offered: Sequence[Json]) -> None:
        self._generation += 1
        (body,) = build_slices(node, "", offered, self._generation)
        del body["metadata"]["ownerReferences"]
        path = f"{SLICES}/{body['metadata']['name']}"
        status, stored = self._rest.get(path)
        if status == HTTPStatus.OK:
            body["metadata"] = stored["metadata"]
            self._rest.must("PUT", path, body)
        else:
            self._rest.must("POST", SLICES, body)

    def _go_on(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            try:
                self.write()
            except (OSError, http.client.HTTPException, ApiError):
                # The API server was killed.
                continue
            except BaseException as error:
                self.error = error
                raise
