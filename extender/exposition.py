"""/metrics as text, a family at a time.

As Prometheus' client writes it. But a gauge of each card of a large cluster is 80,000
lines: six of them as objects at once were 150 MiB that the process never gave back, and
by the client's own writer Prometheus gave up before the page was whole. So such a gauge
has no objects for its lines, and its labels are written once for all six. Gauges have
no timestamps here, and plain names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, Self

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

_LINES = 200
"""Written at a time: a third of a millisecond, which others wait for."""
Values = Callable[[], Iterable[float]]
_number: Callable[[float], str] = floatToGoString
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Families(Protocol):
    """A registry, or whoever else has families of metrics."""

    def collect(self) -> Iterable[Metric]:
        """Give them."""
        ...


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one line in each of several gauges, and as they are written there."""

    by_name: Mapping[str, str]
    text: str

    @classmethod
    def of(cls, **by_name: str) -> Self:
        """Write them down once."""
        return cls(by_name, _written(by_name))


class LargeGauge(Metric):
    """A gauge with a line for each of many labels, made only as it is written.

    Whoever looks for samples finds them as in any other.
    """

    def __init__(
        self, name: str, documentation: str, labels: Sequence[Labels], values: Values
    ) -> None:
        # Not the parent's, which would have a list of samples.
        self.name, self.documentation = name, documentation
        self.type, self.unit = "gauge", ""
        self._labels, self._values = labels, values

    @property
    def samples(self) -> list[Sample]:  # type: ignore[override]
        """Make all at once; for a look at a few."""
        pairs = zip(self._labels, self._values(), strict=True)
        return [Sample(self.name, dict(each.by_name), value) for each, value in pairs]

    def lines(self) -> Iterator[str]:
        """Write line by line."""
        for each, value in zip(self._labels, self._values(), strict=True):
            yield f"{self.name}{each.text} {_number(value)}\n"


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
    if isinstance(family, LargeGauge):
        lines = family.lines()
    else:
        lines = map(_line, family.samples)
    while some := "".join(islice(lines, _LINES)):
        yield some.encode()


def _line(sample: Sample) -> str:
    labels = _written(sample.labels) if sample.labels else ""
    return f"{sample.name}{labels} {_number(sample.value)}\n"


def _written(labels: Mapping[str, str]) -> str:
    pairs = (f'{k}="{v.translate(_ESCAPES)}"' for k, v in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"
