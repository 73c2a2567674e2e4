"""What filter alone refuses, as data: ``test_refusals`` and ``test_red`` play it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.controlplane.books import checked_book
from tests.controlplane.world import POLICY, World
from tests.testbed.rest import Json

Asked = tuple[int | None, int | None]
"""Units and cores; None leaves the resource out."""


@dataclass(frozen=True)
class Case:
    """Nodes with cards, what runs there already, and a pod that fits nowhere.

    ``says`` is the event up to its first full stop, less ``0/<n> nodes are available``.
    """

    name: str
    nodes: Mapping[str, tuple[int, ...]]
    asks: Asked
    says: str
    holders: tuple[Asked, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)

    def arrange(self, world: World) -> None:
        """Set the scene: the nodes, and what runs there."""
        for name, sizes in self.nodes.items():
            world.node(name, *sizes)
        for number, (units, cores) in enumerate(self.holders):
            world.runs(f"holder-{number}", units, cores)

    def check(self, world: World) -> None:
        """Insist that the pod is refused with these very words."""
        refused = world.post(self.name, *self.asks, annotations=self.annotations)
        assert_refused(world, refused, self.says)


def assert_refused(world: World, a_pod: Json, says: str) -> None:
    """Insist that the pod waits, and that its event begins so."""
    verdict = world.verdict(a_pod)
    name = a_pod["metadata"]["name"]
    assert not verdict.node, f"{name} runs on {verdict.node}, cards {verdict.cards}"
    count = len(world.nodes)
    words = f"0/{count} nodes are available: {says}. "
    right = f"{verdict.event} ".startswith(words)
    assert right, f"the event says something else: {verdict.event}"
    checked_book(world.rest)


TWO = {"edge": (29, 29)}
THREE_NODES = {"a": (29, 29), "b": (29, 29), "c": (29, 29)}
CASES = (
    Case(
        "fragmented",
        TWO,
        (15, 1),
        "1 Insufficient baidu.com/vcuda-memory on one card",
        holders=((19, 1), (19, 1)),
    ),
    Case(
        "memory-without-core",
        TWO,
        (15, None),
        "1 Insufficient baidu.com/vcuda-memory on one card",
        holders=((19, None), (19, None)),
    ),
    Case(
        "core",
        TWO,
        (1, 50),
        "1 Insufficient baidu.com/vcuda-core on one card",
        holders=((1, 60), (1, 60)),
    ),
    Case(
        "core-without-memory",
        TWO,
        (None, 50),
        "1 Insufficient baidu.com/vcuda-core on one card",
        holders=((None, 60), (None, 60)),
    ),
    Case(
        "core-here-memory-there",
        TWO,
        (10, 50),
        "1 Insufficient baidu.com/vcuda-core and baidu.com/vcuda-memory on one card",
        holders=((5, 80), (25, 30)),
    ),
    Case(
        "whole-cards",
        {"edge": (29, 29, 29)},
        (30, 200),
        "1 Insufficient untouched cards",
        holders=((20, 1), (20, 1)),
    ),
    Case(
        "whole-card-too-small",
        {"edge": (40, 10)},
        (20, 100),
        "1 Insufficient untouched cards",
        holders=((1, 1),),
    ),
    Case(
        "cores-of-no-kind",
        THREE_NODES,
        (4, 150),
        "3 Invalid vcuda request: 150 cores are neither a share of one card (1 to 99) "
        "nor whole cards; ask 100 or 200",
    ),
    Case(
        "policy-unknown",
        THREE_NODES,
        (4, 1),
        '3 Invalid vcuda request: no policy "tetris"; '
        "known are first-fit, best-fit, spread, frag",
        annotations={POLICY: "tetris"},
    ),
    Case(
        "containers-neither-here-nor-there",
        THREE_NODES,
        (4, 1),
        '3 Invalid vcuda request: baidu.com/vcuda-containers is "asunder"; '
        'the only value is "apart"',
        annotations={"baidu.com/vcuda-containers": "asunder"},
    ),
)
