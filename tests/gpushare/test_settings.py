"""Environment variables into values."""

from collections.abc import Callable

import pytest

from gpushare.settings import Address, Reading

HOME = Address("127.0.0.1", 39999)


def reading(**environ: str) -> Reading:
    return Reading({f"GPUSHARE_{key}": value for key, value in environ.items()})


@pytest.mark.parametrize(
    ("raw", "found"), [(None, None), ("", None), ("x", "x"), (" ", " ")]
)
def test_an_empty_text_counts_as_not_set(raw: str | None, found: str | None) -> None:
    """Manifests set variables to nothing."""
    env = Reading({} if raw is None else {"GPUSHARE_X": raw})
    assert env.text("X") == found
    assert env.text("Y") is None
    assert env.complaints == []


@pytest.mark.parametrize(
    ("raw", "found"), [("", "a"), ("b", "b"), ("B", None), ("c", None)]
)
def test_a_word_must_be_one_of_a_few(raw: str, found: str | None) -> None:
    env = reading(X=raw)
    assert env.one_of("X", ("a", "b"), "a") == (found or "a")
    assert bool(env.complaints) == (found is None)
    if found is None:
        (complaint,) = env.complaints
        assert complaint == f"GPUSHARE_X: '{raw}' is not valid; use one of a, b"


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize(
    ("raw", "found"), [("", None), ("on", True), ("off", False), ("true", None)]
)
def test_a_switch_is_on_or_off(raw: str, found: bool | None, default: bool) -> None:
    """No other word for yes: a default that stands in silently would be a trap."""
    env = reading(X=raw)
    assert env.switch("X", default=default) == (default if found is None else found)
    assert env.complaints == (
        ["GPUSHARE_X: 'true' is not valid; use one of on, off"] if raw == "true" else []
    )


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (
            lambda env: env.seconds("X", 2.0, least=1, most=9),
            {"": 2.0, "1": 1.0, "1.5": 1.5, "9": 9.0},
            ["0.9", "9.1", "-1", "nan", "inf", "4s", "four"],
        ),
        (
            lambda env: env.whole("X", 5, least=2, most=256),
            {"": 5, "2": 2, "256": 256, "007": 7},
            ["1", "257", "2.0", "-3", "+3", "1_0", "٣", "²", "9" * 5000],
        ),
        (
            # An IPv6 host stands in brackets: ``::1`` would be host ``:`` and port 1.
            lambda env: env.address("X", HOME),
            {
                "": HOME,
                "10.0.0.1:80": Address("10.0.0.1", 80),
                "[::1]:65535": Address("[::1]", 65535),
                "localhost:1": Address("localhost", 1),
            },
            [
                *("80", ":80", "host", "host:", "host:0", "::1", "host:65536"),
                *("host:http", "host:-1", "host:" + "9" * 5000),
            ],
        ),
    ],
    ids=["seconds", "whole", "address"],
)
def test_a_value_is_within_bounds_or_the_default(
    read: Callable[[Reading], object], good: dict[str, object], bad: list[str]
) -> None:
    """Python refuses to read more than 4300 digits; that is a complaint, too."""
    for raw in [*good, *bad]:
        env = reading(X=raw)
        assert read(env) == good.get(raw, good[""])
        assert bool(env.complaints) == (raw in bad)


def test_complaints_are_collected() -> None:
    env = reading(X="x", Y="y")
    env.seconds("X", 1, least=0, most=1)
    env.whole("Y", 1, least=0, most=1)
    env.complain("Z", "is odd")
    assert [one.partition(":")[0] for one in env.complaints] == [
        "GPUSHARE_X",
        "GPUSHARE_Y",
        "GPUSHARE_Z",
    ]


def test_names_that_are_almost_ours_are_complained_of() -> None:
    env = reading(POLICI="x", QUITE_ANOTHER="x", POLICY="y")
    env.text("POLICY")
    env.misspelt()
    assert env.complaints == [
        "GPUSHARE_POLICI is not a setting; did you mean GPUSHARE_POLICY?"
    ]
