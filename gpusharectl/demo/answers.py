"""Answers of the demo's API server, away from sockets. Pure."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from gpushare.kube.cluster import Json, WatchEvent
from gpushare.kube.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Throttled,
)
from gpusharectl.demo.requests import Refused, Request
from gpusharectl.demo.tables import table

_REASONS: tuple[tuple[type[ClusterError], HTTPStatus, str], ...] = (
    (NotFound, HTTPStatus.NOT_FOUND, "NotFound"),
    (AlreadyExists, HTTPStatus.CONFLICT, "AlreadyExists"),
    (Conflict, HTTPStatus.CONFLICT, "Conflict"),
    (Invalid, HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid"),
    (Gone, HTTPStatus.GONE, "Expired"),
    (Forbidden, HTTPStatus.FORBIDDEN, "Forbidden"),
    (Throttled, HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send: JSON, plain text, or for a watch one JSON after the other.

    An empty one means that all is quiet: nothing to send, but a time to look around.
    """

    status: HTTPStatus
    body: Json | str | Iterator[Json]


def shown(
    request: Request,
    whole: Json,
    now: datetime,
    status: HTTPStatus = HTTPStatus.OK,
) -> Answer:
    """Answer with an object or list, or with its rows where those are asked for."""
    if not request.wants_table:
        return Answer(status, whole)
    if "items" in whole:
        rows = _rows(request, whole["items"], whole["metadata"], now)
    else:
        rows = _rows(request, [whole], {}, now)
    return Answer(status, rows)


def told(
    request: Request, stream: Iterator[WatchEvent], now: Callable[[], datetime]
) -> Iterator[Json]:
    """Tell a watch as the API does; what goes wrong on the way is its last event."""
    columns = True
    with closing(stream):  # type: ignore[type-var]
        try:
            for event in stream:
                thing = event.object
                if event.type == "BOOKMARK":
                    if not request.flag("allowWatchBookmarks"):
                        yield {}
                        continue
                elif request.wants_table:
                    thing = _rows(request, [thing], {}, now())
                    # Columns a second time would be a second header.
                    thing |= {} if columns else {"columnDefinitions": None}
                    columns = False
                yield {"type": event.type, "object": thing}
        except ClusterError as error:
            yield {"type": "ERROR", "object": failure(error).body}


def failure(error: ClusterError | Refused) -> Answer:
    """Give the v1 Status that tells a client what went wrong."""
    if isinstance(error, Refused):
        words = error.status.phrase.title().replace(" ", "")
        return Answer(error.status, _status(error.status, words, str(error)))
    for kind, code, reason in _REASONS:
        if isinstance(error, kind):
            return Answer(code, _status(code, reason, str(error)))
    code = HTTPStatus.INTERNAL_SERVER_ERROR
    return Answer(code, _status(code, "InternalError", str(error)))


def success() -> Json:
    """Give the v1 Status that says all went well."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _status(code: HTTPStatus, reason: str, message: str) -> Json:
    return success() | {
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": int(code),
    }


def _rows(request: Request, objects: list[Json], metadata: Json, now: datetime) -> Json:
    whole = request.query.get("includeObject") == "Object"
    return table(request.place.plural, objects, metadata, now, whole=whole)
