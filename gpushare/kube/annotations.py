"""Read and write the gpushare annotations, which ``docs/protocol.md`` describes. Pure.

Two are JSON: a node's cards and a pod's placement. A placement that charges less than
the pod requests is rejected. Two are lists by which a pod limits its cards.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from sys import intern
from types import MappingProxyType
from typing import Any

import orjson

from gpushare.domain.card_selector import ANY, NOT, CardSelector, Limit
from gpushare.domain.links import MOST_SCORE, read_scores, with_scores
from gpushare.domain.model import (
    NOTHING,
    Amount,
    Card,
    CardUUID,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    Refusal,
    Share,
    clean_text,
    join_shares,
    refuse_invalid,
)
from gpushare.domain.request import MOST_APART
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed, Reader

VERSION = 1
"""The version of both JSON formats; readers ignore unknown fields."""
MOST_CARDS = 64
"""Most cards of a node, by what stands in the host: servers end at 16 to 32."""
MOST_INSTANCES = 7
"""Most MIG instances of one card, as the driver makes them."""
MOST_SHARES = MOST_CARDS * MOST_INSTANCES + MOST_APART
"""Most shares of one pod: every card of a node, and a part for each container."""
_MOST_TEXT = 256
"""Most characters of a card's text. Models of 64 are the longest that are known."""
_LINKS = "links"
_USERS = {
    key.removeprefix(f"{names.PREFIX}-"): key
    for key in (names.POLICY, names.CONTAINERS, names.MODELS, names.UUIDS)
}
"""The pod annotations that users write, by the last part of the name."""
_KNOWN = frozenset({*_USERS.values(), names.PLACEMENT, names.ACTUAL, names.ISOLATION})
_OURS = names.PREFIX.removeprefix(f"{names.DOMAIN}/")
_ALL = ", ".join(f"{_OURS}-{word}" for word in _USERS)
_MOST_UNKNOWN = 5
_LIKE = 0.8
"""How similar a misspelt name must be to a known one."""


def read_cards(node: Json) -> tuple[Card, ...]:
    """Read the node's cards, with cordons; empty without annotation; ``Malformed``."""
    text = _annotations(node).get(names.CARDS)
    listed = () if text is None else decode_cards(text)
    closed = read_cordon(node)
    if not closed:
        return listed
    return tuple(replace(card, cordoned=card.uuid in closed) for card in listed)


def read_cordon(node: Json) -> frozenset[CardUUID]:
    """Read the cards that an operator cordoned, also those that do not exist."""
    return read_uuids(_annotations(node).get(names.CORDON, ""))


def read_uuids(text: str) -> frozenset[CardUUID]:
    """Read UUIDs from a comma-separated list, as operators write it by hand.

    An entry with ``=`` says who owns the order for the UUID before it: it adds none.

    >>> sorted(read_uuids(" GPU-1, ,GPU-0,GPU-0=make-room-1f9c,"))
    ['GPU-0', 'GPU-1']
    """
    entries = (entry.strip() for entry in text.split(","))
    return frozenset(CardUUID(entry) for entry in entries if entry and "=" not in entry)


def decode_cards(text: str) -> tuple[Card, ...]:
    """Read the node annotation ``vcuda-cards``.

    ``Malformed`` when it is broken, names one UUID twice, or has more cards than a
    server (``why_too_many``). Broken links are left out, because the cards can be used
    without (``find_broken_links``).
    """
    body = Reader.parse(text, names.CARDS)
    body.version(VERSION)
    cards = tuple(map(read_card, _listed(body)))
    twice = [u for u, times in Counter(c.uuid for c in cards).items() if times > 1]
    if twice:
        raise Malformed(body.path("cards"), f"has {twice[0]} twice")
    if problem := why_too_many(cards):
        raise Malformed(body.path("cards"), problem)
    return read_links(cards, body)


def _annotations(node: Json) -> Mapping[str, str]:
    metadata = Reader(node).object("metadata")
    return metadata.optional_object("annotations").texts(names.PREFIX)


def _listed(body: Reader) -> list[Reader]:
    raw = body.raw.get("cards")
    if isinstance(raw, list) and len(raw) > MOST_CARDS * MOST_INSTANCES:
        raise Malformed(body.path("cards"), _no_server(len(raw)))
    return body.objects("cards")


