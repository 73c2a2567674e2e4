"""Pods of both kinds for the same cards, while each part of the cluster is killed."""

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from random import Random
from typing import TypeVar

import pytest

from gpushare.domain.model import CardUUID
from gpushare.kube.resource_claims.allocated import name_device
from tests.cluster.dra_on import CLAIMS
from tests.cluster.manifests import EIGHT_P4
from tests.cluster.seen import unschedulable
from tests.cluster.site import Site
from tests.cluster.test_dra import (
    claim_pod,
    classic_pod,
    devices,
    held_units,
    memory,
    nothing_prepared,
    offer,
    running_units,
)
from tests.controlplane.claims import results
from tests.testbed.rest import ApiError, Json
from tests.testbed.waiting import wait_until

PODS = 200
UNITS = 29
"""Of each of the eight cards."""
MIXED = "has parts of several cards"
FULL = "the container starts when the card has room"
CARD = re.compile(r"card (GPU-[0-9a-f-]+)")
FIRST = 16
"""Pods that start before the others: wherever they go, each has room on some card."""
LOOKS = 20
"""A card is above its units if it is so at this many looks in a row, of about half a
second each, because statuses and placements are written a moment after the fact."""


Container = tuple[str, int]
"""A container's id, and how often it was restarted."""


class Crowd:
    """Pods of both kinds and of many sizes, far more than the cards have room for."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.random = Random(20)
        self.units = {
            f"{kind}-{number}": self.random.randint(5, 12)
            for number in range(PODS // 2)
            for kind in ("classic", "claim")
        }
        self.kept: dict[str, Container] = {}
        """Pods that are to go on, whatever is killed."""

    def bodies(self) -> list[Json]:
        return [
            classic_pod(name, units)
            if name.startswith("classic")
            else claim_pod(self.site, name, units)
            for name, units in self.units.items()
        ]

    def post(self, body: Json) -> None:
        """Create a pod, although the API server may be away for a while."""
        path = "/api/v1/namespaces/default/pods"
        wait_until(
            lambda: answered(lambda: self.site.cluster.rest.post(path, body)[0]),
            f"{body['metadata']['name']} to be created",
            120,
            accept=lambda status: status in {201, 409},
        )

    def pods(self) -> list[Json]:
        found: list[Json] = self.site.get("pods")["items"]
        return found

    def placed(self) -> set[str]:
        """Name the pods that have a node and have not ended."""
        return {
            one["metadata"]["name"]
            for one in self.pods()
            if one["spec"].get("nodeName")
            and one["status"]["phase"] in {"Pending", "Running"}
            and "deletionTimestamp" not in one["metadata"]
        }

    def end_some(self, count: int) -> None:
        """Delete some of those that have a card, so that others get their room."""
        placed = sorted(self.placed() - self.kept.keys())
        for name in self.random.sample(placed, min(count, len(placed))):
            path = f"/api/v1/namespaces/default/pods/{name}"
            self.site.cluster.rest.must("DELETE", path, {"gracePeriodSeconds": 1})
            del self.units[name]

    def wait_for_more(self) -> None:
        """Wait until more pods have a card than now."""
        before = self.placed()
        wait_until(
            self.placed,
            "another pod to be placed",
            60,
            accept=lambda found: bool(found - before),
        )

    def keep_some(self) -> None:
        """Wait for the first pods, and keep two of each kind.

        Pods that ask by a claim get their card later than others: of those that come
        together with the crowd, maybe none.
        """
        found = wait_until(
            self.running,
            f"{FIRST} pods to run",
            120,
            accept=lambda running: len(running) == FIRST,
        )
        names = sorted(found)
        self.kept = {name: found[name] for name in (*names[:2], *names[-2:])}

    def running(self) -> dict[str, Container]:
        """Give the container of each pod that runs."""
        return {
            one["metadata"]["name"]: (main["containerID"], main["restartCount"])
            for one in self.pods()
            if one["status"]["phase"] == "Running"
            and "deletionTimestamp" not in one["metadata"]
            for main in one["status"]["containerStatuses"]
        }

    def delete_mixed(self) -> None:
        """Do what docs/deviceplugin.md says of parts of several cards: delete the pod.

        Its container never runs, but it holds parts of cards that others need.
        """
        for one in self.pods():
            name = one["metadata"]["name"]
            if name in self.units and MIXED in json.dumps(one["status"]):
                path = f"/api/v1/namespaces/default/pods/{name}"
                self.site.cluster.rest.must("DELETE", path)
                del self.units[name]

    def undecided(self) -> list[str]:
        """Name the pods that neither run nor say why not, or wait beside their room."""
        self.delete_mixed()
        held = held_units(self.site)
        free = max(UNITS - held[card.uuid.lower()] for card in EIGHT_P4)
        used, cards = self.taken(), cards_of_pods(self.site)
        seen = {one["metadata"]["name"]: one for one in self.pods()}
        return [
            name
            for name, units in self.units.items()
            if not (one := seen.get(name))
            or not is_decided(
                one,
                fits=units <= free,
                full=name in cards and used[cards[name].lower()] + units > UNITS,
            )
        ]

    def taken(self) -> Counter[str]:
        """Add up what leaves no room on a card for a claim, at its node.

        That are pods that run, and those that wait for room on the card that kubelet
        chose for them: they hold its devices.
        """
        taken = running_units(self.site)
        for one in self.pods():
            name, told = one["metadata"]["name"], json.dumps(one["status"])
            if name in self.units and FULL in told and (card := CARD.search(told)):
                taken[card[1].lower()] += self.units[name]
        return taken


def is_decided(one: Json, *, fits: bool, full: bool) -> bool:
    """Whether a pod runs, was failed by kubelet with a reason, or waits with one.

    ``fits``: a card has room for it. ``full``: others leave no room on its own card.
    This happens to a pod with a node if kubelet, killed while it admitted pods, gave
    others their parts of another card than planned.
    """
    status = one["status"]
    if one["spec"].get("nodeName"):
        if status["phase"] == "Running" or status.get("reason"):
            return True
        return full or FULL in json.dumps(status)
    return bool(unschedulable(one)) and not fits


Status = TypeVar("Status")


def answered(ask: Callable[[], Status]) -> Status | None:
    """Give what the API server answers; None while it is away.

    For a moment after its start it refuses administrators too.
    """
    try:
        return ask()
    except (OSError, HTTPException, ApiError):
        return None


def extender(site: Site) -> None:
    site.kill_extender()
    site.start_extender()


def scheduler(site: Site) -> None:
    site.cluster.nodes["cp"].kill_program("kube-scheduler")


def api_server(site: Site) -> None:
    rest = site.cluster.rest
    site.cluster.nodes["cp"].kill_program("kube-apiserver")
    wait_until(
        lambda: answered(lambda: rest.get("/readyz")[0]) == 200, "the API server", 120
    )


def device_plugin(site: Site) -> None:
    site.gpus["cp"].kill()
    site.gpus["cp"].start(wait=False)


def kubelet(site: Site) -> None:
    site.cluster.nodes["cp"].restart_kubelet()


KILLED = (extender, scheduler, api_server, device_plugin, kubelet)


@pytest.mark.usefixtures("arbiter")
def test_the_race(claims: Site) -> None:
    """200 pods of both kinds for eight cards, and each part gets kill -9 in between.

    No card is above its units by the pods that run. What ran before goes on. In the end
    each pod runs or says why not, none waits beside its room, and each sees its own
    card. When all have ended, nothing is left of them.
    """
    offer(claims, *EIGHT_P4)
    crowd = Crowd(claims)
    bodies = crowd.bodies()
    with never_above(crowd), ThreadPoolExecutor(4) as pool:
        list(pool.map(crowd.post, bodies[:FIRST]))
        crowd.keep_some()
        for number, kill in enumerate(KILLED):
            crowd.end_some(6)
            some = bodies[FIRST + number :: len(KILLED)]
            made = [pool.submit(crowd.post, one) for one in some]
            crowd.wait_for_more()
            kill(claims)
            for one in made:
                one.result()
        wait_until(
            crowd.undecided,
            "no pod without a verdict",
            180,
            accept=lambda left: not left,
        )
        after = crowd.running()
        assert {name: after.get(name) for name in crowd.kept} == crowd.kept
        cards = cards_of_pods(claims)
        assert dict(zip(after, pool.map(claims.visible, after), strict=True)) == {
            name: [cards[name]] for name in after
        }
        wait_until(
            lambda: running_units(claims),
            "end of what is above a card",
            accept=lambda held: max(held.values()) <= UNITS,
        )
    claims.clear()
    wait_until(lambda: not claims.cluster.rest.items(CLAIMS), "removal of all claims")
    nothing_prepared(claims)
    wait_until(lambda: set(memory(claims)) == {"7424Mi"}, "all of each card")
    assert not [one for one in devices(claims) if one.get("taints")]
    wait_until(lambda: not in_the_ledger(claims), "an empty ledger")


def cards_of_pods(site: Site) -> dict[str, str]:
    """Give the card of each pod that has one, by its placement or its claim."""
    uuids = {name_device(CardUUID(card.uuid)): card.uuid for card in EIGHT_P4}
    found = {
        user["name"]: uuids[device]
        for claim in site.cluster.rest.items(CLAIMS)
        if (status := claim.get("status"))
        for device, _ in results(status)
        for user in status.get("reservedFor", ())
    }
    for one in site.get("pods")["items"]:
        for share in (site.placement(one) or {"shares": []})["shares"]:
            found[one["metadata"]["name"]] = share["card"]
    return found


@contextmanager
def never_above(crowd: Crowd) -> Iterator[None]:
    """Look at what runs on each card again and again; no card stays above its units.

    What is planned may be above them for longer. kubelet that was killed while it
    admitted pods can exchange their cards; then one of them waits at the node until
    its card has room. If a card is above its units, this is told even if the block
    fails, since it may be the reason.
    """
    seen: list[Counter[str]] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.2):
            if held := answered(lambda: running_units(crowd.site)):
                seen.append(held)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        stop.set()
        looking.join()
        above = [max(held.values()) > UNITS for held in seen]
        starts = range(len(seen) - LOOKS + 1)
        stay = [seen[at] for at in starts if all(above[at : at + LOOKS])]
        assert not stay, f"{sum(above)} of {len(seen)} times, first {stay[0]}"
    assert seen


def in_the_ledger(site: Site) -> list[Json]:
    """Ask the extender what it has charged: pods and claims of the node."""
    url = "http://127.0.0.1:39999/snapshot"
    ask = f"import urllib.request as u; print(u.urlopen('{url}').read().decode())"
    said = json.loads(site.cluster.nodes["cp"].must(sys.executable, "-c", ask))
    return [
        one
        for node in said["nodes"]
        for one in (*node["pods"], *node.get("claims", ()))
    ]
