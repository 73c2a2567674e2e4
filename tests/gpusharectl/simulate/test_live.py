"""What if, asked of a cluster that runs: read over HTTP, and never written.

Pods of a cluster that come anew: as they were before they ran, by free names.

What the report says of the cluster it began with; who is tried, and who is not.

Whose rights are missing, and which, in one sentence.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace

import orjson
import pytest
from click.testing import CliRunner, Result

from gpushare.domain.policies import Choice
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, Page
from gpushare.kube.errors import ClusterError, Forbidden, Unavailable
from gpushare.kube.objects import Ref
from gpusharectl.__main__ import main
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.simulate.engine import Outcome, play
from gpusharectl.simulate.live import (
    LiveError,
    MorePods,
    WhatIf,
    live_scenario,
    read_live,
    without_rights,
)
from gpusharectl.simulate.result import not_played
from tests.builders import bound_json, card, container_json, placement, pod_json
from tests.gpusharectl.cluster_states import MADE, extender, node_of
from tests.gpusharectl.simulate.building import outcomes, places
from tests.gpusharectl.test_inspect import put

A, B = "GPU-aaaaaaaa", "GPU-bbbbbbbb"


def nodes() -> list[Json]:
    first = node_of("node-1", card(0, 29, uuid=A))
    second = node_of("node-2", card(0, 29, uuid=B))
    return [first, second]


def held(name: str, on: str, units: int, node: str) -> Json:
    pod = bound_json(placement(name, on, units, 1, node=node))
    pod["metadata"]["creationTimestamp"] = MADE
    return pod


def pods() -> list[Json]:
    return [
        held("old", A, 20, "node-1"),
        held("other", B, 12, "node-2"),
        pod_json("waits", units=25, cores=1),
        pod_json("gated", units=1, cores=1) | {"spec": gated()},
        pod_json("plain"),
    ]


def gated() -> Json:
    spec: Json = pod_json("gated", units=1, cores=1)["spec"]
    return {**spec, "schedulingGates": [{"name": "hold"}]}


def what_if(
    what: WhatIf | None = None, of: Sequence[Json] | None = None
) -> dict[str, str]:
    found = live_scenario(nodes(), of or pods(), what or WhatIf(), "here")
    return places(play(found, found.choice))


def test_pods_that_wait_are_tried_where_the_cluster_is_now() -> None:
    """What runs stays where it is; gates keep a pod from every scheduler."""
    assert what_if() == {"waits": "nowhere"}
    assert what_if(of=pods()[1:]) == {"waits": "node-1 card 0"}


def test_another_node() -> None:
    """Like one that is there: empty, and with cards of its own."""
    found = live_scenario(nodes(), pods(), WhatIf(add={"node-1": 2}), "here")
    done = play(found, found.choice)
    assert places(done)["waits"] in ("node-1-new-1 card 0", "node-1-new-2 card 0")
    pages = done.cluster.ledger.nodes()
    uuids = [one.uuid for page in pages for one in page.cards]
    assert len(set(uuids)) == len(uuids) == 4


def test_a_drained_node() -> None:
    """Its pods go elsewhere where there is room; what belongs to it stays."""
    its_own = held("agent", B, 1, "node-2")
    its_own["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "x"}]
    running = [held("a", A, 5, "node-1"), held("b", B, 12, "node-2"), its_own]
    found = live_scenario(nodes(), running, WhatIf(drain=["node-2"]), "here")
    done = play(found, found.choice)
    assert places(done) == {"b-moved-1": "node-1 card 0"}
    page = done.cluster.ledger.node(found.nodes[1]["metadata"]["name"])
    assert page is not None
    assert [one.pod.name for one in page.placements.values()] == ["agent"]


def test_ten_more() -> None:
    """As the Deployment would make them."""
    template = {"spec": {"containers": [container_json("main", 8, 1)]}}
    what = WhatIf(more=[("edge/app", template, 3)])
    found = live_scenario(nodes(), pods()[:2], what, "here")
    done = outcomes(play(found, found.choice))
    assert [str(one.pod) for one in done.values()] == [
        "edge/app-more-0-0",
        "edge/app-more-0-1",
        "edge/app-more-0-2",
    ]
    assert [one.outcome for one in done.values()].count(Outcome.PLACED) == 3


def test_afresh() -> None:
    """All that runs on cards is placed anew; its old card counts for nothing."""
    running = [held("a", A, 9, "node-1"), held("b", B, 9, "node-2")]
    found = live_scenario(nodes(), running, WhatIf(afresh=True), "here")
    assert found.there == ()
    best = places(play(found, Choice("best-fit")))
    wide = places(play(found, Choice("spread")))
    assert best == {"a": "node-1 card 0", "b": "node-1 card 0"}
    assert wide == {"a": "node-1 card 0", "b": "node-2 card 0"}


def test_the_extenders_policy_is_taken() -> None:
    """So far as its settings tell; the report says whose policy it is."""
    own = extender()
    env = [{"name": "GPUSHARE_POLICY", "value": "spread"}]
    own["spec"]["containers"][0]["env"] = env
    own["spec"]["nodeName"] = "node-1"
    found = live_scenario(nodes(), [own], WhatIf(), "here")
    assert found.choice == Choice("spread")
    assert found.remarks == ("The policy is the extender's: spread.",)
    bare = live_scenario(nodes(), [], WhatIf(), "here")
    assert bare.remarks == ("No extender was found; the policy first-fit is used.",)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(LiveError, match=r'no node "x"; there are: node-1, node-2'):
        live_scenario(nodes(), [], WhatIf(drain=["x"]), "here")
    broken = nodes()
    broken[0]["metadata"]["annotations"] = {names.CARDS: "{"}
    with pytest.raises(LiveError, match="a node like node-1 cannot be added"):
        live_scenario(broken, [], WhatIf(add={"node-1": 1}), "here")


class Deployments:
    """Objects of which some are Deployments."""

    host = "https://cluster"

    def get(self, ref: Ref) -> Json | None:
        template = {"spec": {"containers": [container_json("main", 8, 1)]}}
        return {"spec": {"template": template}} if ref.name == "app" else None


class Reached:
    def __init__(self, cluster: Embedded, objects: Deployments) -> None:
        self.cluster, self.objects = cluster, objects


def small() -> Embedded:
    found = Embedded()
    for node in nodes():
        found.create(Kind.NODES, node)
    put(found, held("old", A, 20, "node-1"))
    return found


def test_a_deployment_of_the_cluster() -> None:
    access = Reached(small(), Deployments())
    more = [MorePods("edge/app=2")]
    found = read_live(access, WhatIf(), more, "here")  # type: ignore[arg-type]
    assert found.arrivals == 2
    with pytest.raises(
        LiveError, match="there is no Deployment edge/none; kubectl get"
    ):
        read_live(access, WhatIf(), [MorePods("edge/none=2")], "here")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cluster() -> Embedded:
    return small()


@pytest.fixture(scope="module")
def kubeconfig(
    cluster: Embedded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with ApiServerOnLoopback(cluster) as server:
        yield str(server.kubeconfig(tmp_path_factory.mktemp("k") / "kubeconfig"))


def ran(kubeconfig: str, *words: str) -> Result:
    words = ("simulate", "--live", *words, "--kubeconfig", kubeconfig)
    return CliRunner().invoke(main, words)


def test_how_many_more_fit(cluster: Embedded, kubeconfig: str) -> None:
    """And the cluster is as it was."""
    before = cluster.list_page(Kind.PODS, limit=0).resource_version
    done = ran(kubeconfig, "--room", "9", "--room", "cards=1", "-o", "json")
    assert done.exit_code == 0, done.output
    found = orjson.loads(done.stdout)
    assert [room["number"] for room in found["runs"][0]["room"]] == [4, 1]
    drained = ran(kubeconfig, "--room", "9", "--drain", "node-2", "--policy", "spread")
    assert drained.stdout.startswith("Room for 1 more of 9 units")
    assert cluster.list_page(Kind.PODS, limit=0).resource_version == before


def test_a_pod_of_the_cluster_as_a_template(kubeconfig: str) -> None:
    done = ran(kubeconfig, "--more", "pod/default/old=2", "--add", "node-2=1")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Placed: 2 of 2 pods.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--drain", "x"], 'there is no node "x"; there are: node-1, node-2'),
        (["--more", "default/none=1"], "there is no Deployment default/none"),
        (["--context", "x"], "has no context 'x'"),
    ],
)
def test_complaints(kubeconfig: str, words: list[str], told: str) -> None:
    done = ran(kubeconfig, *words)
    assert done.exit_code == 1
    assert told in done.stderr


def test_refused_or_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: str
) -> None:
    """What is missing is said, and what to do; a trouble on the way is a sentence."""

    def fails(error: ClusterError) -> str:
        def everything(*_: object) -> Iterator[Json]:
            raise error

        where = "gpusharectl.simulate.live.everything"
        monkeypatch.setattr(where, everything)
        done = ran(kubeconfig)
        assert done.exit_code == 1
        return done.stderr

    assert "nodes is forbidden; take an administrator's" in fails(
        Forbidden("nodes is forbidden")
    )
    assert "http" in fails(ClusterError("it broke"))


def test_more_of_a_pod_that_ran() -> None:
    """Its node, gates and placement were its own; a name that is taken stays so."""
    ran = held("app", A, 8, "node-1")
    ran["spec"]["schedulingGates"] = [{"name": "hold"}]
    template = {**ran, "status": {"phase": "Succeeded"}}
    taken = held("app-more-0-0", B, 25, "node-2")
    taken["metadata"]["namespace"] = "edge"
    found = live_scenario(
        nodes(), [taken], WhatIf(more=[("edge/app", template, 2)]), "here"
    )
    assert places(play(found, found.choice)) == {
        "app-more-0-1": "node-1 card 0",
        "app-more-0-2": "node-1 card 0",
    }


def test_a_template_that_cannot_be_played() -> None:
    wrong = {"spec": {"containers": [container_json("main", 8, 1)], "tolerations": 5}}
    with pytest.raises(
        LiveError, match=r"edge/app can be added: spec\.tolerations: must be a l"
    ):
        live_scenario(nodes(), [], WhatIf(more=[("edge/app", wrong, 1)]), "here")


def test_a_drained_pod_forgets_where_it_was() -> None:
    """Else the books would take its old card for the one it holds."""
    mover = held("a", A, 9, "node-1")
    told = mover["metadata"]["annotations"]
    told[names.ACTUAL] = told[names.PLACEMENT]
    found = live_scenario(nodes(), [mover], WhatIf(drain=["node-1"]), "here")
    done = play(found, found.choice)
    assert places(done) == {"a-moved-1": "node-2 card 0"}
    stored = done.cluster.api.get(Kind.PODS, "default", "a-moved-1")
    assert set(stored["metadata"]["annotations"]) == {names.PLACEMENT}


TEMPLATE: Json = {"spec": {"containers": [container_json("main", 8, 1)]}}


def remarks(
    *pods: Json, what: WhatIf | None = None, of: list[Json] | None = None
) -> list[str]:
    found = live_scenario(of or nodes(), pods, what or WhatIf(), "here")
    return list(found.remarks)[1:]


def policy_of(**container: object) -> str:
    own = extender()
    own["spec"]["containers"][0] |= container
    return live_scenario(nodes(), [own], WhatIf(), "here").remarks[0]


def test_what_is_played_in_its_order() -> None:
    running = held("a", A, 9, "node-1")
    more = [("edge/app", TEMPLATE, 1), ("edge/db", TEMPLATE, 2)]
    what = WhatIf({"node-1": 2}, ["node-2"], more, afresh=True)
    (found,) = remarks(running, pod_json("b", units=1, cores=1), what=what)
    assert found == (
        "Played, in this order: 2 nodes like node-1 are added; 1 pod with cards is "
        "placed afresh; 1 pod that waits is tried; node-2 is drained; 1 more of "
        "edge/app comes; 2 more of edge/db come."
    )
    two = [pod_json(name, units=1, cores=1) for name in "ab"]
    assert remarks(*two) == ["Played: 2 pods that wait are tried."]


def test_who_is_not_tried() -> None:
    pods = [pod_json("gated") | {"spec": gated()}, pod_json("a"), pod_json("b")]
    (found,) = remarks(*pods)
    assert found == (
        "Not tried: 1 pod with scheduling gates; 2 pods that ask for no card."
    )


def test_what_nobody_knows() -> None:
    """Cards that no node has told, and a pod on one that nobody has named."""
    broken = node_of("broken", annotations={names.CARDS: "{"})
    silent = node_of("silent", annotations={})
    silent["metadata"]["annotations"] = {}
    astray = pod_json("astray", units=4, cores=1, node="node-1")
    copied = held("copied", A, 4, "node-1")
    copied["metadata"]["uid"] = "of-another-pod"
    of_nodes, of_pods = remarks(
        astray, copied, held("well", A, 4, "node-1"), of=[*nodes(), broken, silent]
    )
    assert of_nodes == (
        "Cards not known, so counted as none, on: broken, silent; gpusharectl inspect "
        "says why."
    )
    assert of_pods == (
        "Card not known, so room is kept on every card of the node and nothing is "
        "counted as allotted, for: default/astray, default/copied."
    )
    with pytest.raises(
        LiveError, match="it has not reported its cards; gpusharectl ins"
    ):
        live_scenario([silent], [], WhatIf(add={"silent": 1}), "here")


def test_an_empty_cluster() -> None:
    with pytest.raises(LiveError, match='there is no node "x"; there are: none'):
        live_scenario([], [], WhatIf(drain=["x"]), "here")


def test_a_policy_that_cannot_be_read() -> None:
    """It is not called the extender's own."""
    elsewhere = {"name": "GPUSHARE_POLICY", "valueFrom": {"configMapKeyRef": {}}}
    hidden: tuple[Json, ...] = ({"env": [elsewhere]}, {"env": [], "envFrom": [{}]})
    for told in hidden:
        assert policy_of(**told) == (
            "The extender's policy is not known: GPUSHARE_POLICY may come from a "
            "ConfigMap or a Secret, which are not read; first-fit is used."
        )
    newer = {"name": "GPUSHARE_POLICY", "value": "newest"}
    assert policy_of(env=[newer]) == (
        'The extender\'s policy "newest" is not known here; first-fit is used.'
    )
    assert policy_of(env=[]) == "The policy is the extender's: first-fit."


