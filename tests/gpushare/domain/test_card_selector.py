"""Which cards are meant by what people write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.card_selector import CardSelector, Limit

P4 = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
MIG = "MIG-7cf0b881-7598-8b1a-3270-94d6f5d2479a"


names = st.text().filter(lambda text: not text.strip().startswith("!"))


def is_model(entry: str, model: str) -> bool:
    return not CardSelector.of(models=[entry]).against(P4, model)


def is_card(entry: str, uuid: str) -> bool:
    return not CardSelector.of(uuids=[entry]).against(uuid, "Tesla P4")


@pytest.mark.parametrize(
    ("entry", "model", "meant"),
    [
        ("Tesla P4", "Tesla P4", True),
        ("tesla  p4", "Tesla P4", True),
        ("Tesla\u00a0P4", "Tesla P4", True),
        ("P4", "Tesla P4", False),
        ("Tesla P4", "Tesla P40", False),
        ("Tesla P4*", "Tesla P40", True),
        ("*P4", "Tesla P4", True),
        ("*P4", "Tesla P40", False),
        ("*a10*", "NVIDIA A100-SXM4-40GB", True),
        ("*b10*", "NVIDIA A100-SXM4-40GB", False),
        ("A10", "NVIDIA A10", True),
        ("NVIDIA A10", "A10", True),
        ("A10", "NVIDIA A100", False),
        ("A10*", "NVIDIA A100", True),
        ("NVIDIA A10*", "NVIDIA A100", True),
        ("NVIDIA A10*", "A100", True),
        ("NVIDIA *", "Tesla P4", False),
        ("NVIDIA*", "NVIDIA A100", True),
        ("NVIDIA*", "Tesla P4", False),
        ("*", "anything", True),
        ("*", "", True),
        ("**", "anything", True),
        ("Tesla P4", "", False),
        ("[AT].*", "Tesla P4", False),
    ],
)
def test_a_model(entry: str, model: str, meant: bool) -> None:
    """The whole name; a star at either end; case, blanks and the vendor are nothing."""
    assert is_model(entry, model) == meant


@pytest.mark.parametrize(
    ("entry", "uuid", "meant"),
    [
        (P4, P4, True),
        (P4.upper(), P4, True),
        (P4, P4.upper(), True),
        ("GPU-9f12f917", P4, True),
        ("9f12f917", P4, True),
        ("9F12F917-e458", P4, True),
        ("GPU-9f12f91", P4, False),
        ("GPU-", P4, False),
        ("", P4, False),
        ("9f12f918", P4, False),
        ("GPU-7cf0b881", MIG, False),
        ("MIG-7cf0b881", MIG, True),
        ("7cf0b881", MIG, True),
        (f"{P4}0", P4, False),
        ("e458-4bb8", P4, False),
        ("card-1", "card-1", True),
        ("card-1", "card-10", False),
    ],
)
def test_a_card(entry: str, uuid: str, meant: bool) -> None:
    assert is_card(entry, uuid) == meant


@pytest.mark.parametrize(
    ("models", "model", "had"),
    [
        ("!Tesla P4", "Tesla P4", False),
        ("!Tesla P4", "Tesla P40", True),
        ("!Tesla P4", "NVIDIA A10", True),
        ("! tesla  p4", "Tesla P4", False),
        ("!A10", "NVIDIA A10", False),
        ("!*P4", "Tesla P4", False),
        ("!*P4", "Tesla P40", True),
        ("!Tesla P4", "", False),
        ("*,!Tesla P4", "", False),
        ("A10*,!A100*", "NVIDIA A10", True),
        ("A10*,!A100*", "NVIDIA A100", False),
        ("A10*,!A100*", "Tesla P4", False),
        ("!A100*,A10*", "NVIDIA A100", False),
        ("!A10,!T4", "A10", False),
        ("!A10,!T4", "T4", False),
        ("!A10,!T4", "P4", True),
        ("!*", "P4", False),
    ],
)
def test_a_model_that_is_denied(models: str, model: str, had: bool) -> None:
    """All others are had; denied wins over allowed, and an unknown one may be it."""
    found = CardSelector.of(models=models.split(","))
    assert found.allows(P4, model) == had
    assert found.against(P4, model) == (() if had else (Limit.MODELS,))


@pytest.mark.parametrize(
    ("uuids", "uuid", "had"),
    [
        (["!GPU-9f12f917"], P4, False),
        (["!9F12F917"], P4, False),
        (["!GPU-9f12f917"], MIG, True),
        (["!7cf0b881"], MIG, False),
        (["!" + P4], P4.upper(), False),
        (["GPU-9f12f917", "!" + P4], P4, False),
        (["GPU-9f12f917", "!" + MIG], P4, True),
        (["!card-1"], "card-10", True),
    ],
)
def test_a_card_that_is_denied(uuids: list[str], uuid: str, had: bool) -> None:
    found = CardSelector.of(uuids=uuids)
    assert found.allows(uuid, "") == had
    assert found.against(uuid, "") == (() if had else (Limit.UUIDS,))


def test_both_lists_must_agree() -> None:
    both = CardSelector.of(models=["T4"], uuids=["9f12f917"])
    assert both.limits == (Limit.MODELS, Limit.UUIDS)
    assert both.against(P4, "T4") == ()
    assert both.against(P4, "P4") == (Limit.MODELS,)
    assert both.against(MIG, "T4") == (Limit.UUIDS,)
    assert both.against(MIG, "P4") == (Limit.MODELS, Limit.UUIDS)


def test_equal_wishes_are_equal() -> None:
    assert CardSelector.of(["T4", "a10 "], ["GPU-A"]) == CardSelector.of(
        ["A10", "t4", "T4"], ["gpu-a", "GPU-A"]
    )


@settings(deadline=None)
@given(st.lists(names), st.lists(names), names, names)
def test_one_entry_more_never_shuts_a_card_out(
    models: list[str], uuids: list[str], uuid: str, model: str
) -> None:
    one = CardSelector.of([*models, "T4"], [*uuids, P4])
    more = CardSelector.of([*models, "T4", model], [*uuids, P4, uuid])
    assert set(more.against(uuid, model)) <= set(one.against(uuid, model))


@settings(deadline=None)
@given(st.lists(names), st.lists(names), st.text("abc-012", min_size=1), names)
def test_one_denial_more_never_lets_a_card_in(
    models: list[str], uuids: list[str], uuid: str, model: str
) -> None:
    one = CardSelector.of([*models, "*"], uuids)
    more = CardSelector.of([*models, "*", f"!{model}"], [*uuids, f"!{uuid}"])
    for card in ((uuid, model), ("other", model), (uuid, "other")):
        assert not more.allows(*card)
        assert set(one.against(*card)) <= set(more.against(*card))
