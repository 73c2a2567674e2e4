"""What everybody may look at: health, readiness and metrics."""

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from extender.main import complaints
from extender.server.public import FRESH_S, MetricsPage
from gpushare.addresses import free_address


class Counting(Collector):
    """How often it was asked; it answers when it may."""

    def __init__(self) -> None:
        self.times = 0
        self.asked, self.may = Event(), Event()
        self.may.set()

    def collect(self) -> Iterable[Metric]:
        self.times += 1
        self.asked.set()
        assert self.may.wait(30)
        yield GaugeMetricFamily("times", "How often.", value=self.times)

    def describe(self) -> Iterable[Metric]:
        return ()


def page_of(counting: Counting, clock: list[float]) -> MetricsPage:
    registry = CollectorRegistry()
    registry.register(counting)
    return MetricsPage(registry, lambda: clock[0])


def test_metrics_are_rendered_once_a_second() -> None:
    """However many ask: it costs what kube-scheduler's calls need."""
    counting, clock = Counting(), [0.0]
    page = page_of(counting, clock)
    for now, times in ((0, 1), (FRESH_S / 2, 1), (FRESH_S, 2), (FRESH_S * 1.5, 2)):
        clock[0] = now
        assert b"\ntimes %d.0\n" % times in page.text()
    assert counting.times == 2


def test_who_asks_meanwhile_gets_the_same_page() -> None:
    """And does not have it rendered once more, though it took long."""
    counting, clock = Counting(), [0.0]
    page = page_of(counting, clock)
    counting.may.clear()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(page.text)
        assert counting.asked.wait(30)
        others = [pool.submit(page.text) for _ in range(7)]
        clock[0] = 100.0
        counting.may.set()
        assert {one.result(30) for one in (first, *others)} == {first.result()}
    assert counting.times == 1


def test_a_taken_port_is_an_error() -> None:
    """Told at the start, not by a silent absence of metrics."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = f"127.0.0.1:{taken.getsockname()[1]}"
        (complaint,) = (
            text
            for text in complaints({"GPUSHARE_PUBLIC_LISTEN": here})
            if "PUBLIC_LISTEN" in text
        )
    assert "in use" in complaint
    assert "give another host:port" in complaint
    free = str(free_address())
    assert not any(
        "PUBLIC_LISTEN" in text for text in complaints({"GPUSHARE_PUBLIC_LISTEN": free})
    )
