"""Kubernetes JSON to our nouns and back; nobody else looks inside an object. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern

import orjson

from gpushare.domain.model import (
    UNIT_MIB,
    Amount,
    Card,
    CardUUID,
    Claim,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.quantity import NotAQuantity, NotWhole, is_in_bytes, whole
from gpushare.domain.request import ContainerSpec, Role, claims
from gpushare.domain.summary import Reason, Refusal, invalid, users_words
from gpushare.kube import names
from gpushare.kube.annotations import decode_cards, placements
from gpushare.kube.cardselection import LIMITS, card_selector
from gpushare.kube.cluster import Json
from gpushare.kube.essence import MOST_KINDS, essence
from gpushare.kube.fields import MOST, Malformed, Reader
from gpushare.kube.hostcodec import TERMINAL, amount_of

_WORDS = {
    Reason.MEMORY: f"Insufficient {names.MEMORY} on one card",
    Reason.CORE: f"Insufficient {names.CORE} on one card",
    Reason.CORE_AND_MEMORY: (
        f"Insufficient {names.CORE} and {names.MEMORY} on one card"
    ),
    Reason.UNTOUCHED_CARDS: "Insufficient untouched cards",
    Reason.NO_CARDS: "No shared cards",
}


class Unmeetable(ValueError):
    """A quantity in order for Kubernetes that no card can meet."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """All that the house keeps of a pod.

    ``node`` is empty before the binding; ``terminal`` once its containers have ended
    for good; ``terminating`` while it has a deletion timestamp and still holds its
    share; ``nominated`` the node whose victims make room for it, mostly empty;
    ``complaint`` what is wrong with a placement that cannot be read; ``plan`` the
    planned placement, which is not ``placement`` where an actual one wins over it.
    """

    pod: PodRef
    request: PodRequest | Refusal
    node: NodeName
    placement: Placement | None
    terminal: bool
    terminating: bool
    nominated: NodeName
    labels: Mapping[str, str]
    complaint: str = ""
    plan: Placement | None = None

    @property
    def asks(self) -> bool:
        """Tell whether the pod asks for any part of a card."""
        return isinstance(self.request, PodRequest) and bool(self.request.claims)


def refusal_text(refusal: Refusal) -> str:
    """Give the fixed words of a refusal, as ``kubectl describe pod`` shows them."""
    if refusal.reason is Reason.INVALID:
        return f"Invalid vcuda request: {refusal.detail}"
    if not refusal.limits:
        return _WORDS[refusal.reason]
    allow = "allows" if len(refusal.limits) == 1 else "allow"
    who = " and ".join(LIMITS[limit] for limit in refusal.limits)
    return f"{_WORDS[refusal.reason]} that {who} {allow}"


def pod_ref(pod: Json) -> PodRef:
    """Read which pod this is; ``Malformed`` names what is missing."""
    metadata = Reader(pod).object("metadata")
    spec = Reader(pod).optional_object("spec")
    return PodRef(
        PodUID(metadata.text("uid")),
        intern(metadata.text("namespace")),
        metadata.text("name"),
        spec.optional_integer("priority"),
    )


def pod_request(pod: Json, ref: PodRef) -> PodRequest | Refusal:
    """Read what a pod, of which ``pod_ref`` has told the name, asks of cards.

    ``Malformed`` for what no API server would send; an invalid ``Refusal`` for what one
    would let through and no card can meet.
    """
    return _request(pod, ref, _annotations(pod))


def _request(
    pod: Json, ref: PodRef, annotations: Mapping[str, str]
) -> PodRequest | Refusal:
    where, kind = annotations.get(names.CONTAINERS), essence(pod)
    if where not in (None, names.APART):
        return invalid(
            f'{names.CONTAINERS} is "{users_words(where)}"; the only value is "apart"'
        )
    try:
        if kind is None:
            found = claims(containers(pod), apart=where == names.APART)
        else:
            found = _claims_of(kind, where == names.APART)
    except Unmeetable as error:
        return invalid(str(error))
    if isinstance(found, Refusal):
        return found
    chosen = card_selector(annotations)
    if isinstance(chosen, Refusal):
        return chosen
    policy = annotations.get(names.POLICY)
    host = None if kind is None else amount_of(kind)
    return PodRequest(ref, found, policy, chosen, host)


def pod_record(pod: Json) -> PodRecord:
    """Read all that the house keeps of a pod; ``Malformed`` as with the parts."""
    ref = pod_ref(pod)
    status = Reader(pod).optional_object("status")
    spec = Reader(pod).optional_object("spec")
    node = NodeName(intern(spec.optional_text("nodeName")))
    annotations = _annotations(pod)
    request = _request(pod, ref, annotations)
    found: dict[str, Placement] = {}
    complaint = ""
    if node:
        found, complaint = placements(annotations, ref, request, node)
    plan = found.get(names.PLACEMENT)
    return PodRecord(
        pod=ref,
        request=request,
        node=node,
        placement=found.get(names.ACTUAL, plan),
        terminal=status.optional_text("phase") in TERMINAL,
        terminating=pod["metadata"].get("deletionTimestamp") is not None,
        nominated=NodeName(status.optional_text("nominatedNodeName")),
        labels=Reader(pod).object("metadata").optional_object("labels").texts(""),
        complaint=complaint,
        plan=plan,
    )


def is_ours(pod: Json) -> bool:
    """Tell whether a pod names any of our resources, a zero quantity included."""
    spec = pod.get("spec") or {}
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            resources = container.get("resources") or {}
            for part in ("requests", "limits"):
                asked = resources.get(part) or {}
                if names.MEMORY in asked or names.CORE in asked:
                    return True
    return False


def cards(node: Json) -> tuple[Card, ...]:
    """Read the node's cards, none where it has no annotation of ours; ``Malformed``.

    Those that an operator has cordoned say so.
    """
    text = _annotations(node).get(names.CARDS)
    found = () if text is None else decode_cards(text)
    closed = cordon(node)
    if not closed:
        return found
    return tuple(replace(card, cordoned=card.uuid in closed) for card in found)


def cordon(node: Json) -> frozenset[CardUUID]:
    """Read which cards an operator has cordoned, whether the node has them or not."""
    return uuids(_annotations(node).get(names.CORDON, ""))


def uuids(text: str) -> frozenset[CardUUID]:
    """Read UUIDs from a list with commas, as operators write it by hand.

    >>> sorted(uuids(" GPU-1, ,GPU-0,"))
    ['GPU-0', 'GPU-1']
    """
    return frozenset(CardUUID(one.strip()) for one in text.split(",") if one.strip())


def containers(pod: Json) -> list[ContainerSpec]:
    """Read the containers in the order in which kubelet admits them.

    Those that ask nothing too. ``Malformed``, or ``Unmeetable`` for an amount that no
    card can meet.
    """
    spec = Reader(pod).object("spec")
    found = []
    for container in spec.optional_objects("initContainers"):
        stays = container.optional_text("restartPolicy") == "Always"
        role = Role.SIDECAR if stays else Role.INIT
        found.append(ContainerSpec(container.text("name"), role, _amount(container)))
    for container in spec.optional_objects("containers"):
        name = container.text("name")
        found.append(ContainerSpec(name, Role.APP, _amount(container)))
    return found


@lru_cache(MOST_KINDS)
def _claims_of(kind: bytes, apart: bool) -> tuple[Claim, ...] | Refusal:  # noqa: FBT001
    return claims(containers(orjson.loads(kind)), apart=apart)


def _annotations(thing: Json) -> Mapping[str, str]:
    metadata = Reader(thing).object("metadata")
    return metadata.optional_object("annotations").texts(names.PREFIX)


def _amount(container: Reader) -> Amount:
    resources = container.optional_object("resources")
    return Amount(
        cores=_quantity(resources, names.CORE), units=_quantity(resources, names.MEMORY)
    )


def _quantity(resources: Reader, resource: str) -> int:
    """Read what is asked: ``requests``, or ``limits``, its default."""
    for part in ("requests", "limits"):
        asked = resources.optional_object(part)
        raw = asked.raw.get(resource)
        if raw is None:
            continue
        try:
            number = whole(raw)
        except NotAQuantity as error:
            raise Malformed(asked.path(resource), str(error)) from error
        except NotWhole as error:
            text = users_words(str(raw))
            raise Unmeetable(f"{resource} is {text}; it must be whole") from error
        if is_in_bytes(raw):
            raise Unmeetable(_bytes_for_units(resource, str(raw), number))
        if number > MOST:
            text = users_words(str(raw))
            raise Unmeetable(f"{resource} is {text}; no node has so much")
        return number
    return 0


def _bytes_for_units(resource: str, text: str, number: int) -> str:
    if resource != names.MEMORY:
        return f"{resource} is {users_words(text)}; it must be a plain number"
    units = -(-number // (UNIT_MIB * 1024 * 1024))
    return (
        f"{resource} is {users_words(text)}, but it counts units of "
        f"{UNIT_MIB} MiB; ask {users_words(str(units))}"
    )
