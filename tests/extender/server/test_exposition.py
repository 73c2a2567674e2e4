"""/metrics as text."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from extender.server.public import Labels, LargeGauge, exposition


class Holder(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.floats() | st.integers(-(10**20), 10**20).map(float)


@given(st.dictionaries(st.tuples(WORDS, WORDS), VALUES, max_size=5), WORDS)
def test_it_is_what_the_client_library_writes(
    samples: dict[tuple[str, str], float], text: str
) -> None:
    """Byte for byte, for any label, value and help; counters and histograms too."""
    registry = CollectorRegistry()
    gauge = Gauge("cards", text, ["node", "UUID"], registry=registry)
    for labels, value in samples.items():
        gauge.labels(*labels).set(value)
    Gauge("bare", "help", registry=registry).set(3)
    Counter("calls", text, ["verb"], registry=registry).labels("filter").inc()
    Histogram("seconds", text, registry=registry).observe(0.1)
    large = [Labels.of(node=node, UUID=uuid) for node, uuid in samples]
    values = list(samples.values())
    registry.register(Holder(LargeGauge("large", text, large, lambda: values)))
    assert b"".join(exposition(registry)) == generate_latest(registry)


def test_many_lines_come_in_pieces() -> None:
    """And none is lost between two of them."""
    registry = CollectorRegistry()
    gauge = Gauge("cards", "help", ["n"], registry=registry)
    for number in range(500):
        gauge.labels(str(number)).set(number)
    pieces = list(exposition(registry))
    assert len(pieces) == 4
    assert b"".join(pieces) == generate_latest(registry)