def why_too_many(cards: Sequence[Card]) -> str:
    """Say why no node may share so many cards; empty if it may.

    The search for linked cards and for the cards of several containers would take too
    long, and a node's annotation must not stop the others.
    """
    if len({card.parent or card.uuid for card in cards}) > MOST_CARDS:
        return _no_server(len(cards))
    parents = Counter(card.parent for card in cards if card.parent)
    for parent, count in parents.items():
        if count > MOST_INSTANCES:
            return f"has {count} instances of {parent}; a card has {MOST_INSTANCES}"
    return ""


def _no_server(cards: int) -> str:
    return (
        f"has {cards} cards; a node may share {MOST_CARDS}, or up to {MOST_INSTANCES} "
        "MIG instances of each"
    )


def encode_cards(shared: Iterable[Card], isolation: str = "") -> str:
    """Write cards as the node annotation ``vcuda-cards``.

    ``isolation`` is the node's tier; it is left out if it is not known.
    """
    cards = tuple(shared)
    body: dict[str, Any] = {"v": VERSION, "cards": [write_card(card) for card in cards]}
    body |= write_links(cards) | ({"isolation": isolation} if isolation else {})
    return orjson.dumps(body).decode()


def decode_isolation(text: str) -> str:
    """Read a node's isolation tier from ``vcuda-cards``.

    Empty if it is not known: an earlier device plugin does not write it, or the
    annotation is broken. A later one may write a word that is unknown here.
    """
    try:
        return Reader.parse(text, names.CARDS).optional_text("isolation")
    except Malformed:
        return ""


def find_broken_links(text: str) -> str:
    """Say what is wrong with the links in ``vcuda-cards``; empty if nothing is.

    Also empty if the whole annotation is broken, which ``decode_cards`` tells.
    """
    if f'"{_LINKS}"' not in text:
        return ""
    try:
        body = Reader.parse(text, names.CARDS)
        _read_links(body, len(_listed(body)))
    except Malformed as error:
        return str(error) if error.field.endswith(_LINKS) else ""
    return ""


def write_links(cards: Sequence[Card]) -> dict[str, Any]:
    """Return ``{"links": …}`` of a node's cards; empty if none is known.

    The pair scores in the order of ``links.pairs``, or one number if all are the same.
    """
    scores = read_scores(cards)
    if not scores:
        return {}
    return {_LINKS: scores[0] if len(set(scores)) == 1 else list(scores)}


def read_links(cards: tuple[Card, ...], body: Reader) -> tuple[Card, ...]:
    """Return the cards with the links that ``write_links`` has written beside them."""
    try:
        scores = _read_links(body, len(cards))
    except Malformed:
        return cards
    return with_scores(cards, scores) if scores else cards


def _read_links(body: Reader, cards: int) -> tuple[int, ...]:
    number = cards * (cards - 1) // 2
    listed = body.raw.get(_LINKS)
    if listed is None:
        return ()
    scores = listed if isinstance(listed, list) else [listed]
    if any(type(score) is not int or not 0 <= score <= MOST_SCORE for score in scores):
        problem = f"must be whole numbers of 0 to {MOST_SCORE}"
        raise Malformed(body.path(_LINKS), problem)
    if not isinstance(listed, list):
        return (listed,) * number
    if len(scores) != number:
        problem = f"has {len(scores)} scores; {cards} cards have {number} pairs"
        raise Malformed(body.path(_LINKS), problem)
    return tuple(scores)


def write_card(card: Card) -> dict[str, Any]:
    """Return a card without its cordon, which operators set by another annotation.

    ``parent`` is only there for a MIG instance, ``reason`` for a sick card.
    """
    keys = ("uuid", "index", "units", "healthy", "model")
    fields = {key: getattr(card, key) for key in keys}
    rare = {"parent": card.parent, "reason": "" if card.healthy else card.reason}
    return fields | {key: text for key, text in rare.items() if text}


def write_share(share: Share) -> dict[str, Any]:
    """Return a share: ``{card, cores, units, containers: {name: [cores, units]}}``."""
    return {
        "card": share.card,
        "cores": share.amount.cores,
        "units": share.amount.units,
        "containers": {
            container.name: [container.amount.cores, container.amount.units]
            for container in share.containers
        },
    }


def encode_placement(placement: Placement, at: str) -> str:
    """Write a placement as ``vcuda-placement``; ``at`` is an RFC 3339 time."""
    shares = [write_share(share) for share in placement.shares]
    body = {"v": VERSION, "uid": placement.pod.uid, "shares": shares, "at": at}
    return orjson.dumps(body).decode()


