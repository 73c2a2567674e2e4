"""``cordon-card``, ``uncordon-card`` and ``clear-card`` on a small cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from gpushare.domain.model import CardUUID
from gpushare.kube import names
from gpushare.kube.annotations import read_cards
from gpushare.kube.apiserver.api import ApiObjects, ApiServer
from gpushare.kube.apiserver.client import configure_client
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Conflict
from gpusharectl.cordon import (
    Done,
    Order,
    OrderRefused,
    carry_out_order,
    describe_order,
    find_card,
    find_pods_on,
    owns,
)
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import bound_json, card, cards, placement
from tests.gpusharectl.cluster_states import A, B, node_of
from tests.gpusharectl.conftest import put


@dataclass
class ClusterOverHttp:
    """A cluster in memory with its own API server, and the way there."""

    embedded: Embedded
    objects: ApiObjects
    cluster: ApiServer

    def node(self) -> Json:
        return self.embedded.get(Kind.NODES, "", "n")

    def annotation(self, key: str = names.CORDON) -> str | None:
        value: str | None = self.node()["metadata"].get("annotations", {}).get(key)
        return value

    def annotate(self, text: str) -> None:
        self.embedded.annotate(Kind.NODES, "", "n", {names.CORDON: text})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOverHttp]:
    """A node with two cards, one without any, and one whose cards cannot be read."""
    embedded = Embedded()
    embedded.create(Kind.NODES, node_of("n", card(0, uuid=A), card(1, uuid=B)))
    embedded.create(Kind.NODES, node_of("bare", labelled=False))
    embedded.create(Kind.NODES, node_of("broken", labelled=False))
    embedded.annotate(Kind.NODES, "", "broken", {names.CARDS: "nonsense"})
    with ApiServerOnLoopback(embedded) as server:
        path = str(server.kubeconfig(tmp_path / "kubeconfig"))
        objects, cluster = (
            ApiObjects(configure_client(path, None)),
            ApiServer.connect(path),
        )
        yield ClusterOverHttp(embedded, objects, cluster)
        objects.close()
        cluster.close()


@pytest.mark.parametrize("named", ["0", A, "9f12", "GPU-9f12f917", "gpu-9F12"])
def test_a_card_is_cordoned_by_any_of_its_names(
    cluster: ClusterOverHttp, named: str
) -> None:
    done = carry_out_order(cluster, Order.CORDON, "n", [named])
    assert done.changed == {A}
    assert cluster.annotation() == A
    assert [one.cordoned for one in read_cards(cluster.node())] == [True, False]


def test_several_at_once(cluster: ClusterOverHttp) -> None:
    """In the order given, and each only once; the last takes the annotation along."""
    done = carry_out_order(cluster, Order.CORDON, "n", ["1", "0", B])
    assert done.cards == (B, A)
    assert cluster.annotation() == f"{B},{A}"
    carry_out_order(cluster, Order.CLEAR, "n", ["0"])
    assert cluster.annotation(names.CLEAR) == A
    carry_out_order(cluster, Order.UNCORDON, "n", ["0", "1"])
    assert cluster.annotation() is None


def test_once_more_is_no_write(cluster: ClusterOverHttp) -> None:
    """The node is not touched: each touch wakes every pod that waits."""
    carry_out_order(cluster, Order.CORDON, "n", ["0"])
    before = cluster.node()
    done = carry_out_order(cluster, Order.CORDON, "n", ["0"])
    assert done.changed == frozenset()
    assert cluster.node() == before


def test_the_others_stay(cluster: ClusterOverHttp) -> None:
    cluster.annotate(f" {B} , GPU-typo,")
    carry_out_order(cluster, Order.CORDON, "n", ["0"])
    assert cluster.annotation() == f"{B},GPU-typo,{A}"
    carry_out_order(cluster, Order.UNCORDON, "n", ["1"])
    assert cluster.annotation() == f"GPU-typo,{A}"


def test_a_cordon_on_a_card_that_is_gone_can_be_lifted(
    cluster: ClusterOverHttp,
) -> None:
    cluster.annotate("GPU-typo")
    with pytest.raises(OrderRefused):
        carry_out_order(cluster, Order.CORDON, "n", ["GPU-typo"])
    done = carry_out_order(cluster, Order.UNCORDON, "n", ["GPU-typo"])
    assert cluster.annotation() is None
    (line,) = describe_order(Order.UNCORDON, done, {})
    assert line == "n: GPU-typo, which is no card of the node, has been removed."


def test_somebody_else_at_the_same_time_is_not_undone(
    cluster: ClusterOverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, others = cluster.objects.merge, iter(("GPU-theirs-1", "GPU-theirs-2"))

    def late(*args: Any) -> Json:
        for theirs in islice(others, 1):
            cluster.annotate(theirs)
        return merge(*args)

    monkeypatch.setattr(cluster.objects, "merge", late)
    carry_out_order(cluster, Order.CORDON, "n", ["0"])
    assert cluster.annotation() == f"GPU-theirs-2,{A}"
    others = map(str, count())
    with pytest.raises(Conflict, match="try again"):
        carry_out_order(cluster, Order.CORDON, "n", ["1"])


OWNED = f"{A},{A}=a"
"""Cordoned by the command ``a``, as it writes it."""


@pytest.mark.parametrize(
    ("before", "order", "owner", "after", "changed"),
    [
        (None, Order.UNCORDON, "", None, False),
        (f"{A},{A}", Order.UNCORDON, "", None, True),
        (None, Order.CORDON, "a", OWNED, True),
        (OWNED, Order.UNCORDON, "a", None, True),
        (A, Order.CORDON, "a", A, False),
        (A, Order.UNCORDON, "a", A, False),
        (OWNED, Order.CORDON, "b", OWNED, False),
        (OWNED, Order.UNCORDON, "b", OWNED, False),
        (OWNED, Order.CORDON, "", A, True),
        (OWNED, Order.UNCORDON, "", None, True),
        (f"{A}=a", Order.CORDON, "", A, True),
        (f"{A}=a", Order.UNCORDON, "", None, True),
        (f"{B},{OWNED},{B}=b", Order.UNCORDON, "a", f"{B},{B}=b", True),
    ],
)
def test_who_opens_takes_back_only_his_own(
    cluster: ClusterOverHttp,
    before: str | None,
    order: Order,
    owner: str,
    after: str | None,
    *,
    changed: bool,
) -> None:
    """An operator, who has no name there, replaces and opens all."""
    if before:
        cluster.annotate(before)
    done = carry_out_order(cluster, order, "n", ["0"], owner)
    assert (cluster.annotation(), bool(done.changed)) == (after, changed)


@pytest.mark.parametrize(
    ("text", "owner", "owned"),
    [(OWNED, "a", True), (OWNED, "b", False), (A, "a", False), (f"{A}=a", "a", False)],
)
def test_whose_a_cordon_is(
    cluster: ClusterOverHttp, text: str, owner: str, *, owned: bool
) -> None:
    """An entry without its UUID beside it closes nothing: an old command opened it."""
    cluster.annotate(text)
    assert owns(cluster.node(), owner, [A]) is owned


@pytest.mark.parametrize(
    ("node", "named", "words"),
    [
        ("m", "0", 'there is no node "m"; nodes that share cards: broken, n'),
        ("n", "7", 'n: there is no card "7"; there are 0 (GPU-9f12'),
        ("n", "GPU-", 'n: "GPU-" may be any of GPU-'),
        ("n", "9f1", 'n: there is no card "9f1"'),
        ("bare", "0", 'bare: there is no card "0"; the node shares no cards'),
        ("broken", "0", "broken: its cards cannot be read: "),
    ],
    ids=["node", "card", "both", "too-short", "no-cards", "no-json"],
)
def test_what_is_not_there_is_told_with_what_is(
    cluster: ClusterOverHttp, node: str, named: str, words: str
) -> None:
    """Nothing is written then, not even for the cards that were right."""
    with pytest.raises(OrderRefused) as caught:
        carry_out_order(cluster, Order.CORDON, node, ["0", named])
    assert str(caught.value).startswith(words)
    assert cluster.annotation() is None


@pytest.mark.parametrize(
    ("uuids", "indexes", "named", "found"),
    [
        (("1000-x", "GPU-y"), (0, 1000), "1000", "GPU-y"),
        (("GPU-x", "acc-y"), (0, 0), "0", ""),
    ],
    ids=["an index goes before a beginning", "two of one index need their UUID"],
)
def test_index_or_beginning(
    uuids: tuple[str, str], indexes: tuple[int, int], named: str, found: str
) -> None:
    both = [card(i, uuid=uuid) for i, uuid in zip(indexes, uuids, strict=True)]
    known = [one.uuid for one in both]
    if found:
        assert find_card(named, both, known) == found
        return
    with pytest.raises(OrderRefused, match="give more of the UUID"):
        find_card(named, both, known)


def test_it_says_who_is_there(cluster: ClusterOverHttp) -> None:
    for name, on, phase in (
        ("here", A, "Running"),
        ("there", B, "Running"),
        ("done", A, "Succeeded"),
    ):
        pod = bound_json(placement(name, on, 3, 1, node="n"))
        pod["status"]["phase"] = phase
        put(cluster.embedded, pod)
    assert find_pods_on(cluster, "n", CardUUID(A)) == ["default/here"]


def said(order: Order, *pods: str, changed: bool = True, **of: bool) -> str:
    node = node_of("n", card(0, **of), *cards(29, 29)[1:])
    uuid = CardUUID("GPU-0")
    done = Done(node, (uuid,), frozenset({uuid} if changed else ()))
    return "\n".join(describe_order(order, done, {uuid: pods}))


@pytest.mark.parametrize(
    ("order", "changed", "words"),
    [
        (Order.CORDON, True, "n card 0 (GPU-0, Tesla P4) is cordoned now"),
        (Order.CORDON, False, "was already cordoned"),
        (Order.UNCORDON, True, "is open again."),
        (Order.UNCORDON, False, "was not cordoned."),
        (Order.CLEAR, True, "is to be cleared"),
        (Order.CLEAR, False, "was already to be cleared"),
    ],
)
def test_it_says_what_is_so_now(order: Order, changed: bool, words: str) -> None:
    assert words in said(order, changed=changed, healthy=order is not Order.CLEAR)


def test_it_says_what_becomes_of_the_pods() -> None:
    assert "No pod holds a part of it." in said(Order.CORDON)
    one = said(Order.CORDON, "default/a")
    assert "1 pod on it keeps its share: default/a." in one
    many = said(Order.CORDON, *(f"default/p{n}" for n in range(42)))
    assert "42 pods on it keep their shares" in many
    assert "default/p4 and 37 more" in many
    assert "it is sick" in said(Order.UNCORDON, healthy=False)
    assert "is not reported as sick" in said(Order.CLEAR)
    node = node_of("n", card(0), card(1, healthy=False))
    done = Done(node, (CardUUID("GPU-0"),), frozenset())
    assert "No card of n is open any more." in list(
        describe_order(Order.CORDON, done, {})
    )
    assert "open any more" not in one
