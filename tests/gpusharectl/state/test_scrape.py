"""Which exporters are read, how long that may take, and what their pages mean."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Barrier, Event

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from exporter.collector import Exposition, Site
from exporter.held import TOLERANCE as WATCHDOGS
from exporter.owners.owner_pods import NO_POD, OwnerPods
from exporter.snapshot import TelemetrySnapshot
from exporter.telemetry.fields import FB_USED, GPU_TEMP, GPU_UTIL, POWER_USAGE
from exporter.usage import UsageBook
from gpushare.cards.source import MigInstance
from gpushare.domain.model import CardUUID
from gpushare.kube.cluster import Json
from gpusharectl.state.scrape import (
    AT_ONCE,
    CardSeen,
    ContainerSeen,
    ExporterAnswer,
    NoAnswer,
    PageSeen,
    Result,
    UnreadableError,
    read_page,
    scrape_exporters,
)
from gpusharectl.top.rows import TOLERANCE
from tests.deviceplugin.node_fixture import NODE, found_card
from tests.exporter.exporter_data import (
    AT,
    A,
    B,
    held,
    owner,
    owner_pods,
    processes,
    snapshot,
    use,
)
from tests.gpusharectl.cluster_states import part
from tests.gpusharectl.exporter_pages import TICK, Says, Shown, Use, page
from tests.gpusharectl.top_states import exporter
from tests.testbed.waiting import wait_until


class FakeExporters:
    """Answers with a page; those that hang are released at the end."""

    def __init__(self, *hanging: str, together: int = 1) -> None:
        self.hanging = hanging
        self.released = Event()
        self.asked: list[str] = []
        self.meeting = Barrier(together)

    def fetch(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        assert (namespace, port, path) == ("kube-system", 9400, "/metrics")
        self.asked.append(pod)
        if pod.removeprefix("gpushare-exporter-") in self.hanging:
            self.released.wait()
        self.meeting.wait(60)
        return page(Shown("GPU-0"))

    def scraped(
        self, *parts: Json, only: Sequence[str] = (), deadline_s: float = 60
    ) -> Mapping[str, Result]:
        nodes = only or [pod["spec"]["nodeName"] for pod in parts]
        return scrape_exporters(self, parts, nodes, deadline_s=deadline_s)


def test_one_that_hangs_keeps_nobody_waiting() -> None:
    """Nor the process from its end: it hangs in a daemon thread."""
    exporters = FakeExporters("hangs")
    parts = exporter("hangs"), exporter("well")
    told = wait_until(
        lambda: exporters.scraped(*parts, deadline_s=0.3),
        "an answer in time, which a busy machine may be late for",
        accept=lambda seen: isinstance(seen["well"], ExporterAnswer),
    )
    hanging = [one.daemon for one in threading.enumerate() if one.name == "scrape"]
    exporters.released.set()
    assert hanging
    assert all(hanging)
    assert list(told) == ["hangs", "well"]
    assert told["hangs"] == NoAnswer(
        "its exporter did not answer within 0.3 s",
        "kubectl -n kube-system logs gpushare-exporter-hangs",
    )


def test_many_are_asked_at_a_time() -> None:
    """None of these is answered before all of them are asked; then come the others."""
    names = [f"n{number:03}" for number in range(2 * AT_ONCE)]
    exporters = FakeExporters(together=AT_ONCE)
    told = exporters.scraped(*map(exporter, names))
    assert list(told) == names
    assert all(isinstance(one, ExporterAnswer) for one in told.values())
    assert sorted(exporters.asked) == [f"gpushare-exporter-{name}" for name in names]


def test_only_nodes_that_are_shown_are_asked() -> None:
    """Of two pods on a node, as in a rollout, the ready one."""
    old = part("gpushare-exporter-old", "gpushare-exporter", node="a", ready=False)
    exporters = FakeExporters()
    exporters.scraped(old, exporter("a"), exporter("b"), only=["a"])
    assert exporters.asked == ["gpushare-exporter-a"]


def test_one_that_is_not_ready_is_not_asked() -> None:
    """kubelet's words say why, if there are any."""
    pod = exporter("a", ready=False)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    pod["status"]["containerStatuses"] = [{"state": {"waiting": waiting}}]
    exporters = FakeExporters()
    told = exporters.scraped(pod)["a"]
    assert isinstance(told, NoAnswer)
    assert told.because == (
        "its exporter is not ready: ImagePullBackOff: Back-off pulling image"
    )
    assert exporters.asked == []


INFO = b'vcuda_exporter_info{version="0.1.0",driver="550"} 1.0\n'


def test_what_is_not_on_the_page_is_unknown() -> None:
    """None, and not 0; while a 0 that is there stays one."""
    use = Use("app", None, 0, idle_s=None)
    shown = Shown("GPU-0", 0, None, None, None, None, None, uses=(use,))
    seen = read_page(page(shown))
    assert seen.cards == {"GPU-0": CardSeen("0", sm_source=shown.source)}
    assert seen.containers == (
        ContainerSeen("GPU-0", "default", "app", "main", sm_percent=0, over=False),
    )


def test_what_is_no_number_is_unknown() -> None:
    line = 'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-{0}"}} {0}\n'
    lines = "".join(line.format(value) for value in ("NaN", "+Inf", "-Inf"))
    assert read_page(INFO + lines.encode()).cards == {}


