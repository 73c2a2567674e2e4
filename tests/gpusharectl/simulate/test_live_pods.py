"""Pods of a cluster that come anew: as they were before they ran, by free names."""

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Kind
from gpusharectl.simulate.engine import play
from gpusharectl.simulate.live import LiveError, WhatIf, live_scenario
from tests.builders import container_json
from tests.gpusharectl.simulate.scenes import places
from tests.gpusharectl.simulate.test_live import A, B, held, nodes


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
        LiveError, match=r"no more of edge/app can come: spec\.tolerations: must be a l"
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
    stored = done.world.cluster.get(Kind.PODS, "default", "a-moved-1")
    assert set(stored["metadata"]["annotations"]) == {names.PLACEMENT}
