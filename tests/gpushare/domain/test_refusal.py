"""The fixed reasons to refuse a node, and users' texts in them."""

import pytest

from gpushare.domain.refusal import clean_text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("best-fit", "best-fit"),
        ("100%d %s", "100d s"),
        ("a\nb\tc\x00d\x1be", "abcde"),
        ("卡", "卡"),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 99 + "…"),
        ("%" * 500 + "y", "y"),
        ("\u202eevil\u200b", "evil"),
    ],
    ids=[
        "plain",
        "format",
        "control",
        "other scripts",
        "just short enough",
        "cut",
        "percent does not count",
        "invisible",
    ],
)
def test_a_users_words_may_stand_in_an_event(text: str, clean: str) -> None:
    assert clean_text(text) == clean
