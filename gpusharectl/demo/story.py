"""The story of ``make demo``: what seed 001 promises, step by step."""

from collections.abc import Callable, Sequence

from gpusharectl.demo.desk import NodeSpec
from gpusharectl.demo.stage import Stage, mib

Scene = Callable[[Stage], None]

_SHORT = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory."
_ONE_CARD = f"{_SHORT[:-1]} on one card."
_RTX_3090 = NodeSpec(
    "node-1", "RTX 3090", {"GPU-5d3cc7ba-1bb4-4f1c-8f4e-2a60a3b7d9c1": 24259}
)
_TESLA_P4 = NodeSpec(
    "node-2",
    "Tesla P4",
    {
        "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7": 7611,
        "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a": 7611,
    },
)
_T400 = NodeSpec(
    "node-3",
    "T400",
    {
        "GPU-31a0d2c4-6f0e-4a39-9d67-0c8be52f14aa": 4096,
        "GPU-e84b9f70-2d15-4c8b-b3f2-7719ac60d5be": 4096,
    },
)
HELD: Sequence[NodeSpec] = (_RTX_3090, _TESLA_P4)
"""The nodes of the cluster that is left to play with."""


def one_card(stage: Stage) -> None:
    """One RTX 3090 of 24259 MiB, 94 units: three pods share it."""
    stage.node(_RTX_3090)
    for name, units in (("app-1", 50), ("app-2", 40), ("app-3", 1)):
        stage.create(name, units)
    stage.expect(
        f"91 units, {mib(91)}, of 24259 MiB are in use",
        held=[["app-1", "app-2", "app-3"]],
    )


def rolling_update(stage: Stage) -> None:
    """app-3 is updated from 1 unit to 10: 50 + 40 + 10 exceed 94."""
    stage.node(_RTX_3090)
    for name, units in (("app-1", 50), ("app-2", 40), ("app-3a", 1)):
        stage.create(name, units)
    stage.delete("app-3a")
    stage.create("app-3b", 10, say="update")
    stage.expect_event("app-3b", _SHORT)
    stage.gone("app-3a")
    stage.expect("it still does not fit, and waits", held=[["app-1", "app-2"]])
    stage.expect_event("app-3b", _SHORT)
    stage.withdraw("app-3b")
    stage.create("app-3c", 1, say="update")
    stage.expect(
        "with the limit put back to 1 it runs",
        held=[["app-1", "app-2", "app-3c"]],
    )


def two_cards(stage: Stage) -> None:
    """Two Tesla P4 of 7611 MiB, 29 units each: pods of 4, 20 and 20."""
    stage.node(_TESLA_P4)
    for name, units in (("cuda-1", 4), ("cuda-2", 20), ("cuda-3", 20)):
        stage.create(name, units)
    stage.expect(
        "the card that fits first: 4 and 20 share one, 20 has the other",
        held=[["cuda-1", "cuda-2"], ["cuda-3"]],
    )
    stage.inside("cuda-1", "cuda-2", "cuda-3")


def not_on_one_card(stage: Stage) -> None:
    """Two cards of 4 GiB, 16 units each: a pod lives on one of them."""
    stage.node(_T400)
    for name, units in (("ai-1", 8), ("ai-2", 12)):
        stage.create(name, units)
    stage.expect("2 GiB and 3 GiB use both cards", held=[["ai-1"], ["ai-2"]])
    stage.create("ai-3", 10)
    stage.expect_event("ai-3", _ONE_CARD)
    stage.create("ai-4", 8)
    stage.expect(
        "12 units were free, but 10 on no card; 2 + 2 GiB share one",
        held=[["ai-1", "ai-4"], ["ai-2"]],
    )


SCENES: Sequence[Scene] = (one_card, rolling_update, two_cards, not_on_one_card)
