"""Simulations of a running cluster: it is read over HTTP and never written."""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from gpushare.domain.links import read_scores, with_scores
from gpushare.kube import names
from gpushare.kube.annotations import read_cards
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden, NotFound, Unavailable
from gpusharectl.commands import main
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.simulator.engine import Played, play
from gpusharectl.simulator.live import (
    MorePods,
    WhatIf,
    describe_missing_rights,
    make_live_scenario,
    read_live,
)
from gpusharectl.simulator.result import list_not_played
from gpusharectl.simulator.scenario import Join, NotPlayable, Scenario
from tests.builders import (
    allocation_json,
    bound_json,
    card,
    claim_json,
    container_json,
    placement,
    pod_json,
)
from tests.gpusharectl.cluster_states import (
    MADE,
    asking,
    extender,
    following,
    node_of,
    offering,
)
from tests.gpusharectl.conftest import put
from tests.gpusharectl.simulator.building import places

A, B = "GPU-aaaaaaaa", "GPU-bbbbbbbb"


def nodes() -> list[Json]:
    first = node_of("node-1", card(0, 29, uuid=A))
    second = node_of("node-2", card(0, 29, uuid=B))
    return [first, second]


def held(name: str, on: str, units: int, node: str) -> Json:
    pod = bound_json(placement(name, on, units, 1, node=node))
    pod["metadata"]["creationTimestamp"] = MADE
    return pod


def gated(name: str) -> Json:
    pod = pod_json(name, units=1, cores=1)
    pod["spec"]["schedulingGates"] = [{"name": "hold"}]
    return pod


TEMPLATE: Json = {"spec": {"containers": [container_json("main", 8, 1)]}}


def live(of: Sequence[Json], *pods: Json, **what: Any) -> tuple[Scenario, Played]:
    """Return the scenario of these nodes and pods, and what comes of it."""
    found = make_live_scenario(of, pods, WhatIf(**what), "here")
    return found, play(found, found.choice)