def test_the_most_important_of_those_that_wait_comes_first() -> None:
    """As in kube-scheduler's queue, however late it was made."""
    low, high = (
        pod_json(name, units=29, cores=1, priority=priority)
        for name, priority in (("a-low", 0), ("b-high", 7))
    )
    found = live_scenario(nodes()[:1], [low, high], WhatIf(), "here")
    done = places(play(found, found.choice))
    assert done == {"a-low": "nowhere", "b-high": "node-1 card 0"}


def test_pods_that_are_being_deleted() -> None:
    """They hold their cards to the end, and nobody makes them anew."""
    going = held("going", A, 20, "node-1")
    going["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    waits = pod_json("waits", units=20, cores=1, terminating=True)
    for what in (WhatIf(drain=["node-1"]), WhatIf(afresh=True)):
        found = live_scenario(nodes(), [going, waits], what, "here")
        assert places(play(found, found.choice)) == {}
    found = live_scenario(nodes()[:1], [going], WhatIf(afresh=True), "here")
    (page,) = play(found, found.choice).cluster.ledger.nodes()
    assert [one.pod.name for one in page.placements.values()] == ["going"]


def test_a_new_node_has_no_daemons_yet() -> None:
    """Where the cluster runs any, the report says that they are left out."""
    agent = held("agent", B, 1, "node-2")
    what = WhatIf(add={"node-1": 1})
    sentence = "pods of DaemonSets on added nodes, which begin empty"
    assert sentence not in not_played(live_scenario(nodes(), [agent], what, "here"))
    agent["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "x"}]
    assert sentence in not_played(live_scenario(nodes(), [agent], what, "here"))
    assert sentence not in not_played(live_scenario(nodes(), [agent], WhatIf(), "h"))


def test_a_node_without_cards_may_be_added() -> None:
    """For its CPU; nobody expects cards of it."""
    plain = node_of("plain", card(0, 1), labelled=False)
    plain["metadata"]["annotations"] = {}
    what = WhatIf(add={"plain": 1})
    assert remarks(what=what, of=[plain]) == ["Played: 1 node like plain is added."]


FIRST = Forbidden("nodes is forbidden")
MEND = (
    "; take an administrator's kubeconfig by --kubeconfig, or have what is missing "
    "granted: docs/simulator.md has a ClusterRole"
)
APP = ("deployments.apps", Ref("apps/v1", "Deployment", "app", "edge"))
OTHER = ("deployments.apps", Ref("apps/v1", "Deployment", "other", "edge"))


class Guarded:
    """An API server on which some reads fail, by what they are called here."""

    host = "https://here"

    def __init__(
        self, fails: Mapping[str, ClusterError], who: Json | ClusterError
    ) -> None:
        self._fails, self._who = fails, who

    def list_page(self, kind: Kind, *, limit: int) -> Page:
        assert limit == 1, "a look, not a list"
        self._read(kind.value)
        return Page((), "1")

    def get(self, ref: Ref) -> None:
        self._read(ref.name)

    def create(self, body: Json) -> Json:
        assert body["kind"] == "SelfSubjectReview"
        if isinstance(self._who, ClusterError):
            raise self._who
        return {"status": self._who}

    def _read(self, name: str) -> None:
        if name in self._fails:
            raise self._fails[name]


def told(fails: Mapping[str, ClusterError], who: Json | ClusterError) -> str:
    server = Guarded(fails, who)
    access = SimpleNamespace(cluster=server, objects=server)
    return without_rights(access, [APP, OTHER], FIRST)  # type: ignore[arg-type]


JANE: Json = {"userInfo": {"username": "jane"}}
NO = Forbidden("no")


def test_all_at_once_and_each_once() -> None:
    fails = {Kind.NODES.value: NO, "app": NO, "other": NO}
    found = 'https://here does not let "jane" list nodes, get deployments.apps in edge'
    assert told(fails, JANE) == f"{found}{MEND}"


def test_what_nobody_can_tell_is_not_called_missing() -> None:
    """Such as an aggregated API that is down."""
    fails = {Kind.PODS.value: NO, "app": Unavailable("down")}
    found = 'https://here does not let "jane" list pods in all namespaces'
    assert told(fails, JANE) == f"{found}{MEND}"


def test_an_account_without_a_name() -> None:
    """Before Kubernetes 1.28, or where it may not be asked: the refusal has it."""
    found = "https://here does not let you list nodes (nodes is forbidden)"
    nameless: tuple[Json | ClusterError, ...] = (NO, {})
    for who in nameless:
        assert told({Kind.NODES.value: NO}, who) == f"{found}{MEND}"


def test_a_right_that_came_meanwhile() -> None:
    """Then the refusal itself is all there is."""
    assert told({}, JANE) == f"https://here: nodes is forbidden{MEND}"
