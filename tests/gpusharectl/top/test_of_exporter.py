"""The page that the exporter makes, read by top: both mean the same by each name."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from deviceplugin.exporter.collector import Exposition, Site
from deviceplugin.exporter.owners import NO_POD, Tenancy
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import TOLERANCE as WATCHDOGS
from deviceplugin.telemetry.fields import FB_USED, GPU_TEMP, GPU_UTIL, POWER_USAGE
from gpusharectl.top.rows import TOLERANCE
from gpusharectl.top.scrape import PageSeen, read_page
from tests.deviceplugin.house import NODE
from tests.deviceplugin.scene import (
    AT,
    A,
    B,
    held,
    owner,
    processes,
    snapshot,
    tenancy,
    use,
)

VALUES = {
    A: {FB_USED: 4000.0, GPU_UTIL: 40.0, GPU_TEMP: 60.0, POWER_USAGE: 99.5},
    B: {FB_USED: 10.0},
}


def seen(found: Snapshot, pods: Tenancy | None) -> PageSeen:
    book = UsageBook(lambda: found, lambda: pods)
    registry = CollectorRegistry()
    registry.register(Exposition(Site(NODE, NODE), lambda: found, book))
    return read_page(generate_latest(registry))


def test_cards_and_containers() -> None:
    """Used, idle, over, outside, of nobody; what is not told is not there."""
    pods = tenancy(held("busy", 8), held("idle", 4))
    owners = {1: owner("busy"), 2: NO_POD}
    round_ = processes({A: (use(1, 3000, 33), use(2, 200, 1))}, owners)
    found = seen(snapshot(values=VALUES, round_=round_), pods)
    card = found.cards[A]
    assert (card.used_mib, card.busy, card.celsius, card.watts) == (4000, 40, 60, 99.5)
    assert (card.unattributed_mib, card.sm_source) == (800, "process-utilization")
    assert found.outside_mib(A) == 200
    assert (found.cards[B].used_mib, found.cards[B].busy) == (10, None)
    (busy,), (idle,) = found.of_pod("default", "busy"), found.of_pod("default", "idle")
    assert (busy.used_mib, busy.sm, busy.last_busy, busy.over) == (3000, 33, AT, True)
    assert (idle.used_mib, idle.sm, idle.over) == (0, 0, False)
    assert found.times["processes"] == AT
    assert (found.failed, found.troubles) == ((), ())


def test_what_is_unknown_stays_unknown() -> None:
    """Where nobody can tell whose processes are whose, nobody is idle."""
    round_ = processes({A: (use(1, 3000, 33),)})
    troubles = {"processes": "/proc cannot be read"}
    lost = snapshot(values=VALUES, round_=round_, troubles=troubles)
    found = seen(lost, tenancy(held("p", 8)))
    (one,) = found.of_pod("default", "p")
    assert (one.used_mib, one.sm) == (None, None)
    assert found.troubles == ("processes",)


def test_an_exporter_that_knows_nothing_yet_is_one_all_the_same() -> None:
    """Its page is read, and has nothing in it but what it misses."""
    found = seen(Snapshot(no_cards="no driver"), None)
    assert found.cards == {}
    assert found.troubles == ("cards", "pods")


def test_over_means_the_same_to_both() -> None:
    """Else the screen and the alert would disagree."""
    assert TOLERANCE == WATCHDOGS