def test_what_the_exporter_says_of_itself() -> None:
    """A bad file of fields is one trouble; a series with the value 0 is none."""
    told = Says(("pods", "config"), ("memory",), config_ok=False)
    seen = read_page(page(told=told))
    assert seen.troubles == ("config", "pods")
    assert seen.failed == ("memory",)
    assert seen.times["processes"] == TICK
    assert read_page(page(told=Says(config_ok=False))).troubles == ("config",)
    line = b'vcuda_exporter_trouble{about="pods"} 0\n'
    assert read_page(INFO + line).troubles == ()


def test_other_names_are_not_even_parsed() -> None:
    """They may be many, and parsing costs most of the time."""
    body = page(Shown("GPU-0"))
    assert read_page(body + b'DCGM_FI_DEV_XYZ{gpu="0} broken\n') == read_page(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it lacks vcuda_exporter_info"),
        (b"<html>log in</html>", "it lacks vcuda_exporter_info"),
        (b"up 1\n", "it lacks vcuda_exporter_info"),
        (b"\xff\xfe", "it cannot be parsed"),
        (INFO + b"DCGM_FI_DEV_FB_USED{gpu=0} x\n", "it cannot be parsed"),
        (INFO + b'DCGM_FI_DEV_FB_USED{gpu="0', "it cannot be parsed"),
        (INFO + b"DCGM_FI_DEV_FB_USED{\n", "it cannot be parsed"),
        (INFO + b"DCGM_FI_DEV_FB_USED\n", "it cannot be parsed"),
    ],
)
def test_what_is_no_page_of_ours(body: bytes, words: str) -> None:
    """It is said in words, and nothing is guessed."""
    with pytest.raises(UnreadableError, match=words):
        read_page(body)


def test_names_that_must_be_escaped_come_back_as_they_were() -> None:
    """As prometheus_client writes them."""
    registry = CollectorRegistry()
    own = ("gpu", "UUID", "NamespaceName", "PodName", "ContainerName")
    used = Gauge("DCGM_CUSTOM_PROCESS_MEM_USED", "It.", own, registry=registry)
    used.labels("0", "GPU-0", "d", 'a"}{b\\', "线\n\u2028x").set(5)
    (one,) = read_page(INFO + generate_latest(registry)).containers
    assert (one.pod, one.name, one.used_mib) == ('a"}{b\\', "线\n\u2028x", 5)


VALUES = {
    A: {FB_USED: 4000.0, GPU_UTIL: 40.0, GPU_TEMP: 60.0, POWER_USAGE: 99.5},
    B: {FB_USED: 10.0},
}


def seen(found: TelemetrySnapshot, pods: OwnerPods | None) -> PageSeen:
    book = UsageBook(lambda: found, lambda: pods)
    registry = CollectorRegistry()
    registry.register(Exposition(Site(NODE, NODE), lambda: found, book))
    return read_page(generate_latest(registry))


def test_cards_and_containers() -> None:
    """Used, idle, over, outside, of nobody; what is not told is not there."""
    pods = owner_pods(held("busy", 8), held("idle", 4))
    owners = {1: owner("busy"), 2: NO_POD}
    round_ = processes({A: (use(1, 3000, 33), use(2, 200, 1))}, owners)
    found = seen(snapshot(values=VALUES, round_=round_), pods)
    card = found.cards[A]
    assert (card.used_mib, card.busy_percent) == (4000, 40)
    assert (card.celsius, card.watts) == (60, 99.5)
    assert (card.unattributed_mib, card.sm_source) == (800, "process-utilization")
    assert (card.outside_mib, found.cards[B].outside_mib) == (200, None)
    assert found.of_pod("default", "busy", A) == found.of_pod("default", "busy")
    assert found.of_pod("default", "busy", B) == found.of_pod("edge", "busy") == []
    assert (found.cards[B].used_mib, found.cards[B].busy_percent) == (10, None)
    (busy,), (idle,) = found.of_pod("default", "busy"), found.of_pod("default", "idle")
    assert (busy.used_mib, busy.sm_percent) == (3000, 33)
    assert (busy.last_busy, busy.over) == (AT, True)
    assert (idle.used_mib, idle.sm_percent, idle.over) == (0, 0, False)
    assert found.times["processes"] == AT
    assert (found.failed, found.troubles) == ((), ())


def test_an_instance_is_known_by_its_own_uuid() -> None:
    """``UUID`` is its card's on the page."""
    of = MigInstance(CardUUID("GPU-9"), 7, 0, "1g.5gb", 9, "A100")
    found = snapshot(replace(found_card(0), instance=of), values=VALUES)
    cards = seen(found, owner_pods()).cards
    assert cards[A].used_mib == 4000
    assert "GPU-9" not in cards


def test_an_exporter_that_knows_nothing_yet_is_one_all_the_same() -> None:
    """Its page is read, and has nothing in it but what it misses."""
    found = seen(TelemetrySnapshot(no_cards="no driver"), None)
    assert found.cards == {}
    assert found.troubles == ("cards", "pods")


def test_over_means_the_same_to_both() -> None:
    """Else the screen and the alert would disagree."""
    assert TOLERANCE == WATCHDOGS
