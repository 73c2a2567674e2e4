"""Two control-plane hosts, each with its API server, kube-scheduler and extender."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpushare.addresses import find_free_address
from gpushare.settings import Address
from tests.controlplane.claims import (
    Claims,
    asked_about_claims,
    claims_settings,
    sweep_claims,
)
from tests.controlplane.world import EAGER, World, beside, post_all
from tests.machine import needs
from tests.testbed.certificates import certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.scheduler import Scheduler
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

NAME = "elected"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
QUICK_LEASE = replace(
    EAGER,
    leader_elect=True,
    # Quicker than by default, and not so quick that a busy machine makes a scheduler
    # lose its lease, and so end.
    lease_duration_s=12.0,
    renew_deadline_s=9.0,
    retry_period_s=0.5,
)
OTHER = "127.0.0.2"
NODES = ("one", "two")
CARDS, UNITS, EACH = 4, 20, 2
PAIRS = 14


@dataclass
class Hosts:
    """Both hosts; the first one leads when it begins."""

    first: Claims
    second: Claims

    @property
    def lead(self) -> str:
        """Who leads; empty for nobody."""
        return holder(self.first.world.plane)

    def post_some(self, name: str) -> None:
        """Create as many pods of each kind: three such lots are more than fit."""
        mixed = []
        for number in range(PAIRS):
            mixed.append(self.first.pod(f"{name}-claim-{number}", EACH))
            mixed.append(self.first.world.pod(f"{name}-classic-{number}", EACH, 1))
        post_all(self.first.world, mixed)

    def stop_scheduler(self, host: Claims) -> None:
        """End a host's scheduler in an orderly way, so that it gives up its lease."""
        assert host.world.scheduler is not None
        host.world.scheduler.stop()

    def another_scheduler(self, host: Claims) -> Scheduler:
        """Start a host's scheduler again."""
        return host.world.plane.start_scheduler(
            f"{NAME}-again",
            extender_url=host.world.extender.url,
            settings=replace(QUICK_LEASE, profile={"schedulerName": NAME}),
        )

    def kill(self, host: Claims) -> None:
        """Let all of a host die at once."""
        assert host.world.scheduler is not None
        host.world.scheduler.kill()
        host.world.extender.kill()
        host.world.plane.kill("kube-apiserver")


@pytest.fixture
def hosts(plane: ControlPlane, space: str, tmp_path: Path) -> Iterator[Hosts]:
    needs(os.geteuid() == 0, "root, for another localhost", "run the tests as root")
    held = certificates(tmp_path / "tls")
    port = find_free_address().port
    with ExitStack() as stack:
        other = stack.enter_context(plane.other_host(OTHER))
        stack.enter_context(asked_about_claims(plane, port, held))

        def host(on: ControlPlane, part: str, address: str) -> Claims:
            settings = claims_settings(Address(address, port), held)
            made = beside(on, NAME, QUICK_LEASE, part, **settings)
            world = replace(stack.enter_context(made), namespace=space, nodes=set())
            return Claims(world, port, held)

        first = host(plane, "first", "127.0.0.1")
        wait_until(lambda: holder(plane), "a leader")
        yield Hosts(first, host(other, "second", OTHER))
    sweep_claims(plane.rest)
    plane.rest.must("DELETE", LEASE)


def holder(plane: ControlPlane) -> str:
    status, lease = plane.rest.get(LEASE)
    return str(lease["spec"].get("holderIdentity") or "") if status == 200 else ""


@contextmanager
def corrected(site: Claims) -> Iterator[list[dict[str, int]]]:
    """Correct the slices as device plugins do; give what was held of each card."""
    stop, seen = threading.Event(), list[dict[str, int]]()

    def correct() -> None:
        while not stop.wait(0.3):
            seen.append(site.on_cards())
            classic = site.on_cards(claimed=False)
            for name in NODES:
                uuids = [f"GPU-{name}-{index}" for index in range(CARDS)]
                left = {uuid: UNITS - classic[uuid.lower()] for uuid in uuids}
                site.offer(name, left)

    corrector = threading.Thread(target=correct)
    corrector.start()
    try:
        yield seen
    finally:
        stop.set()
        corrector.join()


def decided(world: World) -> bool:
    """Tell whether the extender of a host has decided on both kinds."""
    told = world.extender.metrics()
    bound = told['vcuda_extender_binds_total{outcome="bound"}']
    reserved = told['vcuda_extender_claim_reviews_total{result="reserved"}']
    return bound > 0 and reserved > 0


def test_the_leader_changes(hosts: Hosts) -> None:
    """Claims and classic pods for the same cards, while the leader ends, and its host.

    Each API server asks the extender of its own host, which decides on both kinds while
    its scheduler leads. All cards fill up, and none is above its units.
    """
    first, second = hosts.first, hosts.second
    for name in NODES:
        first.node(name, *[UNITS] * CARDS)
    wait_until(lambda: second.world.known_nodes() >= {*NODES}, "both nodes")
    with corrected(first) as seen:
        hosts.post_some("early")
        wait_until(lambda: decided(first.world), "the first host to decide")
        before = hosts.lead
        hosts.stop_scheduler(first)
        wait_until(lambda: hosts.lead not in {"", before}, "another leader")
        hosts.post_some("amid")
        wait_until(lambda: decided(second.world), "the second host to decide")
        with hosts.another_scheduler(first):
            hosts.kill(second)
            hosts.post_some("late")
            wait_until(
                lambda: sum(first.on_cards().values()),
                "full cards",
                90,
                accept=lambda held: held >= len(NODES) * CARDS * UNITS,
                every_s=0.2,
            )
    most = max(max(held.values(), default=0) for held in seen)
    assert most <= UNITS
    assert {*first.on_cards().values()} == {UNITS}
    wait_until(
        first.in_the_ledger, "ledger", accept=lambda now: now == first.on_cards()
    )
