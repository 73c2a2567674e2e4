"""What should come of a scenario, as its file writes it. Pure."""

from collections.abc import Collection

from gpushare.kube import words
from gpusharectl.simulator.eventfields import PodName
from gpusharectl.simulator.scenario import Expected
from gpusharectl.simulator.yamlfields import Entry

_MOST_SPACES = 3


def read_expected(top: Entry, pods: Collection[PodName]) -> Expected:
    """Read ``expect``, nothing where it is not there; ``pods`` are those that come."""
    if not top.has("expect"):
        return Expected()
    entry = top.entry("expect")
    entry.known("placed", "refused", "pods")
    return Expected(
        entry.integer("placed") if entry.has("placed") else None,
        entry.integer("refused") if entry.has("refused") else None,
        _places(entry.entry("pods"), pods) if entry.has("pods") else {},
    )


def _places(wanted: Entry, pods: Collection[PodName]) -> dict[PodName, str]:
    spaces: dict[str, list[str]] = {}
    for space, name in pods:
        spaces.setdefault(name, []).append(space)
    where: dict[PodName, str] = {}
    for told in wanted.fields():
        key = _pod(wanted, told, spaces)
        if key in where:
            raise wanted.wrong(told, f"{'/'.join(key)} is there twice; give it once")
        where[key] = wanted.text(told)
    return where


def _pod(wanted: Entry, told: str, spaces: dict[str, list[str]]) -> PodName:
    """Find the pod of this name; one without a namespace must be the only one."""
    space, slash, name = told.rpartition("/")
    there = spaces.get(name, [])
    if not there or (slash and space not in there):
        raise wanted.wrong(told, "there is no such pod in this scenario")
    if not slash and len(there) > 1:
        found = words.listed(sorted(there), _MOST_SPACES)
        problem = f"there are {len(there)} pods of this name, in {found}"
        raise wanted.wrong(told, f"{problem}; give NAMESPACE/POD")
    return (space if slash else there[0], name)
