"""Do to the cluster in memory what requests to an API server ask for. No sockets."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus

from gpushare.kube.cluster import Json, Kind, PodTarget, WatchEvent
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
from gpusharectl.demo.fakeapi.cluster import Embedded, utc_now
from gpusharectl.demo.fakeapi.rules import STATUS_APART
from gpusharectl.demo.kubectl import make_table

WATCH_S = 1800
"""Seconds of a watch if the client does not say."""
NAMESPACES = "namespaces"
"""A collection without objects of its own: the namespaces of all other objects."""
_PATH = re.compile(
    r"(?P<group>/api/v1|/apis/policy/v1|/apis/resource\.k8s\.io/v1)"
    r"(/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(/(?P<name>[^/]+)(/(?P<subresource>[a-z]+))?)?"
)
_NAMESPACES_PATH = re.compile(r"/api/v1/namespaces(/(?P<name>[^/]+))?")
_KINDS = {(kind.resource.version_path, kind.value) for kind in Kind}
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_JSON = "application/json"


class RequestRefused(Exception):
    """A request that is refused before the cluster sees it."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def no_such_path() -> RequestRefused:
    """Return the refusal of a path that leads to nothing."""
    message = "the server could not find the requested resource"
    return RequestRefused(HTTPStatus.NOT_FOUND, message)