def test_pods_that_wait_are_tried_where_the_cluster_is_now() -> None:
    """What runs stays where it is; gates keep a pod from every scheduler.

    A new node is like one that is there: empty, with cards of its own, and without
    the DaemonSets' pods.
    """
    old, other = held("old", A, 20, "node-1"), held("other", B, 12, "node-2")
    rest = [
        pod_json("waits", units=25, cores=1),
        *(gated("gated"), pod_json("plain"), pod_json("web")),
    ]
    found, done = live(nodes(), old, other, *rest)
    assert places(done) == {"waits": "nowhere"}
    assert found.remarks[-1] == (
        "Not tried: 1 pod with scheduling gates; 2 pods that ask for no card."
    )
    assert places(live(nodes(), other, *rest)[1]) == {"waits": "node-1 card 0"}
    sentence = "pods of DaemonSets on added nodes, which begin empty"
    other["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "x"}]
    assert sentence not in list_not_played(found)
    found, done = live(nodes(), old, other, *rest, add={"node-1": 2})
    assert places(done)["waits"] in ("node-1-new-1 card 0", "node-1-new-2 card 0")
    uuids = [one.uuid for node in done.cluster.ledger.nodes() for one in node.cards]
    assert len(set(uuids)) == len(uuids) == 4
    assert sentence in list_not_played(found)


def test_a_new_node_has_started() -> None:
    """A taint that only keeps pods away at the start is not copied; others are."""
    (old,) = nodes()[:1]
    waits = pod_json("waits", units=1, cores=1)

    def tainted(key: str) -> dict[str, str]:
        old["spec"]["taints"] = [{"key": key, "effect": "NoSchedule"}]
        return places(live([old], waits, add={"node-1": 1})[1])

    assert tainted(names.STARTUP_TAINT) == {"waits": "node-1-new-1 card 0"}
    assert tainted("team") == {"waits": "nowhere"}


def test_instances_stay_instances() -> None:
    """In the cluster as it is, and on a node like one of it."""
    model = "NVIDIA A100-SXM4-40GB MIG {}"
    parts = [
        card(110, 39, uuid="MIG-1", parent=B, model=model.format("2g.10gb")),
        card(112, 78, uuid="MIG-2", parent=B, model=model.format("3g.20gb")),
    ]
    old = node_of("node-1", card(0, 29, uuid=A), *parts)
    two = pod_json("two", cores=200)
    assert places(live([old], two)[1]) == {"two": "nowhere"}
    _, done = live([old], two, add={"node-1": 1})
    assert places(done) == {"two": "nowhere"}
    first, second = (node.cards for node in done.cluster.ledger.nodes())
    kinds = [[one.kind for one in cards] for cards in (first, second)]
    assert kinds[0] == kinds[1] == ["", *(f"MIG {one.model}" for one in parts)]


def test_a_drained_node() -> None:
    """Its pods go elsewhere where there is room; what belongs to it stays.

    A pod that goes forgets its old card, or the ledger would take it for the new one.
    """
    its_own = held("agent", B, 1, "node-2")
    its_own["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "x"}]
    running = [held("a", A, 5, "node-1"), held("b", B, 12, "node-2"), its_own]
    told = running[1]["metadata"]["annotations"]
    told[names.ACTUAL] = told[names.PLACEMENT]
    _, done = live(nodes(), *running, drain=["node-2"])
    stored = done.cluster.api.get(Kind.PODS, "default", "b-moved-1")
    assert set(stored["metadata"]["annotations"]) == {names.PLACEMENT}
    assert places(done) == {"b-moved-1": "node-1 card 0"}
    (left,) = done.cluster.ledger.nodes()[1].placements.values()
    assert left.pod.name == "agent"


def test_afresh() -> None:
    """All that runs on cards is placed anew; its old card counts for nothing."""
    running = [held("a", A, 9, "node-1"), held("b", B, 9, "node-2")]
    found, done = live(nodes(), *running, afresh=True)
    assert found.there == ()
    assert places(done) == {"a": "node-1 card 0", "b": "node-1 card 0"}


def broken() -> Json:
    return node_of("broken", annotations={names.CARDS: "{"})


def silent() -> Json:
    """A node that is labelled, but has not reported its cards."""
    found = node_of("silent", annotations={})
    found["metadata"]["annotations"] = {}
    return found


WRONG_CONTAINER = {"containers": [container_json("main", 8, 1)], "tolerations": 5}


@pytest.mark.parametrize(
    ("of", "what", "words"),
    [
        (nodes(), {"drain": ["x"]}, r'no node "x"; there are: node-1, node-2'),
        ([], {"drain": ["x"]}, 'there is no node "x"; there are: none'),
        ([broken()], {"add": {"broken": 1}}, "a node like broken cannot be added"),
        ([silent()], {"add": {"silent": 1}}, "it has not reported its cards; gpusha"),
        (
            nodes(),
            {"more": [("edge/app", {"spec": WRONG_CONTAINER}, 1)]},
            r"edge/app can be added: spec\.tolerations: must be a l",
        ),
    ],
    ids=["node", "no node", "broken", "silent", "template"],
)
def test_what_cannot_be_played(of: list[Json], what: Json, words: str) -> None:
    with pytest.raises(NotPlayable, match=words):
        live(of, **what)


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = Embedded()
    for node in nodes():
        cluster.create(Kind.NODES, node)
    put(cluster, held("old", A, 20, "node-1"))
    with ApiServerOnLoopback(cluster) as server:
        yield str(server.kubeconfig(tmp_path_factory.mktemp("k") / "kubeconfig"))


def ran(kubeconfig: str, *words: str) -> Result:
    words = ("simulate", "--live", *words, "--kubeconfig", kubeconfig)
    return CliRunner().invoke(main, words)


def test_an_added_node_has_the_links_of_the_node_that_it_is_like() -> None:
    its_cards = with_scores([card(0), card(1), card(2)], (10, 30, 250))
    found, _ = live([node_of("node-1", *its_cards)], add={"node-1": 1})
    (added,) = [one.what.node for one in found.steps if isinstance(one.what, Join)]
    assert read_scores(read_cards(added)) == (10, 30, 250)


def test_how_many_more_fit(kubeconfig: str) -> None:
    done = ran(kubeconfig, "--room", "9", "--room", "cards=1", "-o", "json")
    assert done.exit_code == 0, done.output
    found = orjson.loads(done.stdout)
    assert [room["number"] for room in found["runs"][0]["room"]] == [4, 1]
    more = ran(kubeconfig, "--more", "pod/default/old=2", "--add", "node-2=1")
    assert more.stdout.startswith("Placed: 2 of 2 pods.")
    drained = ran(kubeconfig, "--room", "9", "--drain", "node-2", "--policy", "spread")
    assert drained.stdout.startswith("Room for 1 more of 9 units")


FORBIDDEN = Forbidden("nodes is forbidden")
WRONG: dict[str, tuple[list[str], str, ClusterError | None]] = {
    "more": (["--more", "x/y=1"], "there is no Deployment x/y; kubectl get", None),
    "context": (["--context", "x"], "has no context 'x'", None),
    "refused": ([], "nodes is forbidden; take an administrator's", FORBIDDEN),
    "broken": ([], "it broke", ClusterError("it broke")),
}


@pytest.mark.parametrize(("words", "told", "error"), WRONG.values(), ids=WRONG)
def test_complaints(
    monkeypatch: pytest.MonkeyPatch,
    kubeconfig: str,
    words: list[str],
    told: str,
    error: ClusterError | None,
) -> None:
    def list_all(*_: object) -> Iterator[Json]:
        raise error or AssertionError

    if error is not None:
        monkeypatch.setattr("gpusharectl.simulator.live.list_all", list_all)
    done = ran(kubeconfig, *words)
    assert done.exit_code == 1
    assert told in done.stderr


def test_more_of_a_pod_that_ran() -> None:
    """Its node, gates and placement were its own; a name that is taken stays so."""
    ran = held("app", A, 8, "node-1")
    ran["spec"]["schedulingGates"] = [{"name": "hold"}]
    template = {**ran, "status": {"phase": "Succeeded"}}
    taken = held("app-more-0-0", B, 25, "node-2")
    taken["metadata"]["namespace"] = "edge"
    _, done = live(nodes(), taken, more=[("edge/app", template, 2)])
    assert places(done) == {
        "app-more-0-1": "node-1 card 0",
        "app-more-0-2": "node-1 card 0",
    }
    assert {one.pod.namespace for one in done.outcomes} == {"edge"}


def test_what_is_played_in_its_order() -> None:
    running = held("a", A, 9, "node-1")
    more = [("edge/app", TEMPLATE, 1), ("edge/db", TEMPLATE, 2)]
    scenario, _ = live(
        nodes(),
        running,
        pod_json("b", units=1, cores=1),
        add={"node-1": 2},
        drain=["node-2"],
        more=more,
        afresh=True,
    )
    assert scenario.remarks[1] == (
        "Played, in this order: 2 nodes like node-1 are added; 1 pod with cards is "
        "placed afresh; 1 pod that waits is tried; node-2 is drained; 1 more of "
        "edge/app comes; 2 more of edge/db come."
    )
    # As in kube-scheduler's queue, the most important is first.
    low, high = (
        pod_json(name, units=29, cores=1, priority=priority)
        for name, priority in (("a-low", 0), ("b-high", 7))
    )
    found, done = live(nodes()[:1], low, high)
    assert found.remarks[1] == "Played: 2 pods that wait are tried."
    assert places(done) == {"a-low": "nowhere", "b-high": "node-1 card 0"}
    # A node without cards may be added for its CPU.
    plain = node_of("plain", card(0, 1), labelled=False)
    plain["metadata"]["annotations"] = {}
    added, _ = live([plain], add={"plain": 1})
    assert added.remarks[1:] == ("Played: 1 node like plain is added.",)


def test_what_nobody_knows() -> None:
    """Cards that no node has told, and a pod on one that nobody has named."""
    astray = pod_json("astray", units=4, cores=1, node="node-1")
    copied = held("copied", A, 4, "node-1")
    copied["metadata"]["uid"] = "of-another-pod"
    well = held("well", A, 4, "node-1")
    found, _ = live([*nodes(), broken(), silent()], astray, copied, well)
    of_nodes, of_pods = found.remarks[1:]
    assert of_nodes.startswith(
        "Cards not known, so counted as none, on: broken, silent;"
    )
    assert of_pods.startswith("Card not known, so room is kept on every card of the no")
    assert of_pods.endswith(", for: default/astray, default/copied.")


def claimed(name: str, units: int, device: str = A) -> Json:
    allocation = allocation_json(device.lower(), units=units, cores=1, node="node-1")
    return claim_json(name, allocation)


def with_claim(name: str, node: str = "") -> Json:
    pod = pod_json(name, node=node)
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "c"}]
    return pod


