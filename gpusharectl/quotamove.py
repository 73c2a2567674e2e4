"""A quota's number under another name: what to write, or why not. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref

Step = dict[str, object]
_HARD = "/spec/hard"


@dataclass(frozen=True, slots=True)
class Names:
    """From which resource to which, as quotas name them; ``keep`` the first one too."""

    old: str
    new: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One quota to change: ``steps`` are a JSON patch, ``number`` is what moves."""

    ref: Ref
    before: Json
    number: str
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Clash:
    """One quota that has both names with two numbers: only a person can choose."""

    ref: Ref
    old_number: str
    new_number: str


def move(quota: Json, names: Names) -> Move | Clash | None:
    """Plan the move of one ResourceQuota; None where there is nothing left to do.

    The patch is refused where somebody has changed the bounds in the meantime; the
    count of what is used, which changes with each pod, does not matter.
    """
    hard = (quota.get("spec") or {}).get("hard") or {}
    if names.old not in hard:
        return None
    ref, number = Ref.of(quota), str(hard[names.old])
    steps: list[Step] = [{"op": "test", "path": _HARD, "value": hard}]
    if names.new not in hard:
        steps.append({"op": "add", "path": _path(names.new), "value": number})
    elif not _same(number, str(hard[names.new])):
        return Clash(ref, number, str(hard[names.new]))
    if not names.keep:
        steps.append({"op": "remove", "path": _path(names.old)})
    return Move(ref, quota, number, steps) if len(steps) > 1 else None


def without_bound(
    quotas: Sequence[Json], moves: Sequence[Move], resource: str
) -> tuple[str, ...]:
    """Name the namespaces of these moves in which no quota bounds the resource."""
    bounded = {
        Ref.of(quota).namespace
        for quota in quotas
        if resource in ((quota.get("spec") or {}).get("hard") or {})
    }
    return tuple(sorted({one.ref.namespace for one in moves} - bounded))


def _path(resource: str) -> str:
    return f"{_HARD}/{resource.replace('~', '~0').replace('/', '~1')}"


def _same(one: str, other: str) -> bool:
    """Tell whether two quantities are one number: ``1k`` is ``1000``."""
    try:
        return whole(one) == whole(other)
    except (NotAQuantity, NotWhole):
        return one == other
