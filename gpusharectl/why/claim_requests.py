"""Read what a ResourceClaim asks of cards, and what only kube-scheduler judges. Pure.

The selectors of a request and of its DeviceClass are expressions in CEL. They are not
evaluated here, but for one form: ``device.driver == "vcuda.baidu.com"``. What is not
judged is said, so that nobody takes room on a card for the card.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushare.domain.model import NOTHING, UNIT_MIB, Amount
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed, Reader
from gpushare.kube.names import DRA_CLASS, DRA_CORES, DRA_DRIVER, DRA_MEMORY, DRA_UUID
from gpushare.kube.node_filters import Toleration, read_tolerations
from gpushare.kube.resource_claims.allocated import no_admin_access, read_amount

_DRIVER_IS = re.compile(r"""\s*device\.driver\s*==\s*(["'])([^"'\\]+)\1\s*""")
_MOST_OF_CEL = 120
"""Characters of an expression that is shown."""
Classes = Mapping[str, Json | None]
"""DeviceClasses by name: None if there is none, not in it if it could not be read."""


@dataclass(frozen=True, slots=True)
class CardRequest:
    """A part of one card that a claim asks for.

    ``name`` is the request's, ``request/alternative``, or names joined by ``+`` of
    requests that must have the same card. ``never`` says why no card can be meant.
    ``not_judged`` are sentences on what else the card must be.
    """

    name: str
    amount: Amount
    never: str = ""
    not_judged: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    @property
    def request(self) -> str:
        """The request's own name, of which it may be an alternative."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class CardRequests:
    """What a claim asks for: the parts of cards, and what is not judged beside them."""

    cards: tuple[CardRequest, ...] = ()
    not_judged: tuple[str, ...] = ()


def read_class_names(claim: Json) -> frozenset[str]:
    """Return the DeviceClasses that a claim names."""
    return frozenset(
        request.optional_text("deviceClassName") for _, request in _each(claim)
    ) - {""}


def read_card_requests(claim: Json, classes: Classes) -> CardRequests:
    """Return what a claim asks of our cards; ``Malformed`` names a wrong field.

    Where a request says nothing of memory or cores it gets the least. Requests for
    other drivers' devices are only named.
    """
    cards: list[CardRequest] = []
    others: list[str] = []
    for name, request in _each(claim):
        card = _card(name, request, classes)
        if isinstance(card, str):
            others.append(card)
        else:
            cards.append(card)
    if not cards:
        return CardRequests()
    together = list(_constraints(claim, cards))
    return CardRequests(tuple(cards), (*others, *together, *_beside(cards)))


def _each(claim: Json) -> Iterator[tuple[str, Reader]]:
    """Return each request by its name, and each alternative as ``request/name``."""
    devices = Reader(claim).optional_object("spec").optional_object("devices")
    for request in devices.optional_objects("requests"):
        name = request.text("name")
        if "exactly" in request.raw:
            yield name, request.object("exactly")
        for other in request.optional_objects("firstAvailable"):
            yield f"{name}/{other.text('name')}", other


def _card(name: str, request: Reader, classes: Classes) -> CardRequest | str:
    """Return what is asked of a card; a sentence if it need not be one of ours."""
    class_name = request.optional_text("deviceClassName")
    body = classes.get(class_name)
    of_class = _expressions(Reader(body).optional_object("spec")) if body else []
    of_request = _expressions(request)
    ours = _is_ours([*of_class, *of_request])
    if class_name == DRA_CLASS and body is None:
        ours = True
    if ours is False:
        return f"request {name} is for devices of another driver"
    if ours is None:
        return (
            f"request {name}: only kube-scheduler can tell which driver's devices the "
            f"DeviceClass {class_name} selects"
        )
    never = ""
    if class_name in classes and body is None:
        never = f"there is no DeviceClass {class_name}"
        if class_name == DRA_CLASS:
            never += ": gpusharectl install --dra creates it"
    amount, refused = _amount(name, request)
    if request.optional_boolean("adminAccess", default=False):
        never = no_admin_access(name)
    return CardRequest(
        name,
        amount,
        never or refused,
        tuple(_not_judged(name, class_name, request, (of_class, of_request), classes)),
        read_tolerations(request.optional_objects("tolerations")),
    )


def _not_judged(
    name: str,
    class_name: str,
    request: Reader,
    selectors: tuple[Sequence[str], Sequence[str]],
    classes: Classes,
) -> Iterator[str]:
    if class_name not in classes:
        yield f"the DeviceClass {class_name} cannot be read, so it is not judged"
    whose = (f"the DeviceClass {class_name}", f"request {name}")
    for holder, expressions in zip(whose, selectors, strict=True):
        for text in expressions:
            if not _DRIVER_IS.fullmatch(text):
                cut = text if len(text) <= _MOST_OF_CEL else f"{text[:_MOST_OF_CEL]}…"
                yield (
                    f"{holder} has a selector that only kube-scheduler can judge: {cut}"
                )
    if request.optional_text("allocationMode") == "All":
        yield f"request {name} asks for all such devices; it is judged for one"
    elif (count := request.optional_integer("count")) > 1:
        yield f"request {name} asks for {count} such parts; it is judged for one"


def _expressions(holder: Reader) -> list[str]:
    return [
        selector.optional_object("cel").optional_text("expression")
        for selector in holder.optional_objects("selectors")
    ]


def _is_ours(expressions: Iterable[str]) -> bool | None:
    """Return whether all of these can hold for a card; None if that is not known."""
    known: bool | None = None
    for text in expressions:
        if exactly := _DRIVER_IS.fullmatch(text):
            if exactly[2] != DRA_DRIVER:
                return False
            known = True
        elif DRA_DRIVER in text:
            known = True
    return known


def _amount(name: str, request: Reader) -> tuple[Amount, str]:
    """Return what a request asks of a card, and why no card can have it."""
    capacity = request.optional_object("capacity").optional_object("requests")
    least = {DRA_MEMORY: f"{UNIT_MIB}Mi", DRA_CORES: "1"}
    amount = read_amount(Reader(least | capacity.raw, "requests", request))
    unknown = sorted(capacity.raw.keys() - least.keys())
    if unknown:
        return amount, f"request {name}: cards have no capacity {unknown[0]}"
    # The API server accepts 0 cores, and kube-scheduler takes the slice's least.
    amount = replace(amount, cores=max(1, amount.cores))
    if not amount.units:
        least_memory = f"ask for {DRA_MEMORY}: {least[DRA_MEMORY]} or more"
        return amount, f"request {name} asks for 0 MiB, which is denied; {least_memory}"
    return amount, ""


def _constraints(claim: Json, cards: list[CardRequest]) -> Iterator[str]:
    """Join the requests that must have the same card; yield what is not judged."""
    spec = Reader(claim).optional_object("spec").optional_object("devices")
    for constraint in spec.optional_objects("constraints"):
        named = constraint.raw.get("requests") or [card.request for card in cards]
        if type(named) is not list:
            raise Malformed(constraint.path("requests"), "must be a list of strings")
        constrained = [
            card for card in cards if {card.name, card.request} & {*map(str, named)}
        ]
        same = constraint.optional_text("matchAttribute")
        plain = all("/" not in card.name for card in constrained)
        if same == DRA_UUID and plain:
            if constrained:
                cards[:] = [card for card in cards if card not in constrained]
                cards.append(_joined(constrained))
        elif constrained:
            attribute = same or constraint.optional_text("distinctAttribute")
            how = "the same" if same else "different values of"
            yield (
                f"requests {' and '.join(card.name for card in constrained)} must have "
                f"{how} {attribute}, which is not judged"
            )


def _joined(parts: Sequence[CardRequest]) -> CardRequest:
    return replace(
        parts[0],
        name="+".join(part.name for part in parts),
        amount=sum((part.amount for part in parts), NOTHING),
        never=next((part.never for part in parts if part.never), ""),
        not_judged=tuple(
            dict.fromkeys(text for part in parts for text in part.not_judged)
        ),
        # What one of them does not tolerate, the card must not have.
        tolerations=tuple(
            toleration
            for toleration in parts[0].tolerations
            if all(toleration in part.tolerations for part in parts)
        ),
    )


def _beside(cards: Sequence[CardRequest]) -> Iterator[str]:
    if any("/" in card.name for card in cards):
        yield (
            "alternatives (firstAvailable) are judged one by one; kube-scheduler takes "
            "the first that can be had"
        )
    if len({card.request for card in cards}) > 1:
        yield (
            "requests are judged one by one; kube-scheduler must find room for all of "
            "them on one node"
        )