def live_with_claims(
    *bodies: Json,
    pods: Sequence[Json],
    error: ClusterError | None = None,
    drain: Sequence[str] = (),
    more: Sequence[Json] = (),
) -> Scenario:
    """Read such a cluster, with ``more`` nodes."""
    cluster = Embedded()
    for node in [*nodes(), *more]:
        cluster.create(Kind.NODES, node)
    for pod in pods:
        cluster.create(Kind.PODS, pod)
    for body in bodies:
        status = {"status": body["status"]}
        name = body["metadata"]["name"]
        cluster.create(Kind.CLAIMS, body)
        cluster.patch(Kind.CLAIMS, "default", name, status, subresource="status")
    read = cluster.list_page

    def list_page(kind: Kind, **how: Any) -> Any:
        if error and kind is Kind.CLAIMS:
            raise error
        return read(kind, **how)

    cluster.list_page = list_page  # type: ignore[method-assign]
    objects = SimpleNamespace(host="here")
    access: Any = SimpleNamespace(cluster=cluster, objects=objects)
    return read_live(access, WhatIf(drain=drain), [])


def test_what_claims_hold_is_not_free() -> None:
    """Not on a node that is drained either; a pod that waits for one is not tried."""
    pods = [with_claim("uses", "node-1"), with_claim("waits"), asking("big", 25)]
    for drain in ([], ["node-1"]):
        found = live_with_claims(claimed("c", 8), pods=pods, drain=drain)
        assert "1 ResourceClaim keeps its part of cards" in " ".join(found.remarks)
        assert "1 pod with ResourceClaims" in " ".join(found.remarks)
        played = play(found, found.choice)
        assert places(played) == {"big": "node-2 card 0"}
        assert played.moments[-1].held_units == 8 + 25


