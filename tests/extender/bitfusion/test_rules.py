"""How large a card is that people ask a percentage of."""

import pytest

from extender.bitfusion.translate import BitfusionRules, CardTotal, total_of

MIB = 1 << 20


@pytest.mark.parametrize(
    ("card_mib", "total_mb", "total"),
    [
        (None, None, None),
        ("", "", None),
        (None, "16000", 16_000_000_000),
        ("16384", None, 16384 * MIB),
        ("256", "16000", 256 * MIB),
        (None, "269", 269_000_000),
    ],
)
def test_sizes(card_mib: str | None, total_mb: str | None, total: int | None) -> None:
    """MB as Bitfusion had them; ours in MiB, which goes first."""
    assert total_of(card_mib, total_mb) == CardTotal(total)


def test_auto() -> None:
    assert total_of("auto", "16000") == CardTotal(auto=True)


@pytest.mark.parametrize(
    ("card_mib", "total_mb", "says"),
    [
        (
            "16Gi",
            None,
            "GPUSHARE_BITFUSION_CARD_MIB: '16Gi' will not do; give a card's",
        ),
        ("Auto", None, "or auto"),
        ("-1", None, "from 256 to 16777216"),
        ("255", None, "from 256"),
        ("16777217", None, "to 16777216"),
        ("9" * 5000, None, "will not do"),
        (
            None,
            "16000M",
            "TOTAL_GPU_MEMORY: '16000M' will not do; give a card's memory",
        ),
        (None, "0", "from 269"),
        (None, "many", "in MB"),
        (None, "²", "in MB"),
    ],
)
def test_complaints(card_mib: str | None, total_mb: str | None, says: str) -> None:
    """Each names the variable, what it holds, and what it may hold."""
    found = total_of(card_mib, total_mb)
    assert isinstance(found, str)
    assert says in found


def test_the_size_in_whole_mib() -> None:
    assert BitfusionRules().card_mib is None
    assert BitfusionRules(16_000_000_000).card_mib == 15258
