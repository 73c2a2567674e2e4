"""Health, readiness and metrics, which everybody may read."""

import gzip
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from extender.main import check_extender
from gpushare.addresses import find_free_address
from gpushare.kube.cluster import Kind
from gpushare.kube.reflector import Readiness, Reflector
from gpushare.server.public import FRESH_S, MetricsPage, create_public_app
from tests.extender.extender_fixture import Clock


class Counting(Collector):
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


def page_of(counting: Counting, clock: Clock) -> MetricsPage:
    registry = CollectorRegistry()
    registry.register(counting)
    return MetricsPage(registry, clock)


def test_metrics_are_rendered_once_a_second() -> None:
    """However many ask: it costs what kube-scheduler's calls need."""
    counting, clock = Counting(), Clock()
    page = page_of(counting, clock)
    for now, times in ((0, 1), (FRESH_S / 2, 1), (FRESH_S, 2), (FRESH_S * 1.5, 2)):
        clock.now = now
        assert b"\ntimes %d.0\n" % times in page.text()


def test_prometheus_gets_the_page_compressed() -> None:
    """It asks for that; who does not gets the same page as it is."""
    counting, clock = Counting(), Clock()
    client = create_public_app(
        Readiness((), 60), page_of(counting, clock)
    ).test_client()
    packed = client.get("/metrics", headers={"Accept-Encoding": "deflate, gzip;q=0.5"})
    plain = client.get("/metrics", headers={"Accept-Encoding": "gzip;q=0, identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert gzip.decompress(packed.data) == plain.data
    assert b"\ntimes 1.0\n" in plain.data
    for answer in (packed, plain):
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert answer.content_type == CONTENT_TYPE_LATEST


def test_who_asks_meanwhile_gets_the_same_page() -> None:
    """And does not have it rendered once more, though it took long."""
    counting, clock = Counting(), Clock()
    page = page_of(counting, clock)
    counting.may.clear()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(page.text)
        assert counting.asked.wait(30)
        others = [pool.submit(page.text) for _ in range(7)]
        clock.now = 100.0
        counting.may.set()
        assert {one.result(30) for one in (first, *others)} == {first.result()}
    assert counting.times == 1


def test_a_taken_port_is_an_error() -> None:
    """Told at the start, not by a silent absence of metrics."""

    def told(listen: str) -> list[str]:
        found = check_extender({"GPUSHARE_PUBLIC_LISTEN": listen})
        return [text for text in found if "PUBLIC_LISTEN" in text]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        (complaint,) = told(f"127.0.0.1:{taken.getsockname()[1]}")
    assert "in use" in complaint
    assert "give another host:port" in complaint
    assert told(str(find_free_address())) == []


def test_what_is_noted_need_not_sync() -> None:
    """The page is ready, and says what is not followed and why."""
    noted = {"claims": "claims are not served"}
    nobody: Any = None
    all_reflectors = (("claims", Reflector(nobody, Kind.CLAIMS, nobody)),)
    readiness = Readiness(all_reflectors, 60, lambda: noted)
    assert readiness.why_not() == []
    app = create_public_app(readiness, page_of(Counting(), Clock()))
    answer = app.test_client().get("/readyz")
    assert (answer.status_code, answer.text) == (200, "ok\nclaims are not served\n")
    noted.clear()
    assert readiness.why_not() == ["claims have not been listed yet"]
