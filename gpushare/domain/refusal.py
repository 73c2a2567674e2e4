"""Why a node cannot take a pod: the fixed reasons, as values."""

from dataclasses import dataclass
from enum import StrEnum

from gpushare.domain.card_selector import Limit
from gpushare.domain.model import Amount

_MAX_USER_TEXT = 100


class Reason(StrEnum):
    """Why a node cannot take a pod; ``kube.codec.refusal_text`` has the texts."""

    MEMORY = "memory"
    CORE = "core"
    CORE_AND_MEMORY = "core-and-memory"
    UNTOUCHED_CARDS = "untouched-cards"
    NO_CARDS = "no-cards"
    CHANGING = "changing"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot take a pod, as a value.

    Equal refusals have equal texts, because kube-scheduler groups nodes by text
    (contracts 1.6). ``detail`` says what is wrong; it is set with ``INVALID`` only.
    ``limits`` names the pod's lists that exclude open cards of the node.
    """

    reason: Reason
    detail: str = ""
    limits: tuple[Limit, ...] = ()


def refuse_invalid(detail: str) -> Refusal:
    """Return the refusal of a request that no node can meet."""
    return Refusal(Reason.INVALID, detail)


# Constants, because filter returns one for each node where a pod fits nowhere.
NO_CARDS = Refusal(Reason.NO_CARDS)
UNTOUCHED_CARDS = Refusal(Reason.UNTOUCHED_CARDS)
_CORE = Refusal(Reason.CORE)
_MEMORY = Refusal(Reason.MEMORY)
CORE_AND_MEMORY = Refusal(Reason.CORE_AND_MEMORY)


def refuse_insufficient(amount: Amount, most: Amount) -> Refusal:
    """Return the refusal that names the parts of an amount above the maximum."""
    short_of_cores = amount.cores > most.cores
    short_of_units = amount.units > most.units
    if short_of_cores == short_of_units:
        return CORE_AND_MEMORY
    return _CORE if short_of_cores else _MEMORY


def clean_text(text: str) -> str:
    """Return a user's text in a form that is safe in an event.

    Removes ``%``, which kube-scheduler reads as a format (contracts 1.6), and control
    characters, and cuts the text at 100 characters.
    """
    clean = "".join(char for char in text if char.isprintable() and char != "%")
    if len(clean) <= _MAX_USER_TEXT:
        return clean
    return clean[: _MAX_USER_TEXT - 1] + "…"
