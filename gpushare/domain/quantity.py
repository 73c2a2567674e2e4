"""Parse Kubernetes quantities."""

import math
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
_MEBIBYTE = 1 << 20
_MEBIBYTES = {"Mi": 1, "Gi": 1 << 10, "Ti": 1 << 20}


class NotAQuantity(ValueError):
    """The text is not a Kubernetes quantity, or it is below zero."""


class NotWhole(ValueError):
    """The quantity is valid but not a whole number."""


def is_plain_number(text: str, most_digits: int = 18) -> bool:
    """Return whether a text is digits alone, and no more than these.

    Python reads a longer one slowly, and none of more than 4,300 digits.
    """
    return text.isascii() and text.isdigit() and len(text) <= most_digits


def parse_whole(quantity: object) -> int:
    """Parse a quantity such as ``"4"``, ``"1k"``, ``"4000m"`` or ``4``.

    Raises ``NotAQuantity`` for what the API server rejects, ``NotWhole`` for a
    fraction. Source of the format: ``apimachinery/pkg/api/resource``.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, int | str):
        kind = type(quantity).__name__
        raise NotAQuantity(f"a quantity is a string or a whole number, not {kind}")
    text = str(quantity)
    if is_plain_number(text, _MOST_DIGITS):
        # The common case, because filter parses thousands.
        return int(text)
    value = _value(text)
    if value < 0:
        raise NotAQuantity("it is below zero")
    if value != value.to_integral_value():
        raise NotWhole("it is not a whole number")
    return int(value)


def read_whole(quantity: object) -> int | None:
    """Return what ``parse_whole`` does; None for what it does not accept."""
    try:
        return parse_whole(quantity)
    except (NotAQuantity, NotWhole):
        return None


def parse_thousandths(quantity: object) -> int:
    """Parse CPU such as ``"500m"``, ``"2"`` or ``0.5``, rounded up to thousandths.

    Raises ``NotAQuantity``.

    >>> [parse_thousandths(quantity) for quantity in ("500m", "2", "0.1", "100u")]
    [500, 2000, 100, 1]
    """
    text = str(quantity)
    number, factor = (text[:-1], 1) if text.endswith("m") else (text, 1000)
    if is_plain_number(number, _MOST_DIGITS):
        return int(number) * factor
    return _rounded_up(text, 1000)


def parse_mebibytes(quantity: object) -> int:
    """Parse memory such as ``"16Gi"``, ``"512M"`` or bytes, rounded up to MiB.

    Raises ``NotAQuantity``.

    >>> [parse_mebibytes(quantity) for quantity in ("16Gi", "1M", 1048577, "3Ki")]
    [16384, 1, 2, 1]
    """
    text = str(quantity)
    factor = _MEBIBYTES.get(text[-2:])
    number = text[:-2]
    if factor and is_plain_number(number, _MOST_DIGITS):
        return int(number) * factor
    return _rounded_up(text, Decimal(1) / _MEBIBYTE)


def is_in_bytes(quantity: object) -> bool:
    """Return whether a quantity is in bytes, such as ``16Gi``, instead of units."""
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


def _rounded_up(text: str, scale: int | Decimal) -> int:
    value = _value(text)
    if value < 0:
        raise NotAQuantity("it is below zero")
    with localcontext(prec=400):
        return math.ceil(value * scale)
