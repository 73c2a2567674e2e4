"""Do to the cluster in memory what requests to an API server ask for. No sockets."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from gpushare.fakeapi.cluster import Embedded, utc_now
from gpushare.fakeapi.rules import SHAPES
from gpushare.kube.cluster import Json, Kind, Target, WatchEvent
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
from gpushare.kube.json_reader import Reader
from gpusharectl.demo.kubectl_tables import table

NAMESPACES = "namespaces"
"""A collection without objects of its own: the namespaces of all other objects."""

_PATH = re.compile(
    r"/(?P<group>api/v1|apis/policy/v1)"
    r"(/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(/(?P<name>[^/]+)(/(?P<subresource>[a-z]+))?)?"
)
_NAMESPACES_PATH = re.compile(r"/api/v1/namespaces(/(?P<name>[^/]+))?")
_GROUPS = {
    "api/v1": (Kind.PODS, Kind.NODES, Kind.EVENTS),
    "apis/policy/v1": (Kind.BUDGETS,),
}


class Refused(Exception):
    """A request that is refused before the cluster sees it."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Place:
    """What a path means; all but ``plural`` may be empty."""

    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def kind(self) -> Kind:
        """The kind of object; there is none for namespaces."""
        return Kind(self.plural)


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its body and path parsed."""

    method: str
    place: Place
    query: Mapping[str, str]
    body: Json
    content_type: str
    accept: str

    @property
    def wants_table(self) -> bool:
        """Tell whether the client asks for rows to print."""
        return "as=Table" in self.accept

    def flag(self, name: str) -> bool:
        """Return a flag of the query, as Go parses them."""
        return self.query.get(name, "").lower() in ("1", "t", "true")

    def number(self, name: str, default: int) -> int:
        """Return a whole number of the query; ``Refused`` if it is none."""
        text = self.query.get(name) or str(default)
        if not text.isdecimal():
            message = f"{name}: {text!r} is no whole number"
            raise Refused(HTTPStatus.BAD_REQUEST, message)
        return int(text)


def place_of(path: str) -> Place:
    """Parse a path; ``Refused`` as not found if it leads to nothing."""
    if match := _NAMESPACES_PATH.fullmatch(path):
        return Place(NAMESPACES, name=match["name"] or "")
    match = _PATH.fullmatch(path)
    if match is None or match["plural"] not in _GROUPS[match["group"]]:
        raise nowhere()
    parts = match.groupdict(default="")
    place = Place(
        parts["plural"], parts["namespace"], parts["name"], parts["subresource"]
    )
    namespaced = SHAPES[place.kind].namespaced
    if namespaced != bool(place.namespace) and (place.name or place.namespace):
        raise nowhere()
    return place


def nowhere() -> Refused:
    """Return the refusal of a path that leads to nothing."""
    message = "the server could not find the requested resource"
    return Refused(HTTPStatus.NOT_FOUND, message)


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

    An empty JSON of a watch is not sent. It lets the server look at its connection.
    """

    status: HTTPStatus
    body: Json | str | Iterator[Json]


def shown(
    request: Request,
    whole: Json,
    now: datetime,
    status: HTTPStatus = HTTPStatus.OK,
) -> Answer:
    """Answer with an object or list, or with its rows if the client asks for them."""
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
    """Yield a watch as the API does; an error is its last event."""
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
                    # kubectl would print the columns of a second event as a second
                    # header.
                    thing |= {} if columns else {"columnDefinitions": None}
                    columns = False
                yield {"type": event.type, "object": thing}
        except ClusterError as error:
            yield {"type": "ERROR", "object": failure(error).body}


def failure(error: ClusterError | Refused) -> Answer:
    """Return the v1 Status for an error."""
    if isinstance(error, Refused):
        words = error.status.phrase.title().replace(" ", "")
        return Answer(error.status, _status(error.status, words, str(error)))
    for kind, code, reason in _REASONS:
        if isinstance(error, kind):
            return Answer(code, _status(code, reason, str(error)))
    code = HTTPStatus.INTERNAL_SERVER_ERROR
    return Answer(code, _status(code, "InternalError", str(error)))


