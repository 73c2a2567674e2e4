"""What if, asked of a cluster that runs: read over HTTP, and never written."""

from collections.abc import Iterator, Sequence

import orjson
import pytest
from click.testing import CliRunner, Result

from gpushare.domain.policies import Choice
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden
from gpushare.kube.objects import Ref
from gpusharectl.__main__ import main
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.simulate.engine import Outcome, play
from gpusharectl.simulate.live import (
    Further,
    LiveError,
    WhatIf,
    live_scenario,
    read_live,
)
from tests.builders import bound_json, card, container_json, placement, pod_json
from tests.gpusharectl.cluster_states import MADE, extender, node_of
from tests.gpusharectl.simulate.scenes import fates, places
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
    pages = done.world.ledger.nodes()
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
    page = done.world.ledger.node(found.nodes[1]["metadata"]["name"])
    assert page is not None
    assert [one.pod.name for one in page.placements.values()] == ["agent"]


def test_ten_more() -> None:
    """As the Deployment would make them."""
    template = {"spec": {"containers": [container_json("main", 8, 1)]}}
    what = WhatIf(more=[("edge/app", template, 3)])
    found = live_scenario(nodes(), pods()[:2], what, "here")
    done = fates(play(found, found.choice))
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
    assert found.remarks == ("The extender's own policy is spread.",)
    bare = live_scenario(nodes(), [], WhatIf(), "here")
    assert bare.remarks == (
        "No extender was found; first-fit is taken for its policy.",
    )


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
    more = [Further("edge/app=2")]
    found = read_live(access, WhatIf(), more, "here")  # type: ignore[arg-type]
    assert found.arrivals == 2
    with pytest.raises(
        LiveError, match="there is no Deployment edge/none; kubectl get"
    ):
        read_live(access, WhatIf(), [Further("edge/none=2")], "here")  # type: ignore[arg-type]


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
