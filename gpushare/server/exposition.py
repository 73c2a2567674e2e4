"""Write metrics as text: the bytes of ``prometheus_client``, in much less time.

The client checks the name of every label of every line: 1,500 lines take it 20 ms and
more, and the 80,000 lines of a large cluster longer than Prometheus waits. Here labels
that many lines share are written once. What needs more than plain lines (histograms,
creation times) is left to the client. Timestamps and exemplars are not written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_om
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Values = Callable[[], Iterable[int]]
_LINES = 200
"""Written at a time: a third of a millisecond, for which other threads wait."""
_MOST_NUMBERS = 1000
_END = b"# EOF\n"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_TEXT_TYPES: Mapping[str, tuple[str, str]] = {
    "gauge": ("", "gauge"),
    "counter": ("_total", "counter"),
    "unknown": ("", "untyped"),
}
"""By the type of a plain family: the end of its name and its type in the text."""
_number: Callable[[float], str] = floatToGoString
_generate_om: Callable[[Collector], bytes] = generate_om


class Labels:
    """The labels of all lines of a large gauge, and of others with the same lines.

    ``rows`` gives the values of each line in the order of ``names``. They are written
    once, while the first gauge is.
    """

    def __init__(
        self, names: Sequence[str], rows: Callable[[], Iterable[Sequence[str]]]
    ) -> None:
        self.names, self.rows = names, rows
        order = sorted(range(len(names)), key=names.__getitem__)
        inside = ",".join(f'{names[i]}="{{{i}}}"' for i in order)
        self._format = f"{{{{{inside}}}}}".format
        self._texts: list[str] = []
        self._are_all = False

    def texts(self) -> Iterator[str]:
        """Yield the text of each line's labels."""
        if self._are_all:
            yield from self._texts
            return
        self._texts.clear()
        for row in self.rows():
            text = self._format(*row)
            if text.count('"') > 2 * len(row) or "\\" in text or "\n" in text:
                text = self._format(*(value.translate(_ESCAPES) for value in row))
            self._texts.append(text)
            yield text
        self._are_all = True


class LargeGauge(Metric):
    """A gauge of whole numbers in many lines, which are made only while it is written.

    Six gauges of 80,000 cards held as sample objects were 150 MiB that the process
    never gave back.
    """

    def __init__(
        self, name: str, documentation: str, labels: Labels, values: Values
    ) -> None:
        # Not the parent's, which would have a list of samples.
        self.name, self.documentation = name, documentation
        self.type, self.unit = "gauge", ""
        self._labels, self._values = labels, values

    @property
    def samples(self) -> list[Sample]:  # type: ignore[override]
        """All samples at once, for callers that look for a few."""
        names = self._labels.names
        return [
            Sample(self.name, dict(zip(names, row, strict=True)), value)
            for row, value in zip(self._labels.rows(), self._values(), strict=True)
        ]

    def blocks(self) -> Iterator[str]:
        """Yield some lines at a time."""
        name, numbers = self.name, _Numbers()
        pairs = zip(self._labels.texts(), self._values(), strict=True)
        while some := [
            f"{name}{labels} {numbers[value]}\n"
            for labels, value in islice(pairs, _LINES)
        ]:
            yield "".join(some)


class _Numbers(dict[int, str]):
    """The texts of whole numbers; most lines have one of a few."""

    def __missing__(self, number: int) -> str:
        text = _number(number)
        if len(self) < _MOST_NUMBERS:
            self[number] = text
        return text


def write_text(families: Iterable[Metric]) -> Iterator[bytes]:
    """Yield Prometheus' text format, version 0.0.4, some lines at a time."""
    written = _Written()
    for family in families:
        if family.type not in _TEXT_TYPES or _has_created(family):
            yield generate_latest(_Only(family))
            continue
        end, kind = _TEXT_TYPES[family.type]
        words = family.documentation.translate(_HELP_ESCAPES)
        yield from _plain(family, f"{family.name}{end}", kind, words, written)


def write_openmetrics(families: Iterable[Metric]) -> Iterator[bytes]:
    """Yield OpenMetrics, version 1.0.0, for which Prometheus asks first."""
    written = _Written()
    for family in families:
        if family.type not in _TEXT_TYPES or family.unit:
            yield _generate_om(_Only(family)).removesuffix(_END)
            continue
        words = family.documentation.translate(_ESCAPES)
        yield from _plain(family, family.name, family.type, words, written)
    yield _END


class _Only(Collector):
    """One family as the client's writers take it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


class _Written:
    """The text of label sets, by the identity of the dictionary.

    The dictionary is kept beside its text: else another one could get its identity.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Mapping[str, str], str]] = {}

    def of(self, labels: Mapping[str, str]) -> str:
        if not labels:
            return ""
        known = self._known.get(id(labels))
        if known is None:
            known = self._known[id(labels)] = labels, _written(labels)
        return known[1]


def _plain(
    family: Metric, name: str, kind: str, words: str, written: _Written
) -> Iterator[bytes]:
    yield f"# HELP {name} {words}\n# TYPE {name} {kind}\n".encode()
    if isinstance(family, LargeGauge):
        yield from map(str.encode, family.blocks())
        return
    lines = (
        f"{sample.name}{written.of(sample.labels)} {_number(sample.value)}\n"
        for sample in family.samples
    )
    while some := "".join(islice(lines, _LINES)):
        yield some.encode()


def _has_created(family: Metric) -> bool:
    """Tell whether a counter has creation times, which are gauges in this format."""
    created = f"{family.name}_created"
    return family.type == "counter" and any(
        sample.name == created for sample in family.samples
    )


def _written(labels: Mapping[str, str]) -> str:
    pairs = (f'{k}="{v.translate(_ESCAPES)}"' for k, v in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"
