"""A small cluster and pods, with defaults for all that a test is not about."""

from pathlib import Path
from typing import Any

from bench.packing.cluster import ReplayCluster, Shape
from bench.packing.trace import TraceNode, TracePod

CASES = Path(__file__).parents[2] / "cases" / "openb"
"""A trace of our own, with invented numbers."""


def node(
    cards: int = 1,
    cpu: int = 32_000,
    memory: int = 65_536,
    model: str = "A",
    name: str = "node",
) -> TraceNode:
    return TraceNode(name, cpu, memory, cards, model)


def cluster(*nodes: TraceNode) -> ReplayCluster:
    return ReplayCluster(nodes)


def shape(
    milli: int = 0,
    cards: int = 1,
    cpu: int = 1000,
    memory: int = 1024,
    models: str | None = None,
) -> Shape:
    """Each letter of ``models`` is one."""
    allowed = None if models is None else frozenset(models)
    return Shape(cpu, memory, cards if milli else 0, milli, allowed)


def pod(name: str = "pod", milli: int = 0, **more: Any) -> TracePod:
    asked = shape(milli, **more)
    return TracePod(
        name, asked.cpu_milli, asked.memory_mib, asked.cards, asked.milli, asked.models
    )
