"""Stretches of time as people write and read them. Pure."""

import re

_TERM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_MS = 1000
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float | None:
    """Read ``90``, ``90s``, ``1h30m`` or ``2d`` as seconds; None for anything else.

    >>> seconds("1h30m"), seconds("90"), seconds("soon")
    (5400.0, 90.0, None)
    """
    total, place = 0.0, 0
    for match in _TERM.finditer(text):
        if match.start() != place or (match[2] is None and match.end() != len(text)):
            return None
        if match[2] is None and place:
            return None
        total += float(match[1]) * _SECONDS[match[2] or "s"]
        place = match.end()
    return whole_ms(total) if text and place == len(text) else None


def whole_ms(time_s: float) -> float:
    """Give a time in seconds to the millisecond: so equal sums are equal.

    >>> 0.1 + 0.2 == 0.3, whole_ms(0.1 + 0.2) == 0.3
    (False, True)
    """
    return round(time_s, 3)


def stretch(length_s: float) -> str:
    """Say so many seconds in the two largest units that matter; ms below a second.

    >>> stretch(0), stretch(5400), stretch(90), stretch(200000), stretch(0.3)
    ('0 s', '1 h 30 min', '1 min 30 s', '2 d 7 h', '300 ms')
    """
    if 0 < (milliseconds := round(_MS * length_s)) < _MS:
        return f"{milliseconds} ms"
    left = round(length_s)
    parts = []
    for word, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number:
            parts.append((word, number))
    if not parts:
        return "0 s"
    first = parts[0][0]
    following = {"d": "h", "h": "min", "min": "s"}.get(first)
    kept = [parts[0], *(part for part in parts[1:2] if part[0] == following)]
    return " ".join(f"{number} {word}" for word, number in kept)
