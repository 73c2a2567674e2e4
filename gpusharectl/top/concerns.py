"""Why top knows less of a node than it should, and what to do. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from gpushare.kube import words
from gpusharectl.demo.age import age
from gpusharectl.inspection.picture import Trouble
from gpusharectl.top.exporters import Heard, Silence, Told
from gpusharectl.top.figures import for_so_long
from gpusharectl.top.page import MEMORY, PROCESSES, PageSeen

OLD_S = 60.0
"""Rounds of these groups are seconds apart."""
_MOST_NODES = 3
_MISSES = {
    "cards": "finds no card, or no driver that answers",
    "config": "finds its file of fields bad, and goes on with the one before",
    "kubelet": "is not told by kubelet which devices pods have",
    "pods": "cannot read the pods of its node",
    "processes": "cannot tell whose processes are whose",
}
"""By what an exporter says it has trouble with."""
_NO_SOURCE = "none"
_SWITCHED = "is it switched off there (--disable-processes)?"


def concerns(told: Mapping[str, Told], now: datetime) -> Iterator[Trouble]:
    """Name the nodes of which nothing is known, then those of which less is."""
    silent: dict[tuple[str, str], list[str]] = {}
    for name, heard in told.items():
        if isinstance(heard, Silence):
            silent.setdefault((heard.because, heard.do), []).append(name)
    for (because, do), names in silent.items():
        yield Trouble(words.listed(names, _MOST_NODES), because, do)
    for name, heard in told.items():
        if isinstance(heard, Heard):
            for what in _of_page(heard.page, now):
                yield Trouble(name, what, heard.log)
            if cards := _without_sm(heard.page):
                what = (
                    f"the driver does not tell what each pod computes on card {cards}"
                )
                yield Trouble(name, what, "gpusharectl top --by card: how busy it is")


def _of_page(page: PageSeen, now: datetime) -> Iterator[str]:
    for about in page.troubles:
        yield f"its exporter {_MISSES.get(about, f'has trouble with {about}')}"
    if page.failed:
        yield f"its exporter did not get this of every card: {', '.join(page.failed)}"
    newest = max(page.times.values(), default=None)
    if newest is None:
        yield "its exporter has read nothing yet"
        return
    if PROCESSES not in page.times:
        yield f"its exporter reads no processes: {_SWITCHED}"
    for group in (MEMORY, PROCESSES):
        behind = newest - page.times.get(group, newest)
        if behind > OLD_S:
            yield f"its numbers of {group} are {for_so_long(behind)} old"
    if now.timestamp() - newest > OLD_S:
        when = datetime.fromtimestamp(newest, now.tzinfo).isoformat()
        yield (
            f"its newest numbers are {age(when, now)} old, by this computer's clock: "
            "the exporter hangs, or the clocks differ"
        )


def _without_sm(page: PageSeen) -> str:
    """Name the cards of which pods use memory, and nobody knows how they compute."""
    found = {
        page.cards[one.card].index
        for one in page.containers
        if one.used_mib and one.sm is None and one.card in page.cards
        if page.cards[one.card].sm_source == _NO_SOURCE and one.pod
    }
    return ", ".join(sorted(found, key=lambda index: (len(index), index)))
