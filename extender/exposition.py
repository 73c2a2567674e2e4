"""/metrics as text, a family at a time.

As Prometheus' client writes it. But a gauge of each card of a large cluster is 80,000
lines: six such families as objects at once were 150 MiB that the process never gave
back, and with the client's own writer Prometheus gave up before the page was whole.
Gauges have no timestamps here, and plain names.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

_LINES = 1000
"""Written at a time."""
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Families(Protocol):
    """A registry, or whoever else has families of metrics."""

    def collect(self) -> Iterable[Metric]:
        """Give them."""
        ...


def exposition(families: Families) -> Iterator[bytes]:
    """Write all families in Prometheus' text format, piece by piece."""
    for family in families.collect():
        if family.type == "gauge":
            yield from _gauge(family)
        else:
            yield generate_latest(_Alone(family))


class _Alone(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _gauge(family: Metric) -> Iterator[bytes]:
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {text}\n# TYPE {family.name} gauge\n".encode()
    lines = map(_line, family.samples)
    while some := "".join(islice(lines, _LINES)):
        yield some.encode()


def _line(sample: Sample) -> str:
    value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
    if not sample.labels:
        return f"{sample.name} {value}\n"
    labels = ",".join(
        f'{name}="{value.translate(_ESCAPES)}"'
        for name, value in sorted(sample.labels.items())
    )
    return f"{sample.name}{{{labels}}} {value}\n"
