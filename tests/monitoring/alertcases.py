"""What makes each alert fire, and what is like it and must not: minute by minute.

``values`` are promtool's: ``0x20`` is 21 samples of 0, ``_x10`` ten missing ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Series = Mapping[str, str]
CARD = {"gpu": "0", "UUID": "GPU-0", "NodeName": "n"}
WHO = {"NamespaceName": "a", "PodName": "bert-0", "ContainerName": "main"}
CRITICAL, WARNING, INFO = (
    {"severity": word} for word in ("critical", "warning", "info")
)


@dataclass(frozen=True, slots=True)
class Case:
    """One alert, looked at ``at`` some minute; silent where ``says`` is empty.

    ``says`` is the summary of the alert that fires, ``labels`` are those that it has.
    """

    alert: str
    rule: str
    at: int
    series: Series
    says: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class About:
    """The cases of one alert, with what it says where it fires."""

    def __init__(
        self, alert: str, says: str = "", *labels: Series, **more: str
    ) -> None:
        self.alert, self.says = alert, says
        self.labels = merged(*labels, more)

    def fires(
        self, rule: str, at: int, series: Series, says: str = "", **labels: str
    ) -> Case:
        labels = {**self.labels, **labels}
        return Case(self.alert, rule, at, series, says or self.says, labels)

    def silent(self, rule: str, at: int, series: Series) -> Case:
        return Case(self.alert, rule, at, series)


def merged(*parts: Series) -> dict[str, str]:
    return {key: text for part in parts for key, text in part.items()}


def series_of(name: str, *more: Series, **labels: str) -> str:
    """Write a series as Prometheus does."""
    every = merged(*more, labels)
    pairs = ",".join(f'{key}="{text}"' for key, text in every.items())
    return f"{name}{{{pairs}}}"


def card(name: str, values: str, **labels: str) -> Series:
    """Give a series of the exporter's about a card."""
    return {series_of(name, CARD, **labels): values}


def booked(
    name: str, values: str, uuid: str = "GPU-0", node: str = "n", **more: str
) -> Series:
    """Give a series of the extender's about a card."""
    job = "gpushare-extender"
    return {series_of(name, more, NodeName=node, UUID=uuid, job=job): values}


def of_instances(make: Callable[..., Series], name: str, *values: str) -> Series:
    """Give the series of one card's MIG instances: ``MIG-0``, ``MIG-1``."""
    # Only the exporter knows the number of a GPU instance.
    series = (
        make(
            name,
            each,
            GPU_I_UUID=f"MIG-{at}",
            **({"GPU_I_ID": f"{at + 7}"} if make is card else {}),
        )
        for at, each in enumerate(values)
    )
    return merged(*series)


def share(name: str, values: str, **labels: str) -> Series:
    """Give a series of the exporter's about a container on a card."""
    return {series_of(name, CARD, WHO, **labels): values}
