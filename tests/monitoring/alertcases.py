"""What makes each alert fire, and what is like it and must not: minute by minute.

``values`` are promtool's: ``0x20`` is 21 samples of 0, ``_x10`` ten missing ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Series = Mapping[str, str]
CARD = {"gpu": "0", "UUID": "GPU-0", "NodeName": "n"}
WHO = {"NamespaceName": "a", "PodName": "bert-0", "ContainerName": "main"}
EXPORTER = {"job": "gpushare-exporter", "instance": "10.0.0.7:9400", "node": "n"}


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


def one(name: str, *more: Mapping[str, str], **labels: str) -> str:
    """Write a series as Prometheus does."""
    merged: dict[str, str] = {}
    for each in (*more, labels):
        merged |= each
    told = ",".join(f'{key}="{text}"' for key, text in merged.items())
    return f"{name}{{{told}}}"


def card(name: str, values: str, **labels: str) -> dict[str, str]:
    """Give a series of the exporter's about a card."""
    return {one(name, CARD, **labels): values}


def booked(name: str, values: str, uuid: str = "GPU-0", node: str = "n") -> Series:
    """Give a series of the extender's about a card."""
    return {one(name, NodeName=node, UUID=uuid, job="gpushare-extender"): values}


def share(name: str, values: str, **labels: str) -> dict[str, str]:
    """Give a series of the exporter's about a container on a card."""
    return {one(name, CARD, WHO, **labels): values}


def summed(*parts: Series) -> dict[str, str]:
    return {name: values for part in parts for name, values in part.items()}
