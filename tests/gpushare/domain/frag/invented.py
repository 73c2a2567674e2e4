"""Invented pods, nodes and clusters for the policy frag."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st

from gpushare.domain.frag.shapes import ClusterCapacity, FreeOnNode, PodShape

few = settings(max_examples=30)
MODELS: Final = ("A10", "T4", "V100")


def share(milli: int, cpu: int = 0, memory: int = 0, *models: str) -> PodShape:
    return PodShape(milli, 1, cpu, memory, frozenset(models) or None)


def whole(cards: int, cpu: int = 0, memory: int = 0, *models: str) -> PodShape:
    return PodShape(1000, cards, cpu, memory, frozenset(models) or None)


def no_card(cpu: int, memory: int = 0) -> PodShape:
    return PodShape(0, 0, cpu, memory)


def state(
    *residuals: int, cpu: int | None = None, memory: int | None = None, model: str = ""
) -> FreeOnNode:
    return FreeOnNode(cpu, memory, residuals, model)


def pool(
    states: Iterable[FreeOnNode], cards: int, *host: int | None
) -> ClusterCapacity:
    idle: Counter[str] = Counter()
    untouched: Counter[int] = Counter()
    for each in states:
        idle[each.model] += each.idle
        untouched[each.untouched] += 1
    cpu, memory = host or (None, None)
    return ClusterCapacity(cards, cpu, memory, idle, untouched)


def pool_of(nodes: list[FreeOnNode]) -> ClusterCapacity:
    """The pool of nodes that have no more CPU and memory than they have free."""
    return pool(
        nodes,
        sum(len(node.residuals) for node in nodes),
        sum(node.cpu_milli or 0 for node in nodes),
        sum(node.memory_mib or 0 for node in nodes),
    )


cpus = st.integers(0, 32).map(lambda cores: cores * 1000)
memories = st.integers(0, 64).map(lambda gib: gib * 1024)
model_sets = st.none() | st.frozensets(st.sampled_from(MODELS), min_size=1)
shapes = st.one_of(
    st.builds(PodShape, st.integers(1, 1000), st.just(1), cpus, memories, model_sets),
    st.builds(
        PodShape,
        st.just(1000),
        st.sampled_from([1, 2, 3, 4, 8, 16]),
        cpus,
        memories,
        model_sets,
    ),
    st.builds(PodShape, st.just(0), st.just(0), cpus, memories),
)
histograms = st.dictionaries(shapes, st.integers(1, 300), max_size=12)
residuals = st.one_of(
    st.sampled_from([0, 190, 350, 530, 1000, 1000, 1000]), st.integers(-200, 1000)
)
states = st.builds(
    FreeOnNode,
    st.none() | cpus,
    st.none() | memories,
    st.lists(residuals, max_size=8).map(tuple),
    st.sampled_from([*MODELS, "other"]),
)
