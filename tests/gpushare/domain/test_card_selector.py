"""Which cards are meant by what people write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.card_selector import CardSelector, Limit

P4 = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
MIG = "MIG-7cf0b881-7598-8b1a-3270-94d6f5d2479a"
A100 = "NVIDIA A100-SXM4-40GB"


names = st.text().filter(lambda text: not text.strip().startswith("!"))


@pytest.mark.parametrize(
    ("entry", "meant", "others"),
    [
        ("Tesla P4", ["Tesla P4"], ["Tesla P40", ""]),
        ("tesla  p4", ["Tesla P4"], []),
        ("Tesla\u00a0P4", ["Tesla P4"], []),
        ("P4", [], ["Tesla P4"]),
        ("Tesla P4*", ["Tesla P40"], []),
        ("*P4", ["Tesla P4"], ["Tesla P40"]),
        ("*a10*", ["NVIDIA A100-SXM4-40GB"], []),
        ("*b10*", [], ["NVIDIA A100-SXM4-40GB"]),
        ("A10", ["NVIDIA A10"], ["NVIDIA A100"]),
        ("NVIDIA A10", ["A10"], []),
        ("A10*", ["NVIDIA A100"], []),
        ("NVIDIA A10*", ["NVIDIA A100", "A100"], []),
        ("NVIDIA *", [], ["Tesla P4"]),
        ("NVIDIA*", ["NVIDIA A100"], ["Tesla P4"]),
        ("*", ["anything", ""], []),
        ("**", ["anything"], []),
        ("[AT].*", [], ["Tesla P4"]),
        ("2g.10gb", [f"{A100} MIG 2g.10gb"], [A100, f"{A100} MIG 1g.10gb"]),
        ("2G.10GB", [f"{A100} MIG 2g.10gb"], []),
        ("1g.*", [f"{A100} MIG 1g.5gb+me"], [f"{A100} MIG 2g.10gb"]),
        (A100, [A100], [f"{A100} MIG 2g.10gb"]),
        ("A100-SXM4-40GB MIG 2g.10gb", [f"{A100} MIG 2g.10gb"], []),
    ],
)
def test_a_model(entry: str, meant: list[str], others: list[str]) -> None:
    """The whole name; a star at either end; case, blanks and the vendor are nothing."""
    selector = CardSelector.of(models=[entry])
    assert [model for model in (*meant, *others) if selector.allows(P4, model)] == meant


@pytest.mark.parametrize(
    ("uuid", "entries", "others"),
    [
        (P4, [P4, P4.upper(), "GPU-9f12f917", "9f12f917", "9F12F917-e458"], [f"{P4}0"]),
        (P4.upper(), [P4], []),
        (P4, [], ["GPU-9f12f91", "GPU-", "", "9f12f918", "e458-4bb8"]),
        (MIG, ["MIG-7cf0b881", "7cf0b881"], ["GPU-7cf0b881"]),
        ("card-1", ["card-1"], ["card-10"]),
        ("card-10", [], ["card-1"]),
    ],
)
def test_a_card(uuid: str, entries: list[str], others: list[str]) -> None:
    """Its UUID in full, or its beginning from 8 digits on."""
    every = (*entries, *others)
    assert [e for e in every if CardSelector.of(uuids=[e]).allows(uuid, "")] == entries


@pytest.mark.parametrize(
    ("models", "had", "denied"),
    [
        ("!Tesla P4", ["Tesla P40", "NVIDIA A10"], ["Tesla P4", ""]),
        ("! tesla  p4", [], ["Tesla P4"]),
        ("!A10", [], ["NVIDIA A10"]),
        ("!*P4", ["Tesla P40"], ["Tesla P4"]),
        ("*,!Tesla P4", [], [""]),
        ("A10*,!A100*", ["NVIDIA A10"], ["NVIDIA A100", "Tesla P4"]),
        ("!A100*,A10*", [], ["NVIDIA A100"]),
        ("!A10,!T4", ["P4"], ["A10", "T4"]),
        ("!*", [], ["P4"]),
        ("!1g.5gb", [A100, f"{A100} MIG 2g.10gb"], [f"{A100} MIG 1g.5gb"]),
    ],
)
def test_a_model_that_is_denied(models: str, had: list[str], denied: list[str]) -> None:
    """All others are had; denied wins over allowed, and an unknown one may be it."""
    selector = CardSelector.of(models=models.split(","))
    assert [model for model in (*had, *denied) if selector.allows(P4, model)] == had
    assert {selector.against(P4, model) for model in denied} == {(Limit.MODELS,)}
    assert {selector.against(P4, model) for model in had} <= {()}


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
    selector = CardSelector.of(uuids=uuids)
    assert selector.allows(uuid, "") == had
    assert selector.against(uuid, "") == (() if had else (Limit.UUIDS,))


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
