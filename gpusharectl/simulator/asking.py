"""What a pod asks, in words that tell kinds of pods apart. Pure."""

from collections.abc import Iterator

from gpushare.domain.model import PodRequest
from gpushare.kube import words
from gpusharectl.simulator.candidates import Question


def asks(question: Question) -> str:
    """Say what a pod asks of cards and beside them, and what it wants of both."""
    request = question.request
    amounts = ", ".join(_amounts(request)) or "nothing"
    return ", ".join((amounts, *_wishes(question)))


def _amounts(request: PodRequest) -> Iterator[str]:
    if request.claims:
        yield words.claims(request.claims)
    host = request.host
    if host is not None and host.cpu_milli:
        yield f"{host.cpu_milli / 1000:g} CPU"
    if host is not None and host.memory_mib:
        yield f"{host.memory_mib / 1024:.3g} GiB of the node"


def _wishes(question: Question) -> Iterator[str]:
    request = question.request
    if request.cards is not None:
        yield words.allowed(request.cards)
    if question.wish.selector:
        labels = (f"{key}={value}" for key, value in question.wish.selector)
        yield f"on nodes with {' and '.join(labels)}"
    if request.policy:
        yield f"by the policy {request.policy}"
