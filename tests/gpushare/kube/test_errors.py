"""HTTP statuses, translated into words of our own."""

import pytest

from gpushare.kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    InvalidObject,
    NotFound,
    Throttled,
    Unavailable,
    Unreachable,
    error_for,
)


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ((400, 415), Invalid),
        ((422,), InvalidObject),
        ((401, 403), Forbidden),
        ((404,), NotFound),
        ((409,), Conflict),
        ((410,), Gone),
        ((429,), Throttled),
        ((500, 503, 504, 0, 418), Unavailable),
    ],
)
def test_each_status_has_its_word(
    statuses: tuple[int, ...], kind: type[ClusterError]
) -> None:
    """What is not known counts as no answer."""
    for status in statuses:
        error = error_for(status, "said so", 2.5)
        assert type(error) is kind
        assert str(error) == "said so"
        assert getattr(error, "answered", False) == (status >= 500)
        assert getattr(error, "retry_after_s", None) == (2.5 if status == 429 else None)


@pytest.mark.parametrize(
    ("kinds", "retryable", "definite"),
    [
        ((NotFound, Conflict, Forbidden, Invalid, InvalidObject, Gone), False, True),
        ((Throttled, Unreachable), True, True),
        ((Unavailable,), True, False),
    ],
)
def test_what_each_word_means_for_a_write(
    kinds: tuple[type[ClusterError], ...], retryable: bool, definite: bool
) -> None:
    """Only when no answer came may the write have taken place all the same."""
    assert {(kind.retryable, kind.definite) for kind in kinds} == {
        (retryable, definite)
    }