@pytest.mark.parametrize(
    ("pods", "error", "words"),
    [
        ([with_claim("a")], Forbidden("no right"), "cannot be read: no right"),
        ([with_claim("a")], NotFound("no such path"), ""),
        ([offering("p")], Forbidden("no right"), "cannot be read: no right"),
        ([following("x")], Forbidden("no right"), "cannot be read: no right"),
        ([], Forbidden("no right"), ""),
    ],
)
def test_claims_that_cannot_be_read_are_not_known(
    pods: list[Json], error: ClusterError, words: str
) -> None:
    """Which is said; where nothing has to do with claims nobody asks for them."""
    told = " ".join(live_with_claims(pods=pods, error=error).remarks)
    assert ("counted as free" in told) is bool(words)
    assert words in told


def test_claims_on_nodes_whose_cards_are_not_known_are_left_out() -> None:
    """Such a node is played without cards, and one that is gone not at all."""
    bad = claimed("bad", 8)
    bad["status"]["allocation"]["devices"]["results"][0]["pool"] = "broken"
    gone = claimed("gone", 8)
    gone["status"]["allocation"]["devices"]["results"][0]["pool"] = "gone"
    found = live_with_claims(bad, gone, pods=[with_claim("a")], more=[broken()])
    assert found.claims == ()


