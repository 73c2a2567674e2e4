"""Parse field and label selectors as the API server does. Pure.

The source of both grammars: ``k8s.io/apimachinery/pkg/{fields,labels}/selector.go``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Invalid
from gpushare.kube.label_selectors import LabelRequirement

_NAMESPACED = ("metadata.name", "metadata.namespace")
FIELDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.PODS: (
        *_NAMESPACED,
        "spec.nodeName",
        "spec.schedulerName",
        "status.nominatedNodeName",
        "status.phase",
    ),
    Kind.NODES: ("metadata.name",),
    Kind.EVENTS: (
        *_NAMESPACED,
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "type",
    ),
    Kind.BUDGETS: _NAMESPACED,
    Kind.CLAIMS: _NAMESPACED,
    Kind.SLICES: ("metadata.name", "spec.driver", "spec.nodeName"),
}
"""The fields that a selector may name; others are ``Invalid``, as in Kubernetes."""

_COMMA = re.compile(r",(?![^(]*\))")
_EQUALITY = re.compile(r"([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=()]*)")
_SET = re.compile(r"([^\s!=,()]+)\s+(in|notin)\s*\(([^()]*)\)")
_PRESENCE = re.compile(r"(!?)\s*([^\s!=,()]+)")


@dataclass(frozen=True, slots=True)
class Selector:
    """All terms on fields and labels, which an object must meet."""

    fields: tuple[LabelRequirement, ...] = ()
    labels: tuple[LabelRequirement, ...] = ()

    @classmethod
    def parse(cls, kind: Kind, fields: str, labels: str = "") -> Self:
        """Parse both selectors; either may be empty; ``Invalid`` says what is wrong."""
        terms = _terms(fields, _equality)
        for term in terms:
            if term.key not in FIELDS[kind]:
                raise Invalid(f"field label not supported: {term.key}")
        return cls(terms, _terms(labels, _label))

    def matches(self, fields: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Return whether an object with these fields and labels is chosen."""
        return all(term.holds(fields) for term in self.fields) and all(
            term.holds(labels) for term in self.labels
        )


def fields_of(kind: Kind, thing: Json) -> dict[str, str]:
    """Return the fields that selectors of this kind may name, empty if missing."""
    return {field: _text(thing, field) for field in FIELDS[kind]}


def _text(thing: Json, field: str) -> str:
    part: object = thing
    for key in field.split("."):
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, str) else ""


def _terms(
    text: str, read: Callable[[str], LabelRequirement | None]
) -> tuple[LabelRequirement, ...]:
    requirements = []
    for part in _COMMA.split(text) if text.strip() else ():
        term = read(part.strip())
        if term is None:
            raise Invalid(f"unable to parse requirement: {part.strip()!r}")
        requirements.append(term)
    return tuple(requirements)


def _equality(part: str) -> LabelRequirement | None:
    if not (match := _EQUALITY.fullmatch(part)):
        return None
    key, sign, value = match.groups()
    return LabelRequirement(key, "NotIn" if sign == "!=" else "In", (value,))


def _label(part: str) -> LabelRequirement | None:
    if match := _SET.fullmatch(part):
        key, word, listed = match.groups()
        values = tuple(value.strip() for value in listed.split(","))
        return LabelRequirement(key, "In" if word == "in" else "NotIn", values)
    if match := _PRESENCE.fullmatch(part):
        absent, key = match.groups()
        return LabelRequirement(key, "DoesNotExist" if absent else "Exists")
    return _equality(part)
