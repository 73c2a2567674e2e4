"""The cluster that is soaked: nodes with cards, our extender, a kube-scheduler."""

import http.client
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from gpushare.addresses import find_free_address
from gpushare.domain.links import pairs, with_scores
from gpushare.domain.model import Card as OurCard
from gpushare.domain.model import CardUUID
from gpushare.kube.annotations import encode_cards
from tests.controlplane.books import CORES, Card
from tests.controlplane.claims import (
    RESOURCE,
    asked_about_claims,
    claims_settings,
)
from tests.controlplane.extender import Extender, extender
from tests.controlplane.world import CARDS, EAGER
from tests.soak.kills import Part
from tests.soak.slices import SLICES
from tests.testbed.certificates import certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.kubernetes import chosen, lacks
from tests.testbed.objects import post_node
from tests.testbed.rest import Json
from tests.testbed.scheduler import Scheduler
from tests.testbed.waiting import wait_until

SIZES = (16, 29, 29, 64, 94)
INSTANCE_UNITS = 19
NODES = 8
CARDS_A_NODE = 8
CLAIMS_SINCE = "1.36"
PATHS = {"pods": "/api/v1/pods", "claims": f"{RESOURCE}/resourceclaims"}


@dataclass
class Site:
    """What runs, and what it has: each can be killed and started again."""

    plane: ControlPlane
    name: str
    extender: Extender
    scheduler: Scheduler
    cards: dict[str, list[OurCard]]
    claims: bool = True
    """Whether ResourceClaims can share a card here."""
    ends: int = 0
    """How often the extender was ended."""

    @property
    def units(self) -> dict[Card, int]:
        return {
            (node, str(card.uuid)): card.units
            for node, cards in self.cards.items()
            for card in cards
        }

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of objects that hold cards, and where they are listed."""
        return PATHS if self.claims else {"pods": PATHS["pods"]}

    def parts(self) -> list[Part]:
        """Give what is killed; the API server first, as the others need it."""
        apiserver = "kube-apiserver"
        return [
            Part(apiserver, lambda: self.plane.kill(apiserver), self._start_apiserver),
            Part("extender", self._end_extender, self._start_extender),
            Part("kube-scheduler", self._kill_scheduler, self._start_scheduler),
        ]

    def stop(self) -> None:
        """Stop the scheduler that runs now; the extender ends by its own ``with``."""
        self.scheduler.stop()

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

    def _start_extender(self) -> None:
        self.extender.start()

    def _end_extender(self) -> None:
        """By SIGKILL and by SIGTERM in turn: only the second one ends in order."""
        assert self.extender.process is not None
        self.ends += 1
        if self.ends % 2:
            self.extender.kill()
        else:
            self.extender.process.stop()

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
    claims = not lacks(chosen(os.environ), CLAIMS_SINCE)
    with ExitStack() as stack:
        if claims:
            settings |= stack.enter_context(_arbiter(plane))
        ext = stack.enter_context(extender(plane, f"{name}-extender", **settings))
        cards = {f"{name}-{n}": _node(f"{name}-{n}", n, draw) for n in range(NODES)}
        for node, each in cards.items():
            _post(plane, node, each)
        found = Site(plane, name, ext, _scheduler(plane, name, ext), cards, claims)
        stack.callback(found.stop)
        full = {card: (CORES, size) for card, size in found.units.items()}
        wait_until(found.free, "all nodes in the books", accept=lambda x: x == full)
        yield found


@contextmanager
def _arbiter(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Have the API server ask about claims; give the extender's settings for it."""
    listen = find_free_address()
    with TemporaryDirectory(prefix="soak-tls-") as folder:
        held = certificates(Path(folder) / "tls")
        with asked_about_claims(plane, listen.port, held):
            yield claims_settings(listen, held)
            plane.rest.must("DELETE", SLICES)


def _node(name: str, number: int, draw: Random) -> list[OurCard]:
    """Draw a node's cards: on one in four instances of MIG, on each other one links."""
    sizes = [draw.choice(SIZES) for _ in range(CARDS_A_NODE)]
    cards = [OurCard(CardUUID(f"GPU-{name}-{i}"), i, x) for i, x in enumerate(sizes)]
    if number % 4 == 3:
        parent = str(cards[0].uuid)
        instances = [
            OurCard(
                CardUUID(f"MIG-{name}-{i}"),
                i,
                INSTANCE_UNITS,
                model="1g.5gb",
                parent=parent,
            )
            for i in range(4)
        ]
        return [*instances, *cards[4:]]
    if number % 2:
        scores = [draw.choice((10, 50, 110, 250)) for _ in pairs(len(cards))]
        return list(with_scores(cards, scores))
    return cards


def _post(plane: ControlPlane, name: str, cards: Sequence[OurCard]) -> None:
    post_node(
        plane.rest,
        name,
        units=sum(card.units for card in cards),
        cores=CORES * len(cards),
        pods=400,
        annotations={CARDS: encode_cards(cards)},
    )


def _scheduler(plane: ControlPlane, name: str, ext: Extender) -> Scheduler:
    settings = replace(EAGER, profile={"schedulerName": name})
    return plane.start_scheduler(
        f"{name}-scheduler", extender_url=ext.url, settings=settings
    )
