"""Properties that hold for every cluster and pod, checked by hypothesis."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.scheduling.filter_cache import KeptAnswers
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    ContainerAmount,
    NodeName,
    Placement,
    PodRequest,
    Refusal,
    Share,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, place
from gpushare.domain.policies import POLICIES, Policy, PolicyChoice
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import PodInformer
from gpushare.kube.annotations import (
    decode_cards,
    decode_placement,
    encode_cards,
    encode_placement,
)
from gpushare.kube.cluster import Json
from gpushare.kube.names import APART, CONTAINERS
from gpushare.kube.reflector import Sink
from tests.builders import (
    AT,
    apart,
    bound_json,
    card,
    cards,
    claim,
    container_json,
    event,
    node,
    node_json,
    pod_json,
    policy,
    ref,
    request,
)

Told = tuple[type, Json]
"""An informer, and an object of the API server that it is told of."""

moderately = settings(max_examples=100)

NODES = ("n0", "n1", "n2")
PODS = tuple(f"p{number}" for number in range(8))

nodes = st.sampled_from(NODES).map(NodeName)
policies = st.builds(
    policy, st.sampled_from(list(POLICIES)), order=st.sampled_from(["index", "uuid"])
)
sizes = st.lists(st.integers(0, 40), max_size=4)
cores = st.one_of(st.integers(0, 99), st.sampled_from([0, 100, 200]))
amounts = st.tuples(st.integers(0, 45), cores)
parts = st.tuples(st.integers(0, 9), st.sampled_from([1, 20, 40, 50, 60, 99]))
fresh = st.lists(st.integers(20, 40), min_size=1, max_size=2).map(
    lambda units: node(*cards(*units))
)
claims = st.lists(amounts, min_size=1, max_size=4).map(
    lambda found: [
        claim(units, cores, container=f"c{i}") for i, (units, cores) in enumerate(found)
    ]
)


def requests(names: Sequence[str] = PODS) -> st.SearchStrategy[PodRequest]:
    """Pods of one claim or several, each with priority 0 to 3."""
    return st.builds(
        lambda name, asks, priority: request(name, claims=asks, priority=priority),
        st.sampled_from(names),
        claims,
        st.integers(0, 3),
    )


indices = st.sets(st.integers(0, 3), max_size=2)
strays = st.builds(
    lambda name, found, priority: request(name, claims=found, priority=priority),
    st.sampled_from(["lost0", "lost1"]),
    claims.filter(lambda found: all(one.amount for one in found)),
    st.integers(0, 3),
)
"""Pods that were bound without us."""

singles = st.builds(
    lambda name, asked: request(name, *asked), st.sampled_from(PODS), amounts
)

bytes_of_text = st.text(min_size=1, max_size=8)
whole_cards = st.lists(
    st.builds(
        Card,
        bytes_of_text.map(CardUUID),
        st.integers(0, 99),
        st.integers(0, 10**9),
        st.booleans(),
        st.text(max_size=8),
        parent=st.sampled_from(["", "GPU-1"]),
    ),
    unique_by=lambda one: one.uuid,
    max_size=7,
)
held_amounts = st.builds(Amount, st.integers(0, 10**9), st.integers(0, 10**9))
placements = st.builds(
    lambda shares: Placement(ref(), NodeName("n"), tuple(shares)),
    st.lists(
        st.builds(
            Share,
            bytes_of_text.map(CardUUID),
            held_amounts,
            st.lists(
                st.builds(ContainerAmount, bytes_of_text, held_amounts),
                unique_by=lambda held: held.name,
                max_size=3,
            ).map(tuple),
        ),
        max_size=4,
    ),
)


PROFILES = ("A100 MIG 1g.5gb", "A100 MIG 2g.10gb")


@st.composite
def pages(draw: st.DrawFn) -> Node:
    """A node in a state that we brought about, but for the pods bound without us."""
    units = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    sick, closed = draw(st.sets(st.integers(0, 3))), draw(indices)
    profiles = draw(st.dictionaries(st.integers(0, 3), st.sampled_from(PROFILES)))
    page = node(
        *(
            card(
                i,
                size,
                healthy=i not in sick,
                cordoned=i in closed,
                model=profiles.get(i, "A100"),
                parent="GPU-A100" if i in profiles else "",
            )
            for i, size in enumerate(units)
        ),
        unplaced=draw(st.lists(strays, max_size=2)),
    )
    chosen = draw(policies)
    for number, pending in enumerate(draw(st.lists(requests(), max_size=6))):
        placed = place(request(f"held{number}", claims=pending.claims), page, chosen)
        if isinstance(placed, Placement):
            page = page.with_placement(placed)
    return page


def a_cluster(sizes_of: Sequence[Sequence[int]]) -> Ledger:
    """A ledger of three nodes with cards of these sizes."""
    ledger = Ledger()
    for name, units in zip(NODES, sizes_of, strict=True):
        ledger.set_cards(NodeName(name), cards(*units))
    return ledger


clusters = st.tuples(sizes, sizes, sizes).map(a_cluster)


def ours(ledger: Ledger, pending: PodRequest, name: NodeName, chosen: Policy) -> None:
    """Reserve as bind does: what is held elsewhere is given up first."""
    placed = ledger.placement(pending.pod.uid)
    if placed is not None and placed.node != name:
        ledger.release(pending.pod.uid)
    ledger.reserve(pending, name, chosen)


words = st.one_of(
    st.tuples(st.just("reserve"), requests(), nodes, policies),
    st.tuples(st.just("unplaced"), strays, nodes),
    st.tuples(st.just("cordon"), nodes, indices),
    st.tuples(st.just("release"), st.sampled_from(PODS)),
    st.tuples(st.just("cancel"), st.sampled_from(PODS)),
    st.tuples(st.just("record"), st.sampled_from(PODS)),
)
changes = st.one_of(
    words,
    st.tuples(st.just("cards"), nodes, sizes),
    st.tuples(st.just("forget"), nodes),
    st.tuples(st.just("ask")),
)


def tell(ledger: Ledger, word: tuple[object, ...]) -> None:
    """Do to the ledger what a word says."""
    match word:
        case ("reserve", PodRequest() as asked, str(name), Policy() as chosen):
            ours(ledger, asked, NodeName(name), chosen)
        case ("unplaced", PodRequest() as asked, str(name)):
            ledger.record_unplaced(asked, NodeName(name))
        case ("cordon", str(name), set(closed)):
            page = ledger.node(NodeName(name))
            known = () if page is None else page.cards
            ledger.set_cards(
                NodeName(name),
                [replace(card, cordoned=i in closed) for i, card in enumerate(known)],
            )
        case ("release", str(name)):
            ledger.release(ref(name).uid)
        case ("cancel", str(name)):
            ledger.cancel(ref(name).uid)
        case ("record", str(name)):
            placed = ledger.placement(ref(name).uid)
            if placed is not None:
                ledger.record(placed)
        case ("cards", str(name), list(units)):
            ledger.set_cards(NodeName(name), cards(*units))
        case ("forget", str(name)):
            ledger.forget(NodeName(name))


@moderately
@given(clusters, st.lists(words, max_size=30))
def test_no_card_is_ever_over_placed(
    ledger: Ledger, story: list[tuple[object, ...]]
) -> None:
    """Whatever is reserved, released, cordoned, bound without us, in any order."""
    for word in story:
        tell(ledger, word)
        for page in ledger.nodes():
            for there in page.cards:
                cores, units = page.charged.get(there.uuid, (0, 0))
                assert Amount(cores, units).fits(there.capacity)


@moderately
@given(clusters, st.lists(words, max_size=20), requests(["new"]), nodes, policies)
def test_what_is_reserved_is_free_wherever_the_unplaced_pods_are(
    ledger: Ledger,
    story: list[tuple[object, ...]],
    pending: PodRequest,
    name: NodeName,
    chosen: Policy,
) -> None:
    """They may all be on the very card, and it is open and there."""
    for word in story:
        tell(ledger, word)
    decision = ledger.reserve(pending, name, chosen)
    page = ledger.node(name)
    if isinstance(decision, Placement) and page is not None:
        for uuid in decision.cards():
            assert Amount().fits(page.free[uuid])


@moderately
@given(clusters, st.lists(words, max_size=20), st.booleans(), strays, nodes)
def test_a_pod_is_charged_on_the_node_where_it_was_seen_last(
    ledger: Ledger,
    story: list[tuple[object, ...]],
    is_known: bool,
    pending: PodRequest,
    name: NodeName,
) -> None:
    """And on no other, whether its card is known or not."""
    for word in story:
        tell(ledger, word)
    if is_known:
        ledger.record(Placement(pending.pod, name, ()))
    else:
        ledger.record_unplaced(pending, name)
    uid = pending.pod.uid
    names_there = [
        n.name for n in ledger.nodes() if uid in {*n.placements, *n.unplaced}
    ]
    assert names_there == [name]


@moderately
@given(clusters, st.lists(words, max_size=20), st.randoms())
def test_replaying_pods_and_nodes_rebuilds_the_ledger(
    ledger: Ledger, story: list[tuple[object, ...]], chance: Random
) -> None:
    """From their JSON alone, in any order: it is never a source of truth."""
    for word in story:
        tell(ledger, word)
    news: list[Told] = [
        *(
            (PodInformer, bound_json(placed))
            for page in ledger.nodes()
            for placed in held(page)
        ),
        *(
            (PodInformer, bare_json(pending, page.name))
            for page in ledger.nodes()
            for pending in page.unplaced.values()
        ),
        *((NodeInformer, node_json(page.name, *page.cards)) for page in ledger.nodes()),
    ]
    chance.shuffle(news)
    again = Ledger()
    sinks_there = sinks(again)
    for kind, thing in news:
        sinks_there[kind].apply(event("ADDED", thing))
    assert {node.name: node for node in again.nodes()} == {
        node.name: node for node in ledger.nodes()
    }


def bare_json(pending: PodRequest, name: NodeName) -> Json:
    """A pod that somebody else has bound: no annotation says on which card."""
    return pod_json(
        pending.pod.name,
        containers=[
            container_json(
                part.containers[0].name, part.amount.units, part.amount.cores
            )
            for part in pending.claims
        ],
        node=name,
        priority=pending.pod.priority,
        annotations={CONTAINERS: APART} if len(pending.claims) > 1 else None,
    )


def sinks(ledger: Ledger) -> Mapping[type, Sink]:
    pods = PodInformer(ledger, PolicyChoice())
    return {
        PodInformer: pods,
        NodeInformer: NodeInformer(ledger, set_cards=pods.set_cards),
    }


def held(page: Node) -> Sequence[Placement]:
    return tuple(page.placements.values())


@moderately
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from(["", "n0", "n1"])),
        max_size=8,
    ),
    st.randoms(),
)
def test_nominations_are_a_function_of_what_the_api_server_holds(
    pods: list[tuple[int, bool, str]], chance: Random
) -> None:
    """Nodes first or pods first, nominees before or after their victims."""
    news: list[Told] = [
        (NodeInformer, node_json(name, *cards(29, 20))) for name in ("n0", "n1")
    ]
    for number, (priority, going, nominated) in enumerate(pods):
        name = f"p{number}"
        if nominated:
            thing = pod_json(name, units=12, priority=priority, nominated=nominated)
        else:
            where = "n0" if number % 2 else "n1"
            there = place(
                request(name, 15, priority=priority),
                node(*cards(29, 20), name=where),
                POLICIES["first-fit"],
            )
            assert isinstance(there, Placement)
            thing = bound_json(there, terminating=going)
        news.append((PodInformer, thing))
    kept = []
    for _ in range(2):
        ledger = Ledger()
        sinks_there = sinks(ledger)
        for kind, thing in news:
            sinks_there[kind].apply(event("ADDED", thing))
        kept.append({node.name: node.nominations for node in ledger.nodes()})
        chance.shuffle(news)
    assert kept[0] == kept[1]


@moderately
@given(whole_cards)
def test_cards_come_back_from_their_annotation(shared: list[Card]) -> None:
    """decode(encode(x)) == x."""
    assert decode_cards(encode_cards(shared)) == tuple(shared)


@moderately
@given(placements)
def test_placements_come_back_from_their_annotation(placed: Placement) -> None:
    """decode(encode(x)) == x."""
    text = encode_placement(placed, AT)
    assert decode_placement(text, placed.pod, placed.node) == placed


@moderately
@given(pages(), singles, policies)
def test_the_frontier_answers_as_place_does(
    page: Node, pending: PodRequest, chosen: Policy
) -> None:
    """Filter's one comparison and bind's decision never differ, words included."""
    decision = place(pending, page, chosen)
    no = page.summary.refusal(pending.claims[0])
    assert no == (decision if isinstance(decision, Refusal) else None)


@moderately
@given(pages(), requests(["new"]), policies)
def test_filter_and_bind_agree(page: Node, pending: PodRequest, chosen: Policy) -> None:
    """For several claims too: what filter lets through, bind can place."""
    decision = place(pending, page, chosen)
    no = find_refusal(pending, page, chosen)
    assert (no is None) is isinstance(decision, Placement)


@moderately
@given(fresh, st.lists(parts, min_size=2, max_size=4), policies)
def test_parts_of_a_card_never_make_a_whole_one(
    page: Node, amounts: list[tuple[int, int]], chosen: Policy
) -> None:
    """However many cores they are: only their own units are charged, and read back."""
    asks = [claim(*pair, container=f"c{i}") for i, pair in enumerate(amounts)]
    decision = place(request("new", claims=asks), page, chosen)
    if isinstance(decision, Refusal):
        return
    assert not any(share.is_whole for share in decision.shares)
    text = encode_placement(decision, AT)
    again = decode_placement(text, decision.pod, decision.node)
    assert again == decision
    charged = page.with_placement(again).charged
    total = sum((wanted_claim.amount for wanted_claim in asks), Amount())
    sums = [Amount(*amount) for amount in charged.values()]
    assert sum(sums, Amount()) == total


@moderately
@given(pages(), requests(["new"]), policies)
def test_a_placement_holds_what_was_asked(
    page: Node, pending: PodRequest, chosen: Policy
) -> None:
    """No more and no less, on cards of the node, each named once."""
    decision = place(pending, page, chosen)
    if isinstance(decision, Refusal):
        return
    named = decision.cards()
    assert len(set(named)) == len(named)
    assert set(named) <= page.free.keys()
    shares = [
        wanted_claim for wanted_claim in pending.claims if not wanted_claim.whole_cards
    ]
    whole = sum(wanted_claim.whole_cards for wanted_claim in pending.claims)
    wanted = sum((part.amount for part in shares), Amount())
    taken = sum((part.amount for part in decision.shares), Amount())
    assert taken.cores == wanted.cores + 100 * whole
    assert taken.units >= wanted.units
    after = page.with_placement(decision)
    assert all(Amount().fits(after.free[uuid]) for uuid in named)


@moderately
@given(
    st.lists(
        st.tuples(st.sampled_from(["", *PROFILES]), st.integers(1, 40)),
        min_size=3,
        max_size=8,
    ),
    st.integers(1, 3),
    st.integers(0, 60),
    policies,
)
def test_whole_cards_are_never_of_two_sizes(
    some: list[tuple[str, int]], number: int, units: int, chosen: Policy
) -> None:
    """Full cards only, or instances of one profile; refused only if no kind has them.

    Also where the claim is met by the search, beside a share.
    """
    page = node(
        *(
            card(i, size, model=profile, parent="GPU-A100" if profile else "")
            for i, (profile, size) in enumerate(some)
        )
    )
    claims = request("new", units, 100 * number).claims
    page_cards = {card.uuid: card for card in page.cards}
    alone = place(request("new", claims=claims), page, chosen)
    kinds: dict[str, list[int]] = {}
    for whole_card in page.untouched:
        kinds.setdefault(whole_card.kind, []).append(whole_card.units)
    enough = any(
        len(sizes) >= number and sum(sorted(sizes)[-number:]) >= units
        for sizes in kinds.values()
    )
    assert isinstance(alone, Placement) is enough
    share = request("new", 1, 1).claims
    beside = place(request("new", claims=claims + share), page, chosen)
    for decision in (alone, beside):
        if isinstance(decision, Placement):
            whole = {part.card for part in decision.shares if part.amount.cores == 100}
            assert len({page_cards[uuid].kind for uuid in whole}) == 1


@moderately
@given(pages(), singles)
def test_whether_a_claim_fits_is_no_matter_of_policy(
    page: Node, pending: PodRequest
) -> None:
    """Policies choose among what fits."""
    answers = {
        isinstance(place(pending, page, policy(name, order=order)), Placement)
        for name in POLICIES
        for order in ("index", "uuid")
    }
    assert len(answers) == 1


@moderately
@given(
    pages(), st.lists(st.integers(1, 20), min_size=2, max_size=4), policies, policies
)
def test_whether_several_claims_fit_is_no_matter_of_policy(
    page: Node, units: list[int], chosen: Policy, other: Policy
) -> None:
    """The search finds a way where there is one."""
    pending = apart("new", *units)
    first, second = place(pending, page, chosen), place(pending, page, other)
    assert isinstance(first, Placement) is isinstance(second, Placement)


@moderately
@given(clusters, st.lists(changes, max_size=25), requests(["new"]), policies)
def test_a_kept_answer_is_the_fresh_one(
    ledger: Ledger, story: list[tuple[object, ...]], pending: PodRequest, chosen: Policy
) -> None:
    """Asked at any moments in between, it is what judging every node now would say.

    Also where only the nodes' names are asked about, until the answer is kept.
    """
    fitting, by_name = KeptAnswers(ledger), KeptAnswers(ledger)
    for word in [*story, ("ask",)]:
        tell(ledger, word)
        if word == ("ask",):
            answer = fitting.answer(pending, chosen)
            fresh = {
                page.name: find_refusal(pending, page, chosen)
                for page in ledger.nodes()
            }
            assert answer.fits == {name for name, no in fresh.items() if no is None}
            news = {(no, n) for no, names in answer.refused.items() for n in names}
            assert news == {(no, name) for name, no in fresh.items() if no}
            assert by_name.answer(pending, chosen, [*fresh]) == answer


@moderately
@given(pages(), singles, policies)
def test_what_is_released_is_as_if_it_had_never_been(
    page: Node, pending: PodRequest, chosen: Policy
) -> None:
    """No counter drifts."""
    ledger = Ledger()
    ledger.set_cards(page.name, page.cards)
    for placed in held(page):
        ledger.record(placed)
    for asked_here in page.unplaced.values():
        ledger.record_unplaced(asked_here, page.name)
    before = ledger.node(page.name)
    uid = ref("new").uid
    ledger.reserve(PodRequest(ref("new"), pending.claims), page.name, chosen)
    ledger.release(uid)
    assert ledger.node(page.name) == before