def decode_placement(
    text: str, pod: PodRef, node: NodeName, key: str = names.PLACEMENT
) -> Placement | None:
    """Read a placement; None if it has another pod's UID, because it was copied.

    Raises ``Malformed`` if it is broken.
    """
    usual = _USUAL.fullmatch(text)
    if usual is not None:
        uid, card, rest = usual.groups()
        if uid != pod.uid:
            return None
        charged = _read_charge(rest)
        share = Share(CardUUID(intern(card)), charged.amount, charged.containers)
        return Placement(pod, node, (share,))
    body = Reader.parse(text, key)
    body.version(VERSION)
    if body.text("uid") != pod.uid:
        return None
    shares = body.objects("shares")
    if len(shares) > MOST_SHARES:
        # Each change of the node looks at all of them.
        problem = f"has {len(shares)} shares; a pod can have {MOST_SHARES}"
        raise Malformed(body.path("shares"), problem)
    return Placement(pod, node, tuple(map(read_share, shares)))


_NUMBER = "(?:0|[1-9][0-9]{0,4})"
_CONTAINER = rf'"[-0-9a-z]{{1,63}}":\[{_NUMBER},{_NUMBER}\]'
_USUAL = re.compile(
    r'\{"v":1,"uid":"([-0-9A-Za-z]+)","shares":\[\{"card":"([-0-9A-Za-z]+)",'
    rf'("cores":{_NUMBER},"units":{_NUMBER},"containers":'
    rf'\{{(?:{_CONTAINER}(?:,{_CONTAINER}){{0,15}})?\}})\}}\],"at":"[-:.0-9TZ]*"\}}'
)
"""A placement on one card, as ``encode_placement`` writes it.

The last group is what the pod holds of its card. It is one of few texts, so each is
read once, and all pods that hold as much share the result.
"""


@lru_cache(maxsize=1024)
def _read_charge(rest: str) -> Share:
    return read_share(Reader.parse(f'{{"card":"-",{rest}}}', names.PLACEMENT))


def read_placements(
    annotations: Mapping[str, str],
    ref: PodRef,
    request: PodRequest | Refusal,
    node: NodeName,
) -> tuple[dict[str, Placement], str]:
    """Read the planned placement and the actual one by key, and what is wrong.

    A placement is left out if it cannot be read or charges less than the pod asks:
    users can write annotations of their own pods and must not free a card by them.
    """
    by_key: dict[str, Placement] = {}
    complaint = ""
    for key in (names.PLACEMENT, names.ACTUAL):
        text = annotations.get(key)
        try:
            placement = None if text is None else decode_placement(text, ref, node, key)
        except Malformed as error:
            placement, complaint = None, str(error)
        if placement is not None and _charges_all(placement, request):
            by_key[key] = _in_parts(placement, request)
        elif placement is not None:
            complaint = f"{key}: charges less than the pod asks"
    return by_key, complaint


def _charges_all(placement: Placement, request: PodRequest | Refusal) -> bool:
    if isinstance(request, Refusal):
        return True
    cores = units = 0
    for share in placement.shares:
        cores += share.amount.cores
        units += share.amount.units
    for claim in request.claims:
        cores -= claim.amount.cores
        units -= claim.amount.units
    return cores >= 0 and units >= 0


def _in_parts(placement: Placement, request: PodRequest | Refusal) -> Placement:
    """Return a placement of an earlier version with its parts of a card as parts.

    It has joined them also where they make 100 cores, which say a whole card.
    """
    if isinstance(request, Refusal) or not any(s.is_whole for s in placement.shares):
        return placement
    parts = {
        container.name
        for claim in request.claims
        if not claim.whole_cards
        for container in claim.containers
    }
    shares: list[Share] = []
    for share in placement.shares:
        containers = share.containers
        added_up = (
            sum((container.amount for container in containers), NOTHING) == share.amount
        )
        if (
            share.is_whole
            and added_up
            and parts.issuperset(part.name for part in containers)
        ):
            shares += [
                Share(share.card, container.amount, (container,))
                for container in containers
            ]
        else:
            shares.append(share)
    return replace(placement, shares=join_shares(shares))


def read_card(card: Reader) -> Card:
    """Read what ``write_card`` has written."""
    for key in ("uuid", "model", "parent", "reason"):
        if len(card.optional_text(key)) > _MOST_TEXT:
            raise Malformed(
                card.path(key), f"must have at most {_MOST_TEXT} characters"
            )
    return Card(
        CardUUID(intern(card.text("uuid"))),
        card.integer("index"),
        card.integer("units"),
        card.optional_boolean("healthy", default=True),
        card.optional_text("model"),
        parent=card.optional_text("parent"),
        reason=card.optional_text("reason"),
    )


