"""Times and amounts in a scenario's fields. Pure."""

from gpushare.domain.quantity import NotAQuantity
from gpushare.domain.summary import users_words
from gpusharectl.simulator.durations import seconds
from gpusharectl.simulator.podtemplate import check_amount
from gpusharectl.simulator.yamlfields import MOST, Entry


def moment(entry: Entry, key: str, default: float) -> float:
    """Read a stretch of time such as ``90s`` or ``2h``, in seconds."""
    if not entry.has(key):
        return default
    text = entry.text(key)
    found = seconds(text)
    if found is None:
        raise entry.wrong(key, f'is "{text}"; give a time such as 90s, 10m or 1h30m')
    if found > MOST:
        told = users_words(text)
        raise entry.wrong(key, f'is "{told}"; it may be {MOST} s in all')
    return found


def quantity(entry: Entry, key: str) -> str:
    """Read a Kubernetes quantity of CPU or memory; empty where there is none."""
    if not entry.has(key):
        return ""
    text = entry.text(key)
    try:
        check_amount(text)
    except NotAQuantity as error:
        raise entry.wrong(
            key, f'is "{text}"; give a quantity such as 4, 500m or 16Gi'
        ) from error
    return text
