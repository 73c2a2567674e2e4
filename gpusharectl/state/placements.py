"""What is placed where: told by the extender, or reckoned here by the same code."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.cache.nodes import NodeBook
from gpushare.cache.pods import PodBook
from gpushare.cache.snapshot import VERSION
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Share,
)
from gpushare.domain.node import Node
from gpushare.domain.policies import CARD_ORDERS, POLICIES, Choice
from gpushare.kube.cluster import Json, Page
from gpushare.kube.json_reader import Malformed, Reader


@dataclass(frozen=True, slots=True)
class Books:
    """The ledger's pages, sorted by name, and the cluster's own choice of policy.

    ``unasked`` says why they are not the extender's own; empty where they are.
    """

    pages: tuple[Node, ...]
    choice: Choice
    unasked: str = ""

    def page(self, name: NodeName) -> Node | None:
        """Open a node's page; None where there is none."""
        return next((page for page in self.pages if page.name == name), None)


def told(snapshot: bytes) -> Books:
    """Read the extender's ``/snapshot`` back into pages; ``Malformed``.

    What containers ask of an unplaced pod's claims is not told, and not needed.
    """
    body = Reader.parse(snapshot, "snapshot")
    body.version(VERSION)
    return Books(tuple(_page(node) for node in body.objects("nodes")), _choice(body))


def reckoned(
    nodes: Iterable[Json], pods: Iterable[Json], choice: Choice, because: str
) -> Books:
    """Work the pages out from pods and nodes, as the extender does when it starts."""
    ledger = Ledger()
    pod_book = PodBook(ledger, choice)
    node_book = NodeBook(ledger, set_cards=pod_book.set_cards)
    node_book.replace(iter([Page(tuple(nodes), "")]))
    pod_book.replace(iter([Page(tuple(pods), "")]))
    pages = sorted(ledger.nodes(), key=lambda page: page.name)
    return Books(tuple(pages), choice, because)


def chosen(settings: Mapping[str, str]) -> Choice:
    """Give the choice that the extender's settings make; its default for any other."""
    policy = settings.get("GPUSHARE_POLICY", "")
    order = settings.get("GPUSHARE_CARD_ORDER", "")
    plain = Choice()
    return Choice(
        policy if policy in POLICIES else plain.default,
        next((one for one in CARD_ORDERS if one == order), plain.card_order),
    )


def _choice(body: Reader) -> Choice:
    policy, order = body.text("policy"), body.text("card_order")
    if policy not in POLICIES:
        raise Malformed(body.path("policy"), f'no policy "{policy}" is known here')
    for known in CARD_ORDERS:
        if known == order:
            return Choice(policy, known)
    raise Malformed(body.path("card_order"), f'no order "{order}" is known here')


def _page(node: Reader) -> Node:
    name = NodeName(node.text("name"))
    held, kept = (
        {one.pod.uid: one for one in _placements(node, key, name)}
        for key in ("pods", "nominations")
    )
    unplaced = [_request(one) for one in node.objects("unplaced")]
    return Node(
        name,
        tuple(_card(card) for card in node.objects("cards")),
        held,
        kept,
        {asked.pod.uid: asked for asked in unplaced},
    )


def _card(card: Reader) -> Card:
    return Card(
        CardUUID(card.text("uuid")),
        card.integer("index"),
        card.integer("units"),
        card.optional_boolean("healthy", default=True),
        card.optional_text("model"),
        card.optional_boolean("cordoned", default=False),
    )


def _placements(node: Reader, key: str, name: NodeName) -> list[Placement]:
    return [
        Placement(_pod(one), name, tuple(_share(s) for s in one.objects("shares")))
        for one in node.objects(key)
    ]


def _share(share: Reader) -> Share:
    held = []
    for name, pair in share.optional_object("containers").raw.items():
        match pair:
            case [int(cores), int(units)]:
                held.append(ContainerAmount(name, Amount(cores, units)))
            case _:
                raise Malformed(share.path(f"containers.{name}"), "must be two numbers")
    return Share(CardUUID(share.text("card")), _amount(share), tuple(held))


def _request(asked: Reader) -> PodRequest:
    claims = tuple(Claim(_amount(claim), ()) for claim in asked.objects("claims"))
    return PodRequest(_pod(asked), claims, asked.optional_text("policy") or None)


def _amount(amount: Reader) -> Amount:
    return Amount(amount.integer("cores"), amount.integer("units"))


def _pod(pod: Reader) -> PodRef:
    return PodRef(
        PodUID(pod.text("uid")),
        pod.text("namespace"),
        pod.text("name"),
        pod.optional_integer("priority"),
    )
