"""Namespaces: what is allotted to their pods, and what their quotas allow. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from gpushare.domain.model import NOTHING, Amount
from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.inspection import facts
from gpusharectl.inspection.picture import Picture, Trouble
from gpusharectl.inspection.views import NamespaceView, Quota

COUNTED = (names.MEMORY, names.CORE, names.BITFUSION_GPU)
"""The resources of which a quota is shown."""
_ASKED = "requests."
"""How a quota names what pods ask of an extended resource."""


def namespaces(picture: Picture) -> tuple[NamespaceView, ...]:
    """Give those with something allotted or with a quota on it, by name."""
    held = _allotted(picture)
    if picture.quotas is None:
        return tuple(NamespaceView(name, held[name], None) for name in sorted(held))
    bounds: defaultdict[str, list[Quota]] = defaultdict(list)
    for quota in picture.quotas:
        namespace = str(quota["metadata"].get("namespace") or "")
        bounds[namespace] += _said(quota)
    return tuple(
        NamespaceView(name, held.get(name, NOTHING), tuple(bounds.get(name, ())))
        for name in sorted({*held, *(name for name, some in bounds.items() if some)})
    )


def counting_nothing(picture: Picture) -> Iterator[Trouble]:
    """Say which quotas are on Bitfusion's resource, where no pod can ask for it."""
    resource = names.BITFUSION_GPU
    if any(facts.allocatable(node, resource) for node in picture.nodes):
        return
    idle: dict[str, None] = {}
    for quota in picture.quotas or ():
        if any(one.resource == resource for one in _said(quota)):
            idle[str(quota["metadata"].get("namespace") or "")] = None
    for namespace in idle:
        what = f"its quota on {resource} counts nothing: no node offers any"
        yield Trouble(namespace, what, f"gpusharectl migrate-quota -n {namespace}")


def _allotted(picture: Picture) -> Mapping[str, Amount]:
    """Add up what is charged, each pod once: one of unknown card holds one only."""
    found: defaultdict[str, Amount] = defaultdict(Amount)
    for page in picture.books.pages:
        for placement in page.placements.values():
            for share in placement.shares:
                found[placement.pod.namespace] += share.amount
        for asked in page.unplaced.values():
            for claim in asked.claims:
                found[asked.pod.namespace] += claim.amount
    return found


def _said(quota: Json) -> Iterator[Quota]:
    hard = (quota.get("spec") or {}).get("hard") or {}
    used = (quota.get("status") or {}).get("used") or {}
    for resource in COUNTED:
        key = f"{_ASKED}{resource}"
        if key in hard:
            allowed, counted = _number(hard[key]), _number(used.get(key))
            yield Quota(facts.name_of(quota), resource, allowed, counted)


def _number(told: object) -> int | None:
    """Read a quantity; None where nobody has told, or told none that counts things."""
    try:
        return None if told is None else whole(told)
    except (NotAQuantity, NotWhole):
        return None