def success() -> Json:
    """Return the v1 Status of success."""
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


WATCH_S = 1800
"""Seconds of a watch if the client does not say."""
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_JSON = "application/json"
_Verb = Callable[[Request], Answer]


class Verbs:
    """Answers requests; raises ``ClusterError``, ``Refused`` and ``Malformed``."""

    def __init__(
        self, cluster: Embedded, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._cluster = cluster
        self._now = now

    def answer(self, request: Request) -> Answer:
        """Do what a request asks for."""
        if request.query.get("dryRun"):
            raise Refused(HTTPStatus.BAD_REQUEST, "there is no dry run here")
        if request.place.plural == NAMESPACES:
            return self._namespaces(request)
        return self._verb(request)(request)

    def _verb(self, request: Request) -> _Verb:
        verbs = self._verbs(request)
        if request.method not in verbs:
            message = f"the server does not allow {request.method} here"
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, message)
        return verbs[request.method]

    def _verbs(self, request: Request) -> dict[str, _Verb]:
        place = request.place
        one: dict[str, _Verb] = {
            "GET": self._get,
            "PUT": self._put,
            "PATCH": self._patch,
        }
        match place.name, place.subresource:
            case "", _:
                get = self._watch if request.flag("watch") else self._list
                return {"GET": get, "POST": self._post}
            case _, "":
                return one | {"DELETE": self._delete}
            case _, "status" if SHAPES[place.kind].status_apart:
                return one
            case _, "binding" if place.kind is Kind.PODS:
                return {"POST": self._bind}
            case _, "eviction" if place.kind is Kind.PODS:
                return {"POST": self._evict}
        raise nowhere()

    def _get(self, request: Request) -> Answer:
        place = request.place
        found = self._cluster.get(place.kind, place.namespace, place.name)
        return self._shown(request, found)

    def _list(self, request: Request) -> Answer:
        page = self._cluster.list_page(
            request.place.kind,
            limit=request.number("limit", 0),
            continue_token=request.query.get("continue", ""),
            field_selector=_fields(request),
            label_selector=request.query.get("labelSelector", ""),
        )
        metadata = {"resourceVersion": page.resource_version}
        if page.continue_token:
            metadata["continue"] = page.continue_token
        shape = SHAPES[request.place.kind]
        named = {"kind": f"{shape.name}List", "apiVersion": shape.api_version}
        body = named | {"metadata": metadata, "items": list(page.items)}
        return self._shown(request, body)

    def _watch(self, request: Request) -> Answer:
        if request.query.get("sendInitialEvents"):
            # Clients list and watch instead when they get this answer.
            raise Invalid("sendInitialEvents is forbidden: lists are not streamed here")
        stream = self._cluster.watch(
            request.place.kind,
            resource_version=request.query.get("resourceVersion", ""),
            timeout_s=request.number("timeoutSeconds", 0) or WATCH_S,
            field_selector=_fields(request),
            label_selector=request.query.get("labelSelector", ""),
        )
        return Answer(HTTPStatus.OK, told(request, stream, self._now))

    def _post(self, request: Request) -> Answer:
        made = self._cluster.create(request.place.kind, _sent(request))
        return self._shown(request, made, HTTPStatus.CREATED)

    def _put(self, request: Request) -> Answer:
        place, body = request.place, _sent(request)
        if body["metadata"].get("name") != place.name:
            raise _mismatch("name")
        left = self._cluster.replace(place.kind, body, subresource=place.subresource)
        return self._shown(request, left)

    def _patch(self, request: Request) -> Answer:
        _require(request, _MERGE, _STRATEGIC)
        place = request.place
        left = self._cluster.patch(
            place.kind,
            place.namespace,
            place.name,
            request.body,
            subresource=place.subresource,
            strategic=request.content_type == _STRATEGIC,
        )
        return self._shown(request, left)

    def _delete(self, request: Request) -> Answer:
        if request.body:
            _require(request, _JSON)
        place, options = request.place, Reader(request.body, "DeleteOptions")
        grace = request.query.get("gracePeriodSeconds")
        period = None if grace is None else request.number("gracePeriodSeconds", 0)
        if options.raw.get("gracePeriodSeconds") is not None:
            period = options.optional_integer("gracePeriodSeconds")
        left = self._cluster.delete(
            place.kind,
            place.namespace,
            place.name,
            grace_period_s=period,
            uid=options.optional_object("preconditions").optional_text("uid"),
        )
        return Answer(HTTPStatus.OK, left)

    def _bind(self, request: Request) -> Answer:
        _require(request, _JSON)
        binding, place = Reader(request.body), request.place
        metadata = binding.optional_object("metadata")
        self._cluster.bind(
            Target(place.namespace, place.name, metadata.optional_text("uid")),
            binding.object("target").text("name"),
            metadata.optional_object("annotations").texts(""),
        )
        return Answer(HTTPStatus.CREATED, success() | {"code": 201})

    def _evict(self, request: Request) -> Answer:
        _require(request, _JSON)
        eviction, place = Reader(request.body), request.place
        options = eviction.optional_object("deleteOptions")
        uid = options.optional_object("preconditions").optional_text("uid")
        self._cluster.evict(Target(place.namespace, place.name, uid))
        return Answer(HTTPStatus.CREATED, success() | {"code": 201})

    def _namespaces(self, request: Request) -> Answer:
        """Return the namespaces of all objects; nobody needs to create one."""
        if request.method != "GET" or request.flag("watch"):
            message = "namespaces need no creating here: any name will do"
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, message)
        version, found = self._lived_in()
        metadata = {"resourceVersion": version}
        if name := request.place.name:
            if name not in found:
                raise NotFound(f'namespaces "{name}" not found')
            return self._shown(request, _namespace(name))
        items = [_namespace(name) for name in sorted(found)]
        listed = {"kind": "NamespaceList", "apiVersion": "v1", "metadata": metadata}
        return self._shown(request, listed | {"items": items})

    def _lived_in(self) -> tuple[str, set[str]]:
        found, version = {"default", "kube-system"}, ""
        for kind in (kind for kind in Kind if SHAPES[kind].namespaced):
            page = self._cluster.list_page(kind, limit=0)
            found |= {thing["metadata"]["namespace"] for thing in page.items}
            version = page.resource_version
        return version, found

    def _shown(
        self, request: Request, whole: Json, status: HTTPStatus = HTTPStatus.OK
    ) -> Answer:
        return shown(request, whole, self._now(), status)


def _sent(request: Request) -> Json:
    """Return the object sent, in the URL's namespace; ``Refused`` if it has another."""
    _require(request, _JSON)
    metadata = dict(Reader(request.body).object("metadata").raw)
    if namespace := request.place.namespace:
        metadata["namespace"] = metadata.get("namespace") or namespace
        if metadata["namespace"] != namespace:
            raise _mismatch("namespace")
    return {**request.body, "metadata": metadata}


def _mismatch(what: str) -> Refused:
    message = f"the {what} of the object does not match the {what} on the URL"
    return Refused(HTTPStatus.BAD_REQUEST, message)


def _require(request: Request, *kinds: str) -> None:
    if request.content_type not in kinds:
        found = request.content_type or "no content type"
        message = f"the body is {found}; it must be {' or '.join(kinds)}"
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


def _fields(request: Request) -> str:
    terms = [request.query.get("fieldSelector", "")]
    if namespace := request.place.namespace:
        terms.append(f"metadata.namespace={namespace}")
    return ",".join(term for term in terms if term)


def _namespace(name: str) -> Json:
    return {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "status": {"phase": "Active"},
    }
