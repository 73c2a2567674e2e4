"""Whether what kubelet recorded agrees with where pods are believed to be. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from deviceplugin.cards import DeviceId, card_key
from deviceplugin.nodepod import Held, PodName
from deviceplugin.tenancy import Tenant


@dataclass(frozen=True, slots=True)
class KubeletRound:
    """One pass over the pods that have a placement.

    ``asked`` is how many of them kubelet answered about, were it that it knows no such
    pod. ``misplaced`` are those whose devices lie on other cards than their placement.
    ``failure`` says why nothing is known.
    """

    at: float
    took_s: float
    asked: int = 0
    misplaced: tuple[PodName, ...] = ()
    failure: str = ""


def disagrees(tenant: Tenant, held: Mapping[str, Held]) -> bool:
    """Tell whether a pod's devices are others than its placement says.

    Only cards count: which of a pod's containers has which of its whole cards, and
    what an init container had, devices do not tell (contracts 2.3, 2.6).
    """
    shares = tenant.shares()
    if not shares:
        return False
    planned = {card_key(share.card) for share in shares}
    ids = (one for its in held.values() for of in its.values() for one in of)
    given = {found.key for found in map(DeviceId.parse, ids) if found}
    if not given:
        return _should_hold(tenant)
    if tenant.pod.passing:
        return not given <= planned
    return given != planned


def _should_hold(tenant: Tenant) -> bool:
    """Tell whether a container runs that asks for devices, so that it must have some.

    One that starts only now may not have been given any.
    """
    return any(
        asking.name in tenant.running and asking.name not in tenant.pod.passing
        for asking in tenant.pod.asking
    )