def test_a_claim_that_is_not_understood_is_named() -> None:
    broken = claimed("broken", 4)
    results = broken["status"]["allocation"]["devices"]["results"]
    del results[0]["consumedCapacity"]
    told = live_with_claims(broken, pods=[with_claim("a")]).remarks
    assert told[-1].endswith("counted as free: default/broken.")


ELSEWHERE = {"name": "GPUSHARE_POLICY", "valueFrom": {"configMapKeyRef": {}}}
HIDDEN = (
    "The extender's policy is not known: GPUSHARE_POLICY may come from a ConfigMap or "
    "a Secret, which are not read; first-fit is used."
)
POLICIES = {
    "elsewhere": ({"env": [ELSEWHERE]}, HIDDEN),
    "all elsewhere": ({"env": [], "envFrom": [{}]}, HIDDEN),
    "newer": (
        {"env": [{"name": "GPUSHARE_POLICY", "value": "newest"}]},
        'The extender\'s policy "newest" is not known here; first-fit is used.',
    ),
    "none": ({"env": []}, "The policy is the extender's: first-fit."),
    "own": (
        {"env": [{"name": "GPUSHARE_POLICY", "value": "spread"}]},
        "The policy is the extender's: spread.",
    ),
    "no extender": (None, "No extender was found; the policy first-fit is used."),
}


@pytest.mark.parametrize(("container", "words"), POLICIES.values(), ids=POLICIES)
def test_whose_policy_is_used(container: Json | None, words: str) -> None:
    own = extender()
    own["spec"]["containers"][0] |= container or {}
    found, _ = live(nodes(), *([] if container is None else [own]))
    assert found.remarks[0] == words
    assert found.choice.default in words


def test_pods_that_are_being_deleted() -> None:
    """They hold their cards to the end, and nobody makes them anew."""
    going = held("going", A, 20, "node-1")
    going["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    waits = pod_json("waits", units=20, cores=1, terminating=True)
    for what in ({"drain": ["node-1"]}, {"afresh": True}):
        _, done = live(nodes(), going, waits, **what)
        assert places(done) == {}
    (node,) = live(nodes()[:1], going, afresh=True)[1].cluster.ledger.nodes()
    assert [one.pod.name for one in node.placements.values()] == ["going"]


NO = Forbidden("no")
RIGHTS: dict[str, tuple[Mapping[str, ClusterError], Json, str]] = {
    "each once": (
        {"nodes": NO, "app": NO, "other": NO},
        {"username": "jane"},
        ' does not let "jane" list nodes, get deployments.apps in edge',
    ),
    # Such as an aggregated API that is down.
    "not known is not missing": (
        {"pods": NO, "app": Unavailable("down")},
        {"username": "jane"},
        ' does not let "jane" list pods in all namespaces',
    ),
    # The refusal has it.
    "before Kubernetes 1.28": (
        {"nodes": NO},
        {},
        " does not let you list nodes (nodes is forbidden)",
    ),
    # Then the refusal itself is all there is.
    "granted meanwhile": ({}, {}, ": nodes is forbidden"),
}


@pytest.mark.parametrize(("fails", "who", "words"), RIGHTS.values(), ids=RIGHTS)
def test_whose_rights_are_missing(
    fails: Mapping[str, ClusterError], who: Json, words: str
) -> None:
    """On a real API server: ``tests/controlplane/test_simulate_live.py``."""

    def read(name: str) -> None:
        if name in fails:
            raise fails[name]

    server = SimpleNamespace(
        host="https://here",
        list_page=lambda kind, *, limit: read(kind.value * limit),
        get=lambda ref: read(ref.name),
        create=lambda _: {"status": {"userInfo": who}},
    )
    access: Any = SimpleNamespace(cluster=server, objects=server)
    more = [MorePods("edge/app=1"), MorePods("edge/other=1")]
    told = describe_missing_rights(access, more, FORBIDDEN)
    assert told.startswith(f"https://here{words}; take an administrator's kubeconfig")
