"""The errors of requests to an API server.

::

    ClusterError
    ├── NotFound      404: the thing is not there
    ├── Conflict      409: precondition failed, already bound
    │   └── AlreadyExists  there is an object of that name
    ├── Forbidden     401, 403: RBAC does not allow it
    ├── Invalid       400, 415: the API server or a webhook refuses what was sent
    │   └── InvalidObject  422: a field of the object has no valid value
    ├── Gone          410: the resource version is too old; list again
    ├── Throttled     429: try again, after ``retry_after_s`` if given
    ├── Unreachable   no connection, so nothing was sent
    └── Unavailable   no answer, 5xx, or an answer that cannot be parsed

``kube.client`` translates HTTP statuses into these. No other code sees a status or
matches the text of an error.
"""

from typing import ClassVar


class ClusterError(Exception):
    """A request to the API server failed.

    ``retryable``: the same request may succeed later. ``definite``: the API server
    refused, so nothing was written.
    """

    retryable: ClassVar[bool] = False
    definite: ClassVar[bool] = True


class NotFound(ClusterError):
    """The object, or its namespace, is not there."""


class Conflict(ClusterError):
    """Another write came first, or a precondition such as the UID did not hold."""


class AlreadyExists(Conflict):
    """There is an object of that name."""


class Forbidden(ClusterError):
    """RBAC does not allow it, or the credentials are not valid."""


class Invalid(ClusterError):
    """The API server rejects what was sent; sending it again does not help."""


class InvalidObject(Invalid):
    """A field of the object has no valid value, whoever sends it."""


class Gone(ClusterError):
    """The resource version, or the page's continue token, has been compacted away."""


class Throttled(ClusterError):
    """Too many requests; wait ``retry_after_s`` seconds if the server says so."""

    retryable = True

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unreachable(ClusterError):
    """No connection was made, so the request was not sent."""

    retryable = True


class Unavailable(ClusterError):
    """No answer came, or a 5xx, so it is unknown whether a write happened.

    ``answered`` means a 5xx: the request is over, and the write probably failed.
    """

    retryable = True
    definite = False

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


_BY_STATUS: dict[int, type[ClusterError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    415: Invalid,
    422: InvalidObject,
}


def error_for(
    status: int, message: str, retry_after_s: float | None = None
) -> ClusterError:
    """Return the error for an HTTP status; an unknown status is ``Unavailable``."""
    if status == 429:  # noqa: PLR2004
        return Throttled(message, retry_after_s)
    kind = _BY_STATUS.get(status)
    if kind is None:
        return Unavailable(message, answered=status >= 500)  # noqa: PLR2004
    return kind(message)
