"""Kubernetes quantities, read as whole numbers."""

import pytest

from gpushare.domain.quantity import NotAQuantity, NotWhole, is_in_bytes, whole


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("4", 4),
        (4, 4),
        ("+4", 4),
        ("0", 0),
        ("-0", 0),
        ("1k", 1000),
        ("4000m", 4),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("2Ki", 2048),
        ("16Gi", 16 * 2**30),
        ("0.5k", 500),
        (".5k", 500),
        ("5.", 5),
        ("4.000", 4),
        ("1000000000n", 1),
        ("1000000u", 1),
    ],
)
def test_a_whole_quantity_in_any_notation(quantity: object, number: int) -> None:
    """All notations of the API server mean the same number to us."""
    assert whole(quantity) == number


@pytest.mark.parametrize("quantity", ["1.5", "500m", "1n", "0.5", "1e-1", "0.3Ki"])
def test_a_fraction_is_told_apart(quantity: str) -> None:
    """It is in order for Kubernetes, but no number of units or cores."""
    with pytest.raises(NotWhole, match="not a whole number"):
        whole(quantity)


@pytest.mark.parametrize(
    "quantity",
    [
        "",
        " 4",
        "4 ",
        "4\n",
        "four",
        "4KB",
        "4ki",
        "0x10",
        "1_000",
        "1e",
        "--4",
        "NaN",
        "Infinity",
        "1e9999",
        "9" * 50,
        "\uff14",
        "\u0664",
    ],
    ids=ascii,
)
def test_what_the_api_server_would_not_let_through(quantity: str) -> None:
    """Text that is no quantity is never taken for one."""
    with pytest.raises(NotAQuantity, match="not a Kubernetes quantity"):
        whole(quantity)


@pytest.mark.parametrize("quantity", ["-1", -1, "-500m", "-4Gi"])
def test_below_zero_is_no_quantity(quantity: object) -> None:
    """A pod cannot give a card what it does not have."""
    with pytest.raises(NotAQuantity, match="below zero"):
        whole(quantity)


@pytest.mark.parametrize(
    ("quantity", "kind"),
    [(1.0, "float"), (True, "bool"), (None, "NoneType"), ([], "list"), ({}, "dict")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_quantity_of_another_type(quantity: object, kind: str) -> None:
    """The complaint names the type that came instead."""
    with pytest.raises(NotAQuantity, match=f"not {kind}"):
        whole(quantity)


def test_an_absurd_quantity_is_just_a_number() -> None:
    """It is exact, and no card has it."""
    assert whole("1e999") == 10**999


@pytest.mark.parametrize(
    ("quantity", "bytes_"),
    [("16Gi", True), ("1Ki", True), ("16G", False), ("16", False), ("x", False)],
)
def test_binary_suffixes_mean_bytes(quantity: str, bytes_: bool) -> None:
    """Who writes ``16Gi`` thinks of bytes, not of units."""
    assert is_in_bytes(quantity) is bytes_
