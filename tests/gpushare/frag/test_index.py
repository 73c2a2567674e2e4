"""The index finds what looking at every node would find."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.frag.index import LOG_AT_MOST, Best, Index
from gpushare.domain.frag.learning import learn
from gpushare.domain.frag.pool import Pool
from gpushare.domain.frag.shapes import Shape, State
from gpushare.domain.frag.tables import Tables
from tests.gpushare.frag.invented import (
    few,
    histograms,
    no_card,
    shapes,
    share,
    state,
    states,
    whole,
)

NAMES = tuple(f"n{number}" for number in range(12))
changes = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES), states),
    st.tuples(st.just("drop"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("learn"), st.none(), histograms),
    st.tuples(st.just("place"), st.none(), shapes),
    st.tuples(st.just("ask"), st.frozensets(st.sampled_from(NAMES)), shapes),
)
clusters = st.dictionaries(st.sampled_from(NAMES), states, min_size=1)


@few
@given(clusters, st.lists(changes, max_size=25))
def test_it_finds_what_a_look_at_every_node_finds(
    nodes: dict[str, State], said: list[tuple[str, object, object]]
) -> None:
    """Whatever is put, dropped, learnt and placed in between."""
    index = Index(nodes, cards=8, cpu_milli=64_000, memory_mib=65_536)
    nodes = dict(nodes)
    for word, about, what in said:
        match word, about, what:
            case "put", str(name), State():
                nodes[name] = what
                index.put(name, what)
            case "drop", str(name), _:
                nodes.pop(name, None)
                index.drop(name)
            case "learn", _, dict():
                index.swap(learn(what, index.pool))
            case "ask", frozenset(), Shape():
                among = {name: nodes[name] for name in about if name in nodes}
                best = index.best(what, sorted(about))
                assert best == _plainly(among, what, index.tables)
            case "place", _, Shape():
                best = index.best(what)
                assert best == _plainly(nodes, what, index.tables)
                if best is not None:
                    nodes[best.node] = nodes[best.node].after(what, best.card)
                    index.put(best.node, nodes[best.node])
        pool = Pool.of(nodes.values(), cards=8, cpu_milli=64_000, memory_mib=65_536)
        assert index.pool.idle_cards == pool.idle_cards
        assert [index.pool.blocks(k) for k in (1, 2, 3)] == [
            pool.blocks(k) for k in (1, 2, 3)
        ]
        assert index.tables.under(pool) == index.tables.under(index.pool)


def test_of_equal_nodes_the_first_by_name() -> None:
    index = Index({"b": state(1000), "a": state(1000), "c": state(500)}, cards=3)
    assert index.best(whole(1)) == Best("a", 0, 1040)
    assert index.best(share(300), ["b", "a"]) == Best("a", 0, 320 + 700e-7)
    assert index.best(share(300)) == Best("c", 0, 320 + 200e-7)
    assert index.best(no_card(5)) == Best("a", -1, 0)


def test_nodes_come_and_go() -> None:
    index = Index({"b": state(1000)}, cards=3)
    assert index.best(whole(1)) == Best("b", 0, 1040)
    index.put("a", state(1000))
    index.put("c", state(1000))
    assert index.best(whole(1)) == Best("a", 0, 1040)
    index.put("a", state(999))
    assert index.best(whole(1)) == Best("b", 0, 1040)
    index.drop("b")
    index.drop("b")
    assert index.best(whole(1)) == Best("c", 0, 1040)
    index.put("c", state(0))
    index.put("c", state(0))
    assert index.best(whole(1)) is None


def test_only_nodes_that_are_asked_for() -> None:
    index = Index({name: state(1000) for name in "abcd"}, cards=4)
    assert index.best(whole(1), ["d", "c", "unheard of"]) == Best("c", 0, 1040)
    index.put("c", state(500))
    assert index.best(whole(1), ["d", "c"]) == Best("d", 0, 1040)
    index.put("d", state(500))
    assert index.best(whole(1), ["d", "c"]) is None


def test_where_it_fits_nowhere() -> None:
    index = Index({"a": state(500)}, cards=1)
    assert index.best(whole(1)) is None
    assert index.best(share(300), []) is None
    assert index.best(share(300), ["unheard of"]) is None
    assert Index({}, cards=0).best(no_card(0)) is None


def test_a_node_asked_for_alone_among_many() -> None:
    index = Index({f"n{n:02}": state(1000 - n) for n in range(40)}, cards=40)
    assert index.best(share(900), ["n07", "n03"]) == Best("n07", 0, 880 + 93e-7)
    index.best(share(900))
    assert index.best(share(900), ["n07", "n03"]) == Best("n07", 0, 880 + 93e-7)


def test_a_shape_not_asked_for_in_a_long_time() -> None:
    """Its scores are worked out anew once the log has moved on."""
    index = Index({"a": state(1000), "b": state(900)}, cards=2)
    assert index.best(share(850)) == Best("b", 0, 880 + 50e-7)
    for number in range(LOG_AT_MOST + 2):
        index.put("b", state(number % 500))
        if number % 1000 == 0:
            index.best(share(1))
    index.best(share(1))
    assert index.best(share(850)) == Best("a", 0, 880 + 150e-7)


def test_more_shapes_than_are_kept() -> None:
    index = Index({"a": state(1000), "b": state(600)}, cards=2)
    for milli in range(1, 601):
        found = index.best(share(milli))
        assert found is not None
        assert found.node == "b"
    index.put("b", state(0))
    found = index.best(share(1))
    assert found is not None
    assert found.node == "a"


def test_totals_count_from_the_next_learning_on() -> None:
    index = Index({"a": state(1000)}, cards=1)
    index.resize(cards=9, cpu_milli=72_000)
    assert (index.pool.cards, index.pool.cpu_milli) == (9, 72_000)


def _plainly(nodes: Mapping[str, State], asked: Shape, tables: Tables) -> Best | None:
    found = [
        (tables.score(node, asked, card), name, card)
        for name, node in nodes.items()
        for card in node.cards_for(asked)
    ]
    if not found:
        return None
    score, name, card = min(found)
    return Best(name, card, score)
