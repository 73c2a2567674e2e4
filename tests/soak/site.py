"""The cluster that is soaked: nodes with cards, our extender, a kube-scheduler."""

import http.client
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from gpushare.domain.model import Card as OurCard
from gpushare.domain.model import CardUUID
from gpushare.kube.annotations import encode_cards
from tests.controlplane.extender import Extender, extender
from tests.controlplane.world import CARDS, EAGER
from tests.soak.books import CORES, Card
from tests.soak.kills import Part
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import post_node
from tests.testbed.rest import Json
from tests.testbed.scheduler import Scheduler
from tests.testbed.waiting import wait_until

SIZES = (16, 29, 29, 64, 94)
NODES = 8
CARDS_A_NODE = 8


@dataclass
class Site:
    """What runs, and what it has: each can be killed and started again."""

    plane: ControlPlane
    name: str
    extender: Extender
    scheduler: Scheduler
    units: dict[Card, int]

    def parts(self) -> list[Part]:
        """Give what is killed; the API server first, as the others need it."""
        apiserver = "kube-apiserver"
        return [
            Part(apiserver, lambda: self.plane.kill(apiserver), self._start_apiserver),
            Part("extender", self.extender.kill, lambda: _start(self.extender)),
            Part("kube-scheduler", self._kill_scheduler, self._start_scheduler),
        ]

    def snapshot(self) -> Json:
        try:
            status, answer = self.extender.rest.get("/snapshot")
        except (OSError, http.client.HTTPException):
            return {}
        return answer if status == 200 else {}

    def free(self) -> dict[Card, tuple[int, int]]:
        return {
            (node["name"], card["uuid"]): (card["free"]["cores"], card["free"]["units"])
            for node in self.snapshot().get("nodes", ())
            for card in node["cards"]
        }

    def surprises(self) -> list[str]:
        """Give the extender's log lines about bugs of its own."""
        assert self.extender.process is not None
        lines = self.extender.process.log.read_text(errors="replace").splitlines()
        return [line for line in lines if " internal error" in line]

    def memory_mib(self) -> float:
        """Give the resident memory of the extender's one worker."""
        (worker,) = self.extender.workers()
        lines = Path(f"/proc/{worker}/status").read_text().splitlines()
        (resident,) = (line for line in lines if line.startswith("VmRSS:"))
        return round(int(resident.split()[1]) / 1024, 1)

    def _start_apiserver(self) -> None:
        self.plane.start_apiserver()

    def _kill_scheduler(self) -> None:
        os.kill(self.scheduler.pid, signal.SIGKILL)
        self.scheduler.kill()

    def _start_scheduler(self) -> None:
        self.scheduler = _scheduler(self.plane, self.name, self.extender)


@contextmanager
def site(
    plane: ControlPlane, seed: int, name: str = "soak", **settings: str
) -> Iterator[Site]:
    """Bring it up; the seed draws the cards, ``settings`` are the extender's."""
    draw = Random(f"{seed}/cards")
    with extender(plane, f"{name}-extender", **settings) as ext:
        units: dict[Card, int] = {}
        for number in range(NODES):
            units |= _node(plane, f"{name}-{number}", draw)
        found = Site(plane, name, ext, _scheduler(plane, name, ext), units)
        full = {card: (CORES, size) for card, size in units.items()}
        wait_until(found.free, "all nodes in the books", accept=lambda x: x == full)
        try:
            yield found
        finally:
            found.scheduler.stop()


def _node(plane: ControlPlane, name: str, draw: Random) -> dict[Card, int]:
    sizes = [draw.choice(SIZES) for _ in range(CARDS_A_NODE)]
    cards = [OurCard(CardUUID(f"{name}-{i}"), i, size) for i, size in enumerate(sizes)]
    post_node(
        plane.rest,
        name,
        units=sum(sizes),
        cores=CORES * len(sizes),
        pods=400,
        annotations={CARDS: encode_cards(cards)},
    )
    return {(name, str(card.uuid)): card.units for card in cards}


def _scheduler(plane: ControlPlane, name: str, ext: Extender) -> Scheduler:
    settings = replace(EAGER, profile={"schedulerName": name})
    return plane.start_scheduler(
        f"{name}-scheduler", extender_url=ext.url, settings=settings
    )


def _start(ext: Extender) -> None:
    ext.start()
