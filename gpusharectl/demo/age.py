"""How long ago something was, in kubectl's words. Pure."""

from datetime import datetime

UNKNOWN = "<unknown>"
_STEPS = (
    (120, "s", 1, "", 1),
    (600, "m", 60, "s", 1),
    (3 * 3600, "m", 60, "", 1),
    (8 * 3600, "h", 3600, "m", 60),
    (48 * 3600, "h", 3600, "", 1),
    (8 * 86400, "d", 86400, "h", 3600),
    (2 * 365 * 86400, "d", 86400, "", 1),
)
"""Below how many seconds: unit and its size, and what is left in what unit."""


def age(moment: str, now: datetime) -> str:
    """Say how long ago something was, as kubectl does: ``45s``, ``3m20s``, ``2d``.

    The source is ``k8s.io/apimachinery/pkg/util/duration``.
    """
    try:
        seconds = int((now - datetime.fromisoformat(moment)).total_seconds())
    except (ValueError, TypeError):
        return UNKNOWN
    for limit, unit, size, rest, rest_size in _STEPS:
        if seconds < limit:
            whole, left = divmod(max(0, seconds), size)
            part = left // rest_size
            return f"{whole}{unit}{part}{rest}" if rest and part else f"{whole}{unit}"
    return f"{seconds // (365 * 86400)}y"
