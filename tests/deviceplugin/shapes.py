"""Pods of many shapes, and a kubelet in a few lines that gives them their ids."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

from deviceplugin.cards.devices import KINDS, Cards, device_ids, part, pick, plan
from deviceplugin.pods import Listed, NodePod, node_pod
from gpushare.domain.model import Placement
from gpushare.domain.request import Role
from gpushare.kube import names
from gpushare.kube.cluster import Json
from tests.builders import container_json, pod_json

RESOURCES = (names.CORE, names.MEMORY)

small = st.tuples(st.integers(0, 9), st.integers(0, 20))
large = st.tuples(st.integers(0, 9), st.sampled_from([100, 200]))
inits = st.lists(st.tuples(small, st.sampled_from([None, "Always"])), max_size=2)


def shaped(
    name: str,
    apps: Sequence[tuple[int, int]],
    first: Sequence[tuple[tuple[int, int], str | None]] = (),
    *,
    apart: bool = False,
) -> Json:
    """A pod with containers ``c0``... after init containers ``i0``...; units, cores."""
    return pod_json(
        name,
        containers=[
            container_json(f"c{i}", units, cores)
            for i, (units, cores) in enumerate(apps)
        ],
        init=[
            container_json(f"i{i}", *amounts, restart=restart)
            for i, (amounts, restart) in enumerate(first)
        ],
        annotations={names.CONTAINERS: names.APART} if apart else None,
    )


def shapes(name: str = "pod") -> st.SearchStrategy[Json]:
    """Shares of a card with init containers and sidecars; whole cards; cards apart."""
    several = st.lists(small, min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda apps, first: shaped(name, apps, first), several, inits),
        st.builds(lambda one: shaped(name, [one]), large),
        st.builds(lambda two: shaped(name, [two, two]), st.just((4, 100))),
        st.builds(lambda apps: shaped(name, apps, apart=True), several),
        st.builds(
            lambda one, more: shaped(name, [one, *more], apart=True), large, several
        ),
    )


def seen(pod: Json) -> NodePod:
    return node_pod(pod)


@dataclass
class Giver:
    """Gives ids as kubelet does: by container, resources in an order of chance.

    Ids of init containers that end are taken again at random before anybody is asked.
    """

    cards: Cards
    chance: Random
    held: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def calls(self, pod: NodePod) -> Iterator[tuple[str, str, int]]:
        """Container, resource and count of each Allocate, in order."""
        for one in pod.gpu_containers:
            for resource in self.chance.sample(RESOURCES, 2):
                if count := part(one.amount, resource):
                    yield one.name, resource, count

    def give(self, pod: NodePod, placement: Placement) -> None:
        """Admit the pod with the ids that we would choose by its placement."""
        ends = {one.name for one in pod.gpu_containers if one.role is Role.INIT}
        reusable: set[str] = set()
        for container, resource, count in self.calls(pod):
            kind = f"-{KINDS[resource]}"
            again = sorted(one for one in reusable if kind in one)
            must = self.chance.sample(again, min(count, len(again)))
            ids: Sequence[str] | None = must
            if len(must) < count:
                ids = pick(
                    {
                        uuid: part(amount, resource)
                        for uuid, amount in plan(placement, container).items()
                    },
                    (self.free(resource) | set(must)),
                    must,
                    size=count,
                )
            assert ids is not None
            assert len(ids) == len(set(ids)) == count
            self.used |= set(ids)
            self.held.setdefault(container, {})[resource] = frozenset(ids)
            if container in ends:
                reusable |= set(ids)
            else:
                reusable -= set(ids)

    def free(self, resource: str) -> set[str]:
        every = {i for c in self.cards.all for i in device_ids(c, KINDS[resource])}
        return every - self.used

    def listed(self, pod: NodePod) -> Mapping[str, Mapping[str, frozenset[str]]]:
        """What kubelet would list: init containers that end are not there."""
        ends = {one.name for one in pod.gpu_containers if one.role is Role.INIT}
        return {name: held for name, held in self.held.items() if name not in ends}


def listed_as(pod: NodePod, held: Mapping[str, Mapping[str, frozenset[str]]]) -> Listed:
    return Listed({pod.name: held})
