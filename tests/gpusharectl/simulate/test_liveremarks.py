"""What the report says of the cluster it began with; who is tried, and who is not."""

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.simulate.engine import play
from gpusharectl.simulate.live import LiveError, WhatIf, live_scenario
from gpusharectl.simulate.result import not_played
from tests.builders import card, container_json, pod_json
from tests.gpusharectl.cluster_states import extender, node_of
from tests.gpusharectl.simulate.scenes import places
from tests.gpusharectl.simulate.test_live import A, B, gated, held, nodes

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
        "Not tried: 1 pod held back by scheduling gates; 2 pods that wait and ask no "
        "card."
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
        "Cards not known, and counted as none: broken, silent; gpusharectl inspect "
        "says why."
    )
    assert of_pods == (
        "Card not known, so room is kept on every card of the node, and nothing "
        "counted as allotted: default/astray, default/copied."
    )
    with pytest.raises(LiveError, match="it has not told its cards; gpusharectl ins"):
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
            "ConfigMap or a Secret, which are not read; first-fit is taken."
        )
    newer = {"name": "GPUSHARE_POLICY", "value": "newest"}
    assert policy_of(env=[newer]) == (
        'The extender\'s policy "newest" is not known here; first-fit is taken.'
    )
    assert policy_of(env=[]) == "The extender's own policy is first-fit."


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
    (page,) = play(found, found.choice).world.ledger.nodes()
    assert [one.pod.name for one in page.placements.values()] == ["going"]


def test_a_new_node_has_no_daemons_yet() -> None:
    """Where the cluster runs any, the report says that they are left out."""
    agent = held("agent", B, 1, "node-2")
    what = WhatIf(add={"node-1": 1})
    sentence = "DaemonSets' pods on added nodes: each begins empty"
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
