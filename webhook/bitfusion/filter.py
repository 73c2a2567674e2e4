"""Translate ``bitfusion-client/filter``, conditions on a server and its cards. Pure.

A condition on the server becomes a condition on the node; a condition on the card
becomes an annotation that selects cards. Several conditions with the same key are
alternatives.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpushare.domain.model import clean_text
from gpushare.kube import names
from gpushare.kube.annotations import MOST_ENTRIES
from gpushare.kube.cluster import Json
from webhook.pool import HOSTNAME, CardPool

_CONDITION = re.compile(r"(?P<key>[a-z]+\.[\w-]+)=(?P<value>.+)", re.DOTALL)
_LABEL = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_UUID = re.compile(
    r"(?:(?:GPU|MIG)-)?[0-9a-f]{8}[0-9a-f-]{0,80}", re.ASCII | re.IGNORECASE
)
_MOST_SHOWN = 50
_MOST_WORDS = 64
_MOST_QUOTED = 10_000


@dataclass(slots=True)
class FilterConditions:
    """The translated conditions; ``complaints`` are about those left out."""

    hostnames: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    uuids: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def read_conditions(texts: Iterable[str], pool: CardPool) -> FilterConditions:
    """Read conditions from the annotation and from each ``--filter`` of a command."""
    read = FilterConditions()
    words = list(dict.fromkeys(_split(texts)))
    if len(words) > _MOST_WORDS:
        complaint = f"Filters after the first {_MOST_WORDS} words are left out"
        read.complaints.append(complaint)
    for word in words[:_MOST_WORDS]:
        complaint = _note(read, word, pool)
        if complaint:
            shown = clean_text(word)[:_MOST_SHOWN]
            read.complaints.append(f'Filter "{shown}" {complaint}')
    for key, entries in (("device.name", read.models), ("device.id", read.uuids)):
        if len(entries) > MOST_ENTRIES:
            complaint = f"Filters by {key} after the first {MOST_ENTRIES} are left out"
            read.complaints.append(complaint)
            del entries[MOST_ENTRIES:]
    return read


def limit_nodes(spec: Json, hostnames: Sequence[str]) -> None:
    """Restrict the pod to these nodes; its own selectors stay."""
    if not hostnames:
        return
    selector = dict(spec.get("nodeSelector") or {})
    if len(hostnames) == 1 and selector.get(HOSTNAME, hostnames[0]) == hostnames[0]:
        spec["nodeSelector"] = {**selector, HOSTNAME: hostnames[0]}
        return
    by_hostname = {"key": HOSTNAME, "operator": "In", "values": list(hostnames)}
    affinity = dict(spec.get("affinity") or {})
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    required = dict(of_nodes.get(key) or {})
    # Terms are alternatives, so each needs the condition.
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {
            **term,
            "matchExpressions": [*(term.get("matchExpressions") or ()), by_hostname],
        }
        for term in terms
    ]
    of_nodes[key] = required
    affinity["nodeAffinity"] = of_nodes
    spec["affinity"] = affinity


def limit_cards(annotations: dict[str, str], conditions: FilterConditions) -> None:
    """Restrict the pod to these cards; its own lists stay."""
    for key, entries in (
        (names.MODELS, conditions.models),
        (names.UUIDS, conditions.uuids),
    ):
        if entries:
            annotations.setdefault(key, ",".join(entries))


def _split(texts: Iterable[str]) -> Iterator[str]:
    for text in filter(None, texts):
        try:
            words = shlex.split(text) if len(text) < _MOST_QUOTED else text.split()
        except ValueError:
            words = text.split()
        for word in words:
            if word != "--filter":
                yield word


def _note(conditions: FilterConditions, word: str, pool: CardPool) -> str:
    """Add one condition; return what is wrong if it is left out."""
    condition = _CONDITION.fullmatch(word)
    if condition is None:
        return "is left out: only key=value is understood"
    value = condition["value"]
    match condition["key"]:
        case "server.hostname":
            return _note_hostname(conditions, value, pool)
        case "server.addr":
            hostname = pool.node_of_address.get(value)
            if not hostname:
                return "is left out: no known node has this InternalIP"
            conditions.hostnames.append(hostname)
        case "device.name":
            plain = value.replace("*", "").replace(",", " ").strip()
            if plain != value.strip():
                fix = f"write a name or a part of it, without * and , ({plain})"
                return f"is left out: {fix}"
            # In Bitfusion, too, a part of the name was enough.
            conditions.models.append(f"*{value}*")
        case "device.id" if _UUID.fullmatch(value):
            conditions.uuids.append(value)
        case "device.id":
            return "is left out: it is not a UUID as nvidia-smi -L shows it"
        case _:
            return "is left out: it has no meaning for cards in a cluster"
    return ""


def _note_hostname(conditions: FilterConditions, hostname: str, pool: CardPool) -> str:
    if not _LABEL.fullmatch(hostname):
        return "is left out: no node can have this name"
    conditions.hostnames.append(hostname)
    known = set(pool.node_of_address.values())
    if known and hostname not in known:
        return "names an unknown node: the pod waits for it"
    return ""
