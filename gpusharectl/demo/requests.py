"""Requests to the demo's API server, away from sockets. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from gpushare.kube.cluster import Json, Kind
from gpushare.kube.shapes import SHAPES

NAMESPACES = "namespaces"
"""A collection that nobody writes: it is made of where objects live."""

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
    """A request that HTTP itself refuses, before any cluster hears of it."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Place:
    """What a path leads to; ``namespace`` and what follows it may be empty."""

    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def kind(self) -> Kind:
        """The collection, which is none for namespaces."""
        return Kind(self.plural)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its body read and its path understood."""

    method: str
    place: Place
    query: Mapping[str, str]
    body: Json
    content_type: str
    accept: str

    @property
    def wants_table(self) -> bool:
        """Tell whether rows to print are asked for rather than objects."""
        return "as=Table" in self.accept

    def flag(self, name: str) -> bool:
        """Read a yes or no of the query, as Go reads them."""
        return self.query.get(name, "").lower() in ("1", "t", "true")

    def number(self, name: str, default: int) -> int:
        """Read a whole number of the query, ``Refused`` if it is none."""
        text = self.query.get(name) or str(default)
        if not text.isdecimal():
            message = f"{name}: {text!r} is no whole number"
            raise Refused(HTTPStatus.BAD_REQUEST, message)
        return int(text)


def place_of(path: str) -> Place:
    """Understand a path; ``Refused`` as not found where it leads to nothing."""
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
    """Give the refusal of a path that leads to nothing."""
    message = "the server could not find the requested resource"
    return Refused(HTTPStatus.NOT_FOUND, message)
