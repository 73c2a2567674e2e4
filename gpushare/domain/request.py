"""Turn a pod's containers into its claims: what must be placed on one card."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Claim,
    ContainerAmount,
    Refusal,
    clean_text,
    refuse_invalid,
)

MOST_APART = 16
"""Most containers of a pod that may have a card each: as many as the largest nodes have
cards. Filter searches every node for capacity for all of them."""


class Role(Enum):
    """When a container runs."""

    INIT = "init"
    """Ends before the next one starts."""
    SIDECAR = "sidecar"
    """An init container with ``restartPolicy: Always``: it keeps running."""
    APP = "app"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container of a pod's spec and what it asks, usually nothing."""

    name: str
    role: Role
    amount: Amount


def build_claims(
    containers: Sequence[ContainerSpec], *, apart: bool
) -> tuple[Claim, ...] | Refusal:
    """Turn containers, init containers first, into the pod's claims.

    By default all containers are one claim by the formula of contracts 5; with *apart*
    each container that asks is a claim of its own. The result is empty if none asks.
    Refused are cores that are neither a share nor whole cards, *apart* with more than
    ``MOST_APART`` containers that ask, and *apart* with an init container that asks,
    because kubelet reuses its device ids for containers on other cards.
    """
    asking = [spec for spec in containers if spec.amount]
    if not apart:
        built = [_together(asking)] if asking else []
    elif any(spec.role is Role.INIT for spec in asking):
        return refuse_invalid("containers cannot be apart when an init container asks")
    elif len(asking) > MOST_APART:
        return refuse_invalid(_too_many(len(asking)))
    else:
        built = [_alone(spec) for spec in asking]
    for claim in built:
        if not _possible(claim.amount.cores):
            return refuse_invalid(_about(claim.amount.cores))
    return tuple(built)


def peak_amount(containers: Sequence[ContainerSpec]) -> Amount:
    """Return a pod's peak need by kube-scheduler's formula (contracts 5)."""
    app = side = initmax = NOTHING
    for spec in containers:
        if spec.role is Role.APP:
            app += spec.amount
        elif spec.role is Role.SIDECAR:
            side += spec.amount
            initmax = initmax.peak(side)
        else:
            initmax = initmax.peak(side + spec.amount)
    return (app + side).peak(initmax)


def _together(asking: Sequence[ContainerSpec]) -> Claim:
    passing = frozenset(spec.name for spec in asking if spec.role is Role.INIT)
    containers = tuple(ContainerAmount(spec.name, spec.amount) for spec in asking)
    return Claim(peak_amount(asking), containers, passing)


def _alone(spec: ContainerSpec) -> Claim:
    return Claim(spec.amount, (ContainerAmount(spec.name, spec.amount),))


def _possible(cores: int) -> bool:
    return cores < CORES_PER_CARD or cores % CORES_PER_CARD == 0


def _too_many(asking: int) -> str:
    return (
        f"{clean_text(str(asking))} containers ask and are to be apart; at most "
        f"{MOST_APART} may be: let some share a card in a pod of their own"
    )


def _about(cores: int) -> str:
    below = cores // CORES_PER_CARD * CORES_PER_CARD
    wanted, less, more = (
        clean_text(str(number)) for number in (cores, below, below + CORES_PER_CARD)
    )
    return (
        f"{wanted} cores are neither a share of one card (1 to 99) nor whole cards; "
        f"ask {less} or {more}"
    )
