"""``bitfusion.io/gpu``, offered so that quotas can go on counting it; it does nothing.

A pod that was written for Bitfusion may keep it beside what it really asks
(``docs/bitfusion.md``). kubelet must know the resource, else no node takes the pod.
"""

import logging
import threading
from pathlib import Path

import grpc

from deviceplugin.metrics import PluginMetrics
from deviceplugin.offer import Offer
from deviceplugin.streams import Service
from gpushare.domain.model import CORES_PER_CARD
from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb

logger = logging.getLogger(__name__)

_MOST = 1000
"""Cards that a file may say; what is more nobody has written who can count them."""


class MostCards:
    """The most cards that this node was ever seen with, kept over restarts.

    kubelet turns a pod away whose devices are told no more, as after a reboot that one
    card of two did not live through: they may be the numbers of the lost one, whatever
    card the pod is on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._most = self._read()

    def with_now(self, cards: int) -> int:
        """Give the most, these included, and write it down where it has grown."""
        with self._lock:
            if cards > self._most:
                self._most = cards
                self._write()
            return self._most

    def _read(self) -> int:
        try:
            text = self._path.read_text(encoding="ascii").strip()
            found = int(text) if text.isdigit() and len(text) < 10 else _MOST + 1  # noqa: PLR2004
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            self._tell(str(error))
            return 0
        if found > _MOST:
            self._tell(f"it does not hold a number up to {_MOST}")
            return 0
        return found

    def _write(self) -> None:
        unfinished = self._path.with_name(f"{self._path.name}.unfinished")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(f"{self._most}\n", encoding="ascii")
            unfinished.replace(self._path)
        except OSError as error:
            self._tell(str(error))

    def _tell(self, because: str) -> None:
        logger.warning(
            "the most cards ever seen cannot be kept; after a restart they are counted "
            "anew",
            extra={"file": str(self._path), "because": because},
        )


class QuotaPlugin(Service):
    """100 devices for each card that the node has or had; all of them always well.

    kubelet chooses among them at random, so which of them a pod gets says nothing of
    its card: were some told sick with a card, pods of other cards would be turned away
    at the next restart of kubelet. What a sick card cannot take, its cores say.
    """

    def __init__(self, offer: Offer, most: MostCards, metrics: PluginMetrics) -> None:
        # Neither of the other two calls: kubelet may choose as it likes.
        plain = pb.DevicePluginOptions()
        super().__init__(names.BITFUSION_GPU, self._numbered, offer, plain)
        self._most = most
        self._metrics = metrics

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Give nothing: the container's card comes with what it asks of ours."""
        del context
        answer = pb.AllocateResponse()
        with self._metrics.calls.labels("Allocate", self.resource).time():
            for _ in request.container_requests:
                answer.container_responses.add()
        return answer

    def _numbered(self) -> list[tuple[str, bool]]:
        """Give ids that stay the same for ever, which kubelet wants (contracts 2.2)."""
        cards = self._most.with_now(len(self.offer.cards().all))
        return [(f"quota-{n:05d}", True) for n in range(cards * CORES_PER_CARD)]
