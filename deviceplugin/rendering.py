"""Metrics as text: what ``prometheus_client`` writes, byte for byte, and far sooner.

Its ``generate_latest`` checks the name of every label of every line anew: 1500 lines
take it 20 ms and more, of which most is spent on a dozen names. Here the labels that
many lines share are written once. ``tests/deviceplugin/test_rendering.py`` holds both
to the same bytes; what nobody here uses (timestamps, exemplars, histograms) is left
out.
"""

from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.utils import floatToGoString

_ENDS = b"# EOF\n"


def text(metrics: Iterable[Metric]) -> bytes:
    """Write Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    written: dict[int, str] = {}
    kept = list(metrics)
    for metric in kept:
        name, kind = metric.name, metric.type
        if kind == "counter":
            name += "_total"
        elif kind == "unknown":
            kind = "untyped"
        words = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {name} {words}\n# TYPE {name} {kind}\n")
        lines += _samples(metric, written)
    return "".join(lines).encode()


def openmetrics(metrics: Iterable[Metric]) -> bytes:
    """Write OpenMetrics, version 1.0.0, for which Prometheus asks first."""
    lines: list[str] = []
    written: dict[int, str] = {}
    kept = list(metrics)
    for metric in kept:
        name, words = metric.name, _escaped(metric.documentation)
        lines.append(f"# HELP {name} {words}\n# TYPE {name} {metric.type}\n")
        lines += _samples(metric, written)
    return "".join(lines).encode() + _ENDS


def _samples(metric: Metric, written: dict[int, str]) -> list[str]:
    """Write a metric's lines; ``written`` are labels by their identity.

    Which is theirs alone as long as all metrics are kept.
    """
    lines = []
    number: Callable[[float], str] = floatToGoString
    for one in metric.samples:
        labels = written.get(id(one.labels))
        if labels is None:
            labels = written[id(one.labels)] = _labels(one.labels)
        lines.append(f"{one.name}{labels} {number(one.value)}\n")
    return lines


def _labels(labels: dict[str, str]) -> str:
    pairs = [f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(words: str) -> str:
    return words.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
