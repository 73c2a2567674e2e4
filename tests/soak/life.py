"""What one pod asks and how it ends: drawn by the seed and its number alone."""

from dataclasses import dataclass
from enum import Enum
from random import Random

from tests.testbed.objects import CORE, MEMORY, pod
from tests.testbed.rest import Json

OURS = ("baidu.com/vcuda-", "vcuda request")
"""What a reason of ours, or of kube-scheduler's about our resources, has in it."""


class End(Enum):
    """How a pod leaves."""

    SUCCEEDS = "succeeds"
    FAILS = "fails"
    DELETED = "deleted"
    """While it runs, with its grace."""
    WITHDRAWN = "withdrawn"
    """Soon after it was made, bound or not: mostly in the middle of the decision."""


@dataclass(slots=True)
class Life:
    """One pod from its making to its end; the first line is drawn, the rest seen."""

    name: str
    units: int | None
    cores: int | None
    doomed: bool
    end: End
    stay_s: float
    grace_s: float

    posted_at: float | None = None
    seen: bool = False
    started: bool = False
    ending: bool = False
    bound: bool = False
    reason: str = ""

    def manifest(self, namespace: str, scheduler_name: str) -> Json:
        a_pod = pod(self.name, namespace, spec={"schedulerName": scheduler_name})
        resources = a_pod["spec"]["containers"][0]["resources"]["requests"]
        for resource, amount in ((MEMORY, self.units), (CORE, self.cores)):
            if amount is not None:
                resources[resource] = str(amount)
        return a_pod


def life(seed: int, number: int) -> Life:
    """Draw the life of this number."""
    draw = Random(f"{seed}/{number}")
    units, cores, doomed = _ask(draw)
    ends, weights = zip(*_ENDS.items(), strict=True)
    (end,) = draw.choices(ends, weights)
    return Life(
        name=f"life-{number}",
        units=units,
        cores=cores,
        doomed=doomed,
        end=end,
        stay_s=draw.uniform(0.1, 1.2),
        grace_s=draw.uniform(0.0, 0.3),
    )


_ENDS = {End.SUCCEEDS: 40, End.FAILS: 10, End.DELETED: 40, End.WITHDRAWN: 10}


def _ask(draw: Random) -> tuple[int | None, int | None, bool]:
    """Mostly shares of both; some of one part, some whole cards, some impossible."""
    kind = draw.random()
    if kind < 0.02:
        return 1_000, draw.randint(1, 60), True
    if kind < 0.04:
        return draw.randint(1, 20), 150, True
    if kind < 0.08:
        return draw.randint(1, 20), 100 * draw.randint(1, 2), False
    if kind < 0.16:
        return draw.randint(1, 24), None, False
    if kind < 0.20:
        return None, draw.randint(1, 99), False
    return draw.randint(1, 24), draw.randint(1, 60), False


def reason_of(a_pod: Json) -> str:
    """Give the words in which a pod was refused for want of cards; "" if it was not."""
    for condition in a_pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = str(condition.get("message", ""))
            if condition["reason"] == "Unschedulable" and any(w in text for w in OURS):
                return text
    return ""
