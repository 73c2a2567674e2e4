"""filter: which of the nodes can take the pod, and why the others cannot. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import filterfalse

from extender.wire import FilterResult
from gpushare.domain.fitting import Answer
from gpushare.domain.model import NodeName
from gpushare.domain.summary import Reason, Refusal
from gpushare.kube.codec import refusal_text

UNKNOWN = Refusal(Reason.NO_CARDS)
"""For a node that the ledger has never heard of."""


def judge(
    names: Sequence[NodeName],
    answer: Answer,
    exceptions: Mapping[NodeName, Refusal | None],
) -> FilterResult:
    """Divide the names into kept and refused, in the order given.

    ``exceptions`` overrule the answer where this very pod is seen differently from its
    like. Set look-ups in C, because there may be thousands of names (docs/operations).
    """
    fits = answer.fits
    if exceptions:
        fits = _overruled(fits, exceptions)
    kept = list(filter(fits.__contains__, names))
    if len(kept) == len(names):
        return FilterResult(kept)
    rest = list(filterfalse(fits.__contains__, names))
    refused = dict.fromkeys(rest, refusal_text(UNKNOWN))
    for refusal, group in answer.refused.items():
        these = filter(group.__contains__, rest)
        refused.update(dict.fromkeys(these, refusal_text(refusal)))
    refused.update(
        {n: refusal_text(exceptions[n] or UNKNOWN) for n in rest if n in exceptions}
    )
    return FilterResult(kept, refused)


def refuse_all(names: Sequence[NodeName], refusal: Refusal) -> FilterResult:
    """Refuse every node for one reason."""
    return FilterResult((), dict.fromkeys(names, refusal_text(refusal)))


def _overruled(
    fits: AbstractSet[NodeName], exceptions: Mapping[NodeName, Refusal | None]
) -> AbstractSet[NodeName]:
    yes = {name for name, refusal in exceptions.items() if refusal is None}
    return (fits - exceptions.keys()) | yes