def read_share(share: Reader) -> Share:
    """Read what ``write_share`` has written."""
    by_name: dict[str, Any] = share.optional_object("containers").raw
    containers = tuple(
        ContainerAmount(name, _pair(share, name, pair))
        for name, pair in by_name.items()
    )
    amount = Amount(share.integer("cores"), share.integer("units"))
    return Share(CardUUID(intern(share.text("card"))), amount, containers)


def _pair(share: Reader, name: str, pair: object) -> Amount:
    match pair:
        case [int(cores), int(units)] if not any(
            type(number) is bool or number < 0 for number in (cores, units)
        ):
            return Amount(cores, units)
    path = share.path(f"containers.{name}")
    raise Malformed(path, "must be [cores, units], both 0 or more")


LIMITS: Mapping[Limit, str] = MappingProxyType(
    {Limit.MODELS: names.MODELS, Limit.UUIDS: names.UUIDS}
)
"""The annotation of each list."""

MOST_ENTRIES = 32
"""Most entries of a list, because filter tests them for every card."""
_EXAMPLES = {Limit.MODELS: "Tesla T4", Limit.UUIDS: "GPU-9f12f917"}
_UUID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,99}", re.ASCII)


def read_card_selector(annotations: Mapping[str, str]) -> CardSelector | Refusal | None:
    """Read a pod's lists; None if it has none and may have every card.

    An entry that begins with ``!`` excludes cards. Refused are an annotation without
    entries, whose meaning would be unclear, and an entry that cannot name a card.
    """
    lists: dict[Limit, tuple[str, ...]] = {}
    for limit, key in LIMITS.items():
        text = annotations.get(key)
        if text is None:
            continue
        entries = tuple(entry.strip() for entry in text.split(",") if entry.strip())
        wrong = _wrong(limit, entries)
        if wrong:
            return refuse_invalid(f"{key} {wrong}")
        lists[limit] = entries
    if not lists:
        return None
    models, uuids = (lists.get(limit, ()) for limit in LIMITS)
    return CardSelector.of(models, uuids)


def _wrong(limit: Limit, entries: tuple[str, ...]) -> str:
    if not entries:
        example = _EXAMPLES[limit]
        return (
            f'names nothing; name some, as in "{example}" or "{NOT}{example}", with '
            "the quotes in YAML, or leave it out"
        )
    if len(entries) > MOST_ENTRIES:
        return f"names {len(entries)} things; it may name {MOST_ENTRIES}"
    return next(filter(None, (_wrong_entry(limit, entry) for entry in entries)), "")


def _wrong_entry(limit: Limit, entry: str) -> str:
    name = entry.removeprefix(NOT).strip()
    if not name or name.startswith(NOT):
        return f'has "{clean_text(entry)}"; after one {NOT} comes what is not allowed'
    inside = name.removeprefix(ANY).removesuffix(ANY)
    if limit is Limit.MODELS and ANY in inside:
        return f'has "{clean_text(name)}"; a {ANY} may stand first or last only'
    if limit is Limit.UUIDS and not _UUID.fullmatch(name):
        return (
            f'has "{clean_text(name)}"; give a UUID as gpusharectl inspect shows it, '
            "or GPU- and its first 8 digits or more"
        )
    return ""


def find_unknown_annotations(pod: Json) -> Iterator[str]:
    """Yield messages about a few unknown annotations that look like gpushare's.

    Those are gpushare's names with a typing error, or under another domain or none.
    """
    raw = (pod.get("metadata") or {}).get("annotations") or {}
    unknown = (key for key in raw if _looks_ours(key) and key not in _KNOWN)
    for key in islice(unknown, _MOST_UNKNOWN):
        word = key.rpartition("/")[2].removeprefix(f"{_OURS}-").lower()
        close = difflib.get_close_matches(word, _USERS, 1, _LIKE)
        meant = f"did you mean {_USERS[close[0]]}?" if close else f"known are {_ALL}"
        yield f"the annotation {clean_text(key)} is unknown here; {meant}"


def _looks_ours(key: str) -> bool:
    # The webhook writes several annotations with this prefix.
    return not key.startswith(names.BITFUSION_LABEL) and (
        key.startswith(names.PREFIX) or key.rpartition("/")[2].startswith(_OURS)
    )
