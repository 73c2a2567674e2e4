"""HTTP statuses, translated into our seven words."""

import pytest

from gpushare.kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Throttled,
    Unavailable,
    Unreachable,
    error_for,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (401, Forbidden),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (415, Invalid),
        (422, Invalid),
        (429, Throttled),
        (500, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
        (0, Unavailable),
        (418, Unavailable),
    ],
)
def test_each_status_has_its_word(status: int, kind: type[ClusterError]) -> None:
    """What is not known counts as no answer."""
    error = error_for(status, "said so")
    assert type(error) is kind
    assert str(error) == "said so"
    assert getattr(error, "answered", False) == (status >= 500)


@pytest.mark.parametrize(
    ("kind", "retryable", "definite"),
    [
        (NotFound, False, True),
        (Conflict, False, True),
        (Forbidden, False, True),
        (Invalid, False, True),
        (Gone, False, True),
        (Throttled, True, True),
        (Unavailable, True, False),
        (Unreachable, True, True),
    ],
)
def test_what_each_word_means_for_a_write(
    kind: type[ClusterError], retryable: bool, definite: bool
) -> None:
    """Only when no answer came may the write have taken place all the same."""
    error = kind("x")
    assert (error.retryable, error.definite) == (retryable, definite)


def test_a_throttled_request_may_say_how_long_to_wait() -> None:
    """``Retry-After``, in seconds; no other error has it."""
    error = error_for(429, "slow down", 2.5)
    assert isinstance(error, Throttled)
    assert error.retry_after_s == 2.5
    assert Throttled("x").retry_after_s is None
    assert isinstance(error_for(503, "x", 2.5), Unavailable)
