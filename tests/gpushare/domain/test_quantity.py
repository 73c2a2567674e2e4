"""Kubernetes quantities, read as whole numbers."""

import pytest

from gpushare.domain.quantity import NotAQuantity, NotWhole, is_in_bytes, parse_whole


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        *(("4", 4), (4, 4), ("+4", 4), ("0", 0), ("-0", 0), ("1k", 1000), ("4000m", 4)),
        *(("1e3", 1000), ("1E3", 1000), ("1E", 10**18), ("2Ki", 2048), ("5.", 5)),
        *(("16Gi", 16 * 2**30), ("0.5k", 500), (".5k", 500), ("4.000", 4)),
        *(("1000000000n", 1), ("1000000u", 1), ("1e999", 10**999)),
    ],
    ids=str,
)
def test_a_whole_quantity_in_any_notation(quantity: object, number: int) -> None:
    assert parse_whole(quantity) == number


@pytest.mark.parametrize("quantity", ["1.5", "500m", "1n", "0.5", "1e-1", "0.3Ki"])
def test_a_fraction_is_told_apart(quantity: str) -> None:
    with pytest.raises(NotWhole, match="not a whole number"):
        parse_whole(quantity)


@pytest.mark.parametrize(
    "quantity",
    [
        *("", " 4", "4 ", "4\n", "four", "4KB", "4ki", "0x10", "1_000", "1e", "--4"),
        *("NaN", "Infinity", "1e9999", "9" * 50, "\uff14", "\u0664"),
        *("-1", -1, "-500m", "-4Gi", 1.0, True, None, [], {}),
    ],
    ids=ascii,
)
def test_what_the_api_server_would_not_let_through(quantity: object) -> None:
    with pytest.raises(NotAQuantity):
        parse_whole(quantity)


@pytest.mark.parametrize(
    ("quantity", "bytes_"),
    [("16Gi", True), ("1Ki", True), ("16G", False), ("16", False), ("x", False)],
)
def test_binary_suffixes_mean_bytes(quantity: str, bytes_: bool) -> None:
    assert is_in_bytes(quantity) is bytes_
