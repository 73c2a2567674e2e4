"""filter: which of the nodes can take the pod, and why the others cannot. Pure."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import filterfalse

from extender.wire import FilterResult, insist_on_strings
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
    """Divide the names into kept, in the order given, and refused.

    ``exceptions`` overrule the answer where this very pod is seen differently from its
    like. There may be thousands of names, so they are looked up in C, never in a loop
    of ours, and not at all a second time when all of them fit.
    """
    with suppress(TypeError):
        # What is not even hashable is complained of in a moment.
        if not exceptions and answer.fits.issuperset(names):
            return FilterResult(names)
    insist_on_strings(names)
    verdicts: dict[NodeName, str] = {}
    for refusal, group in answer.refused.items():
        these = filter(group.__contains__, names)
        verdicts.update(dict.fromkeys(these, refusal_text(refusal)))
    if len(verdicts) == len(names) and not exceptions:
        return FilterResult((), verdicts)
    kept = list(filter(answer.fits.__contains__, names))
    if len(kept) + len(verdicts) < len(names):
        known = verdicts.keys() | set(kept)
        unknown = filterfalse(known.__contains__, names)
        verdicts.update(dict.fromkeys(unknown, refusal_text(UNKNOWN)))
    return _overrule(names, kept, verdicts, exceptions)


def refuse_all(names: Sequence[NodeName], refusal: Refusal) -> FilterResult:
    """Refuse every node for one reason."""
    insist_on_strings(names)
    return FilterResult((), dict.fromkeys(names, refusal_text(refusal)))


def _overrule(
    names: Sequence[NodeName],
    kept: list[NodeName],
    verdicts: dict[NodeName, str],
    exceptions: Mapping[NodeName, Refusal | None],
) -> FilterResult:
    if not exceptions:
        return FilterResult(kept, verdicts)
    for name in exceptions.keys() & set(names):
        refusal = exceptions[name]
        if refusal is None:
            verdicts.pop(name, None)
        else:
            verdicts[name] = refusal_text(refusal)
    return FilterResult([n for n in names if n not in verdicts], verdicts)
