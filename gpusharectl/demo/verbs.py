"""What the API server's verbs do to the embedded cluster; no sockets here."""

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus

from gpushare.kube.cluster import Json, Kind, Target
from gpushare.kube.embedded import Embedded, utc_now
from gpushare.kube.errors import Invalid, NotFound
from gpushare.kube.fields import Reader
from gpushare.kube.shapes import SHAPES
from gpusharectl.demo.answers import Answer, shown, success, told
from gpusharectl.demo.requests import NAMESPACES, Refused, Request, nowhere

WATCH_S = 1800
"""How long a watch lasts where the client does not say."""
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_JSON = "application/json"
_Verb = Callable[[Request], Answer]


class Verbs:
    """Answers requests; raises ``ClusterError``s, ``Refused`` and ``Malformed``."""

    def __init__(
        self, cluster: Embedded, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._cluster = cluster
        self._now = now

    def answer(self, request: Request) -> Answer:
        """Do what a request asks."""
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
            # Clients fall back to a list and a watch when they hear this.
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
        """Show where objects live; any other namespace needs no creating."""
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
    """Read the object sent, in the namespace of the URL; ``Refused`` if it differs."""
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
    """Give the field selector, the namespace of the URL in it."""
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
