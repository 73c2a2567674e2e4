"""Metrics as text: byte for byte what prometheus_client writes."""

from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_om
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gpushare.server import exposition
from gpushare.server.exposition import Labels, LargeGauge


def text(metrics: Iterable[Metric]) -> bytes:
    return b"".join(exposition.write_text(metrics))


def openmetrics(metrics: Iterable[Metric]) -> bytes:
    return b"".join(exposition.write_openmetrics(metrics))


WRITERS = [(text, generate_latest), (openmetrics, generate_om)]
Writer = Callable[[Iterable[Metric]], bytes]
Theirs = Callable[[Collector], bytes]

NAMES = st.sampled_from(["DCGM_FI_DEV_GPU_UTIL", "vcuda_card_healthy", "a", "_b"])
LABELS = st.sampled_from(["UUID", "NodeName", "gpu", "pci_bus_id", "a1"])
WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
VALUES = st.floats() | st.integers(-(2**63), 2**63) | st.booleans()


class Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self.metrics


@st.composite
def a_metric(draw: st.DrawFn) -> Metric:
    kind = draw(st.sampled_from(["gauge", "counter", "unknown"]))
    metric = Metric(draw(NAMES), draw(WORDS), kind)
    shared = draw(st.lists(st.dictionaries(LABELS, WORDS, max_size=4), min_size=1))
    for _ in range(draw(st.integers(0, 6))):
        labels = draw(st.sampled_from(shared))
        metric.samples.append(Sample(metric.name, labels, draw(VALUES)))
    return metric


@pytest.mark.parametrize(("ours", "theirs"), WRITERS)
@settings(max_examples=50)
@given(metrics=st.lists(a_metric(), max_size=4))
def test_any_metrics_are_written_alike(
    ours: Writer, theirs: Theirs, metrics: list[Metric]
) -> None:
    """Quotes, line ends, odd letters, infinities; labels that are shared, and none."""
    assert ours(metrics) == theirs(Given(metrics))


@pytest.mark.parametrize(("ours", "theirs"), WRITERS)
@given(st.dictionaries(st.tuples(WORDS, WORDS), VALUES, max_size=5), WORDS)
def test_what_a_registry_collects_is_written_alike(
    ours: Writer, theirs: Theirs, samples: dict[tuple[str, str], float], words: str
) -> None:
    """Counters with creation times, histograms, and a gauge that holds no samples."""
    registry = CollectorRegistry()
    gauge = Gauge("of_card", words, ["node", "UUID"], registry=registry)
    for labels, value in samples.items():
        gauge.labels(*labels).set(float(value))
    Gauge("of_nothing", "Not set.", registry=registry)
    Counter("heard", words, ["xid"], registry=registry).labels("79").inc()
    Histogram("seconds", words, registry=registry).observe(0.1)
    labels = Labels(["node", "UUID"], samples.keys)
    gauges = [
        LargeGauge(name, words, labels, lambda: map(hash, samples.values()))
        for name in ("large", "larger")
    ]
    registry.register(Given(gauges))
    assert ours(registry.collect()) == theirs(registry)


def test_many_lines_come_in_pieces() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("cards", "help", ["n"], registry=registry)
    for number in range(500):
        gauge.labels(str(number)).set(number)
    pieces = list(exposition.write_text(registry.collect()))
    assert len(pieces) == 4
    assert b"".join(pieces) == generate_latest(registry)


def test_labels_of_many_lines_are_written_once() -> None:
    """For six gauges of a large cluster's cards; the lines come in pieces."""
    asked = 0

    def rows() -> Iterator[list[str]]:
        nonlocal asked
        for number in range(500):
            asked += 1
            yield [str(number)]

    labels = Labels(["n"], rows)
    gauges = [LargeGauge(name, "", labels, lambda: range(500)) for name in "abc"]
    pieces = list(exposition.write_text(gauges))
    assert asked == 500
    assert len(pieces) == 3 * 4
    assert b"".join(pieces) == generate_latest(Given(gauges))


def test_labels_whose_writing_broke_off_are_written_anew() -> None:
    """A scrape may fail in the middle; no later one may lack lines."""
    labels = Labels(["n"], lambda: ([name] for name in "ab"))
    assert next(labels.texts()) == '{n="a"}'
    assert [*labels.texts()] == ['{n="a"}', '{n="b"}'] == [*labels.texts()]


@pytest.mark.parametrize("ours", [text, openmetrics])
def test_labels_do_not_outlive_their_metric(ours: Writer) -> None:
    """Metrics that are made one by one may have their labels at the same place."""

    def one_by_one() -> Iterator[Metric]:
        for number in range(200):
            metric = Metric("m", "", "gauge")
            metric.samples.append(Sample("m", {"number": str(number)}, 1.0))
            yield metric

    lines = ours(one_by_one()).decode().splitlines()
    told = [line for line in lines if line.startswith("m{")]
    assert told == [f'm{{number="{number}"}} 1.0' for number in range(200)]
