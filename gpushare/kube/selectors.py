"""Field and label selectors, as the API server reads them. Pure."""

import re
from collections.abc import Callable, Mapping

from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Invalid

Selects = Callable[[Json], bool]

_EVERYWHERE = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS = {
    Kind.PODS: frozenset({"spec.nodeName", "status.phase", "spec.schedulerName"}),
    Kind.NODES: frozenset({"spec.unschedulable"}),
    Kind.EVENTS: frozenset(
        {f"involvedObject.{part}" for part in ("kind", "namespace", "name", "uid")}
        | {"reason", "type", "involvedObject.fieldPath", "reportingComponent"}
        | {"involvedObject.apiVersion", "involvedObject.resourceVersion"}
    ),
    Kind.BUDGETS: frozenset[str](),
}
_TERM = re.compile(r"(?P<key>[^=!]+)(?P<sign>==|=|!=)(?P<value>[^=!]*)")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<sign>in|notin)\s+\((?P<values>[^)]*)\)")
_COMMAS = re.compile(r",(?![^(]*\))")


def by_fields(kind: Kind, selector: str) -> Selects:
    """Read ``spec.nodeName=n,status.phase!=Failed``; ``Invalid`` for unknown fields."""
    terms = []
    for text in filter(None, selector.split(",")):
        match = _TERM.fullmatch(text)
        if match is None:
            raise Invalid(f"invalid field selector: {text}")
        key = match["key"]
        if key not in _EVERYWHERE | _FIELDS[kind]:
            raise Invalid(f"field label not supported: {key}")
        terms.append((key.split("."), match["value"], match["sign"] != "!="))
    return lambda thing: all(
        (_field(thing, path) == value) == wanted for path, value, wanted in terms
    )


def by_labels(selector: str) -> Selects:
    """Read ``app=a,tier in (x, y),!old``; ``Invalid`` for what is none."""
    terms = [_label_term(text.strip()) for text in _COMMAS.split(selector) if text]

    def selects(thing: Json) -> bool:
        labels = thing["metadata"].get("labels") or {}
        return all(term(labels) for term in terms)

    return selects


def _label_term(text: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET.fullmatch(text):
        values = frozenset(part.strip() for part in match["values"].split(","))
        key, wanted = match["key"], match["sign"] == "in"
    elif match := _TERM.fullmatch(text):
        values = frozenset({match["value"].strip()})
        key, wanted = match["key"].strip(), match["sign"] != "!="
    elif re.fullmatch(r"!?[\w./-]+", text):
        key, wanted = text.lstrip("!"), not text.startswith("!")
        return lambda labels: (key in labels) == wanted
    else:
        raise Invalid(f"unable to parse requirement: {text}")
    return lambda labels: (labels.get(key) in values) == wanted


def _field(thing: Json, path: list[str]) -> str:
    found: object = thing
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return "" if found is None else str(found)