@dataclass(frozen=True, slots=True)
class ApiPath:
    """What a path means; all but ``plural`` may be empty."""

    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @classmethod
    def parse(cls, path: str) -> "ApiPath":
        """Parse a path; ``RequestRefused`` as not found if it leads to nothing."""
        if match := _NAMESPACES_PATH.fullmatch(path):
            return cls(NAMESPACES, name=match["name"] or "")
        match = _PATH.fullmatch(path)
        if match is None or (match["group"], match["plural"]) not in _KINDS:
            raise no_such_path()
        _, namespace, plural, name, subresource = match.groupdict(default="").values()
        place = cls(plural, namespace, name, subresource)
        if place.kind.resource.namespaced != bool(namespace) and (name or namespace):
            raise no_such_path()
        return place

    @property
    def kind(self) -> Kind:
        """The kind of object; there is none for namespaces."""
        return Kind(self.plural)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request with its body and path parsed."""

    method: str
    place: ApiPath
    query: Mapping[str, str]
    body: Json
    content_type: str
    accept: str

    @property
    def wants_table(self) -> bool:
        """Whether the client asks for rows to print."""
        return "as=Table" in self.accept

    @property
    def selectors(self) -> Mapping[str, str]:
        """The selectors of a list or watch; the URL names a namespace, too."""
        fields = self.query.get("fieldSelector", "")
        if self.place.namespace:
            fields += f",metadata.namespace={self.place.namespace}"
        labels = self.query.get("labelSelector", "")
        return {"field_selector": fields.lstrip(","), "label_selector": labels}

    def flag(self, name: str) -> bool:
        """Return a flag of the query, as Go parses them."""
        return self.query.get(name, "").lower() in ("1", "t", "true")

    def number(self, name: str, default: int) -> int:
        """Return a whole number of the query; ``RequestRefused`` if it is none."""
        text = self.query.get(name) or str(default)
        if not text.isdecimal():
            message = f"{name}: {text!r} is no whole number"
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        return int(text)

    def require(self, *kinds: str) -> None:
        """Raise ``RequestRefused`` unless the body is of one of these types."""
        if self.content_type not in kinds:
            content_type = self.content_type or "no content type"
            message = f"the body is {content_type}; it must be {' or '.join(kinds)}"
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)

    def sent(self) -> Json:
        """Return the object sent, in the URL's namespace; refuse it in another."""
        self.require(_JSON)
        metadata = dict(Reader(self.body).object("metadata").raw)
        if namespace := self.place.namespace:
            metadata["namespace"] = metadata.get("namespace") or namespace
            self.must_match("namespace", metadata["namespace"], namespace)
        return {**self.body, "metadata": metadata}

    def must_match(self, what: str, in_object: object, on_url: str) -> None:
        """Raise ``RequestRefused`` if the object is another than the URL says."""
        if in_object != on_url:
            message = f"the {what} of the object does not match the {what} on the URL"
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What to send: JSON, plain text, or for a watch one JSON after the other.

    An empty JSON of a watch is not sent. It lets the server look at its connection.
    ``location`` is where a redirect leads.
    """

    status: HTTPStatus
    body: Json | str | Iterator[Json]
    location: str = ""


_REASONS: Mapping[type[ClusterError], tuple[HTTPStatus, str]] = {
    NotFound: (HTTPStatus.NOT_FOUND, "NotFound"),
    AlreadyExists: (HTTPStatus.CONFLICT, "AlreadyExists"),
    Conflict: (HTTPStatus.CONFLICT, "Conflict"),
    Invalid: (HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid"),
    Gone: (HTTPStatus.GONE, "Expired"),
    Forbidden: (HTTPStatus.FORBIDDEN, "Forbidden"),
    Throttled: (HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests"),
}
_UNEXPECTED = (HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError")
_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
_DONE = ApiAnswer(HTTPStatus.CREATED, _SUCCESS | {"code": 201})


def failure_answer(error: ClusterError | RequestRefused) -> ApiAnswer:
    """Return the v1 Status for an error."""
    if isinstance(error, RequestRefused):
        code, reason = error.status, error.status.phrase.title().replace(" ", "")
    else:
        code, reason = _REASONS.get(type(error), _UNEXPECTED)
    why = {"message": str(error), "reason": reason, "code": int(code)}
    return ApiAnswer(code, {**_SUCCESS, "status": "Failure", **why})


class ApiVerbs:
    """Answers; raises ``ClusterError``, ``RequestRefused`` and ``Malformed``."""

    def __init__(self, cluster: Embedded) -> None:
        self._cluster = cluster

    def answer(self, request: ApiRequest) -> ApiAnswer:
        """Do what a request asks for."""
        if request.place.plural == NAMESPACES:
            return self._namespaces(request)
        verbs = self._verbs(request)
        if request.query.get("dryRun") and verbs.get(request.method) != self._post:
            raise RequestRefused(
                HTTPStatus.BAD_REQUEST, "there is no dry run of this here"
            )
        if request.method not in verbs:
            message = f"the server does not allow {request.method} here"
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, message)
        return verbs[request.method](request)

    def _verbs(
        self, request: ApiRequest
    ) -> Mapping[str, Callable[[ApiRequest], ApiAnswer]]:
        place = request.place
        of_object = {"GET": self._get, "PUT": self._put, "PATCH": self._patch}
        match place.name, place.subresource:
            case "", _:
                get = self._start_watch if request.flag("watch") else self._list
                return {"GET": get, "POST": self._post}
            case _, "":
                return of_object | {"DELETE": self._delete}
            case _, "status" if place.kind in STATUS_APART:
                return of_object
            case _, "binding" if place.kind is Kind.PODS:
                return {"POST": self._bind}
            case _, "eviction" if place.kind is Kind.PODS:
                return {"POST": self._evict}
        raise no_such_path()

    def _get(self, request: ApiRequest) -> ApiAnswer:
        place = request.place
        body = self._cluster.get(place.kind, place.namespace, place.name)
        return self._shown(request, body)

    def _list(self, request: ApiRequest) -> ApiAnswer:
        page = self._cluster.list_page(
            request.place.kind,
            limit=request.number("limit", 0),
            continue_token=request.query.get("continue", ""),
            **request.selectors,
        )
        metadata = {"resourceVersion": page.resource_version}
        if page.continue_token:
            metadata["continue"] = page.continue_token
        resource = request.place.kind.resource
        named = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        body = named | {"metadata": metadata, "items": list(page.items)}
        return self._shown(request, body)

    def _start_watch(self, request: ApiRequest) -> ApiAnswer:
        if request.query.get("sendInitialEvents"):
            # Clients list and watch instead when they get this answer.
            raise Invalid("sendInitialEvents is forbidden: lists are not streamed here")
        stream = self._cluster.watch(
            request.place.kind,
            resource_version=request.query.get("resourceVersion", ""),
            timeout_s=request.number("timeoutSeconds", 0) or WATCH_S,
            **request.selectors,
        )
        return ApiAnswer(HTTPStatus.OK, self._watch_events(request, stream))

    def _watch_events(
        self, request: ApiRequest, stream: Iterator[WatchEvent]
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
                        thing = self._rows(request, [thing], {})
                        # kubectl would print the columns of a second event as a
                        # second header.
                        thing |= {} if columns else {"columnDefinitions": None}
                        columns = False
                    yield {"type": event.type, "object": thing}
            except ClusterError as error:
                yield {"type": "ERROR", "object": failure_answer(error).body}

    def _post(self, request: ApiRequest) -> ApiAnswer:
        dry_run = bool(request.query.get("dryRun"))
        made = self._cluster.create(request.place.kind, request.sent(), dry_run=dry_run)
        return self._shown(request, made, HTTPStatus.CREATED)

    def _put(self, request: ApiRequest) -> ApiAnswer:
        place, body = request.place, request.sent()
        request.must_match("name", body["metadata"].get("name"), place.name)
        stored = self._cluster.replace(place.kind, body, subresource=place.subresource)
        return self._shown(request, stored)

    def _patch(self, request: ApiRequest) -> ApiAnswer:
        request.require(_MERGE, _STRATEGIC)
        place = request.place
        stored = self._cluster.patch(
            place.kind,
            place.namespace,
            place.name,
            request.body,
            subresource=place.subresource,
            strategic=request.content_type == _STRATEGIC,
        )
        return self._shown(request, stored)

    def _delete(self, request: ApiRequest) -> ApiAnswer:
        if request.body:
            request.require(_JSON)
        place, options = request.place, Reader(request.body, "DeleteOptions")
        grace = request.query.get("gracePeriodSeconds")
        period = None if grace is None else request.number("gracePeriodSeconds", 0)
        if options.raw.get("gracePeriodSeconds") is not None:
            period = options.optional_integer("gracePeriodSeconds")
        last_state = self._cluster.delete(
            place.kind,
            place.namespace,
            place.name,
            grace_period_s=period,
            uid=options.optional_object("preconditions").optional_text("uid"),
        )
        return ApiAnswer(HTTPStatus.OK, last_state)

    def _bind(self, request: ApiRequest) -> ApiAnswer:
        request.require(_JSON)
        binding, place = Reader(request.body), request.place
        metadata = binding.optional_object("metadata")
        self._cluster.bind(
            PodTarget(place.namespace, place.name, metadata.optional_text("uid")),
            binding.object("target").text("name"),
            metadata.optional_object("annotations").texts(""),
        )
        return _DONE

    def _evict(self, request: ApiRequest) -> ApiAnswer:
        request.require(_JSON)
        options = Reader(request.body).optional_object("deleteOptions")
        uid = options.optional_object("preconditions").optional_text("uid")
        self._cluster.evict(PodTarget(request.place.namespace, request.place.name, uid))
        return _DONE

    def _namespaces(self, request: ApiRequest) -> ApiAnswer:
        """Return the namespaces of all objects; nobody needs to create one."""
        if request.method != "GET" or request.flag("watch"):
            message = "namespaces need no creating here: any name will do"
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, message)
        namespaces, version = {"default", "kube-system"}, ""
        for kind in (kind for kind in Kind if kind.resource.namespaced):
            page = self._cluster.list_page(kind, limit=0)
            namespaces |= {thing["metadata"]["namespace"] for thing in page.items}
            version = page.resource_version
        if name := request.place.name:
            if name not in namespaces:
                raise NotFound(f'namespaces "{name}" not found')
            return self._shown(request, _namespace(name))
        named = {"kind": "NamespaceList", "apiVersion": "v1"}
        items = [_namespace(name) for name in sorted(namespaces)]
        listed = {**named, "metadata": {"resourceVersion": version}, "items": items}
        return self._shown(request, listed)

    def _shown(
        self, request: ApiRequest, whole: Json, status: HTTPStatus = HTTPStatus.OK
    ) -> ApiAnswer:
        """Answer with an object or list, or with its rows if the client wants those."""
        if request.wants_table and "items" in whole:
            whole = self._rows(request, whole["items"], whole["metadata"])
        elif request.wants_table:
            whole = self._rows(request, [whole], {})
        return ApiAnswer(status, whole)

    def _rows(self, request: ApiRequest, objects: list[Json], metadata: Json) -> Json:
        whole = request.query.get("includeObject") == "Object"
        kind = request.place.plural
        return make_table(kind, objects, metadata, utc_now(), whole=whole)


def _namespace(name: str) -> Json:
    return {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "status": {"phase": "Active"},
    }
