"""Namespaces on a screen: a line each, and in a wide one a line for each quota."""

from collections.abc import Iterator, Mapping, Sequence

from gpushare.kube import words
from gpushare.kube.names import DOMAIN
from gpusharectl.inspection.carddrawing import Paper
from gpusharectl.inspection.quotas import COUNTED
from gpusharectl.inspection.views import NamespaceView, Quota
from gpusharectl.output import Words

_MOST = 10
_NAME, _NUMBER = 20, 7
_NO_QUOTA = "-"
_WARN, _DIM = "yellow", "dim"


def draw_namespaces(seen: Sequence[NamespaceView], paper: Paper) -> Iterator[Words]:
    """Show what is allotted to each namespace, and how much of its quotas is used.

    Of several quotas on one resource the one that has least left; a wide screen names
    all. Resources without a quota anywhere have no column.
    """
    if not seen:
        return
    shown = seen if paper.wide else seen[:_MOST]
    name = max(_NAME, *(len(one.name) for one in shown)) if paper.wide else _NAME
    columns = {
        resource: _width(shown, resource)
        for resource in COUNTED
        if any(_tightest(view, resource) for view in seen)
    }
    yield from _head(name, columns, known=seen[0].quotas is not None)
    for view in shown:
        yield _line(view, name, columns)
        for quota in view.quotas or () if paper.wide else ():
            told = f"  quota {quota.name}: {_of(quota)} of {quota.resource}"
            yield Words(told, _DIM)
    if left := len(seen) - len(shown):
        yield Words(f"and {words.counted(left, 'namespace')} more (-o wide)", _DIM)


def _width(seen: Sequence[NamespaceView], resource: str) -> int:
    texts = [_text(_tightest(view, resource)) for view in seen]
    return max(len(text) for text in (_short(resource), *texts))


def _head(name: int, columns: Mapping[str, int], *, known: bool) -> Iterator[Words]:
    over = f"{'':{name}}{'allotted':>{2 * _NUMBER}}"
    if columns or not known:
        over += "  used of quota" if known else f"  quotas {words.NOT_KNOWN}"
    line = f"{'namespace':{name}}{'units':>{_NUMBER}}{'cores':>{_NUMBER}}"
    line += "".join(f"  {_short(one):>{width}}" for one, width in columns.items())
    yield Words(f"\n{over}", _DIM)
    yield Words(line, _DIM)


def _line(view: NamespaceView, name: int, columns: Mapping[str, int]) -> Words:
    cut = view.name if len(view.name) <= name else f"{view.name[: name - 1]}…"
    line = Words(f"{cut:{name}}")
    line.append(f"{view.allotted.units:>{_NUMBER}}{view.allotted.cores:>{_NUMBER}}")
    for resource, width in columns.items():
        tight = _tightest(view, resource)
        over = tight is not None and _left(tight) < 0
        line.append(f"  {_text(tight):>{width}}", _WARN if over else None)
    return line


def _short(resource: str) -> str:
    return resource.removeprefix(f"{DOMAIN}/")


def _tightest(view: NamespaceView, resource: str) -> Quota | None:
    here = [one for one in view.quotas or () if one.resource == resource]
    return min(here, key=_left, default=None)


def _left(quota: Quota) -> float:
    """Give what is left of a quota; of one that nobody knows, more than of any."""
    if quota.hard is None or quota.used is None:
        return float("inf")
    return quota.hard - quota.used


def _text(quota: Quota | None) -> str:
    return _NO_QUOTA if quota is None else _of(quota)


def _of(quota: Quota) -> str:
    parts = (quota.used, quota.hard)
    return "/".join(words.NOT_KNOWN if one is None else str(one) for one in parts)
