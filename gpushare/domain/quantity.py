"""Kubernetes quantities, as whole numbers of cores or units."""

import re
from decimal import Decimal, localcontext

_SHAPE = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d{1,3}|)",
    re.ASCII,
)
_DECIMAL = {"": 0, "n": -9, "u": -6, "m": -3} | {
    suffix: 3 * power for power, suffix in enumerate("kMGTPE", start=1)
}
_BINARY = {f"{letter}i": power for power, letter in enumerate("KMGTPE", start=1)}
_MOST_DIGITS = 40


class NotAQuantity(ValueError):
    """The text is no Kubernetes quantity, or one below zero; the message says which."""


class NotWhole(ValueError):
    """The quantity is in order, but not a whole number."""


def whole(quantity: object) -> int:
    """Read a quantity such as ``"4"``, ``"1k"``, ``"4000m"`` or ``4``.

    Raises ``NotAQuantity`` for what the API server would not let through, ``NotWhole``
    for a fraction. Source of the format: ``apimachinery/pkg/api/resource``.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, int | str):
        kind = type(quantity).__name__
        raise NotAQuantity(f"a quantity is a string or a whole number, not {kind}")
    text = str(quantity)
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        # Nearly all are so, and filter is asked thousands of times.
        return int(text)
    value = _value(text)
    if value < 0:
        raise NotAQuantity("it is below zero")
    if value != value.to_integral_value():
        raise NotWhole("it is not a whole number")
    return int(value)


def is_in_bytes(quantity: object) -> bool:
    """Tell whether somebody wrote bytes, such as ``16Gi``, where units are meant."""
    match = _SHAPE.fullmatch(str(quantity))
    return match is not None and match["suffix"] in _BINARY


def _value(text: str) -> Decimal:
    match = _SHAPE.fullmatch(text)
    if match is None or len(text) > _MOST_DIGITS:
        raise NotAQuantity("it is not a Kubernetes quantity")
    number, suffix = Decimal(match["number"]), match["suffix"]
    with localcontext(prec=400):
        if suffix in _BINARY:
            return number * Decimal(1024) ** _BINARY[suffix]
        if suffix in _DECIMAL:
            return number.scaleb(_DECIMAL[suffix])
        return number.scaleb(int(suffix[1:]))
