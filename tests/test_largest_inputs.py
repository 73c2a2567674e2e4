"""What nodes and tenants write costs no more than its length: ``docs/security.md``."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
import pytest

from extender.scheduling.service import SchedulingVerbs, WaitAllowance
from extender.scheduling.state import ExtenderState
from extender.scheduling.wire import read_extender_args
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.policies import Policy
from gpushare.informers.nodes import NodeInformer
from gpushare.kube import names
from gpushare.kube.cluster import Json, WatchEvent
from gpushare.kube.json_reader import Malformed
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.why.claim_requests import read_card_requests
from tests.builders import card, node_json
from tests.work import work
from webhook.pool import CardPool, read_pool_node
from webhook.rules.review import ReviewSettings, review_pod

PAGE = Path(__file__).parent.parent / "docs/security.md"
ALL = ReviewSettings(void=True, set_scheduler="s", quotas=True)
POOL = CardPool.of([read_pool_node(node_json("n", *(card(i, 29) for i in range(8))))])


def container(number: int, amount: str = "1", cores: str = "1") -> Json:
    limits = {names.MEMORY: amount, names.CORE: cores}
    return {"name": f"c{number}", "resources": {"limits": limits}}


def pod(
    apps: int = 1, init: int = 0, amount: str = "1", cores: str = "1", **notes: str
) -> Json:
    its = {f"{names.PREFIX}-{key}": value for key, value in notes.items()}
    return {
        "metadata": {
            "name": "p",
            "namespace": "d",
            "uid": "uid-p",
            "annotations": its,
        },
        "spec": {
            "containers": [container(i, amount, cores) for i in range(apps)],
            "initContainers": [container(apps + i) for i in range(init)],
        },
    }


def judged(body: Json) -> None:
    """Review, filter and record the pod, and again with the node that it names."""
    state = ExtenderState(wait_s=0.0, pending_for_s=1.0, page=True)
    for name in ("n", "m"):
        node = node_json(name, *(card(i, 29) for i in range(8)))
        state.nodes.apply(WatchEvent("ADDED", node))
    new = {**body, "metadata": {**body["metadata"]}}
    del new["metadata"]["uid"]
    review_pod(new, namespace="d", mutating=True, mode="", rules=ALL, pool=POOL)
    asked = orjson.dumps({"Pod": body, "NodeNames": ["n", "m"]})
    SchedulingVerbs(Embedded(), state, WaitAllowance(0.0)).filter(
        read_extender_args(asked)
    )
    state.pods.apply(WatchEvent("ADDED", body))
    bound = {**body, "spec": {**body["spec"], "nodeName": "n"}}
    state.pods.apply(WatchEvent("MODIFIED", bound))


def refused(body: Json) -> None:
    with pytest.raises(Malformed, match="it is not a Kubernetes quantity"):
        judged(body)


def recorded(annotation: str, text: str) -> None:
    book = NodeInformer(Ledger(), with_properties=True)
    node = node_json("n", card(0, 29), annotations={annotation: text})
    book.apply(WatchEvent("ADDED", node))


def cards_text(number: int) -> str:
    shared = [{"uuid": f"G{i}", "index": i, "units": 1} for i in range(number)]
    return orjson.dumps({"v": 1, "cards": shared, "links": 10}).decode()


def placed(number: int) -> str:
    """A placement of so many shares, and of a container of each; one is whole."""
    one = {"cores": 1, "units": 1, "containers": {"c0": [1, 1]}}
    shares = [one | {"card": f"GPU-{i}"} for i in range(number)]
    shares[0]["cores"] = 100
    return orjson.dumps({"v": 1, "uid": "uid-p", "shares": shares}).decode()


def claim(number: int) -> Json:
    cel = {"cel": {"expression": "device.driver == " * number}}
    one = {"name": "r", "exactly": {"deviceClassName": "x", "selectors": [cel] * 32}}
    return {"spec": {"devices": {"requests": [one | {"name": f"r{number}"}] * 32}}}


CASES: dict[str, tuple[int, Callable[[int], object]]] = {
    "`vcuda-cards`": (200, lambda n: recorded(names.CARDS, cards_text(n))),
    "`vcuda-cordon`, `vcuda-clear`": (
        4000,
        lambda n: recorded(names.CORDON, ",".join(f"GPU-{i}" for i in range(n))),
    ),
    "containers of a pod": (200, lambda n: judged(pod(n))),
    "init containers of a pod": (200, lambda n: judged(pod(1, n))),
    "containers of whole cards": (100, lambda n: judged(pod(n, cores="100"))),
    "containers *apart*": (200, lambda n: judged(pod(n, containers="apart"))),
    "`vcuda-placement`, `vcuda-actual`": (
        200,
        lambda n: judged(pod(placement=placed(n))),
    ),
    "`vcuda-models`, `vcuda-uuids`": (
        4000,
        lambda n: judged(pod(models="a," * n, uuids="b," * n)),
    ),
    "`vcuda-policy`, `vcuda-containers`": (
        4000,
        lambda n: judged(pod(policy="x" * n, containers="y" * n)),
    ),
    "other annotations, resources": (
        400,
        lambda n: judged(pod(**{f"mdoels{i}": "" for i in range(n)})),
    ),
    "quantities": (1000, lambda n: refused(pod(amount="9" * (40 + n)))),
    "requests of a ResourceClaim": (400, lambda n: read_card_requests(claim(n), {})),
}


def test_the_page_lists_what_is_tried_here() -> None:
    section = PAGE.read_text().partition("## What others write")[2]
    rows = re.findall(r"^\| (.+?) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert set(rows) - {"what"} == set(CASES) | {"what an exporter answers"}


@pytest.mark.parametrize("what", CASES)
def test_twice_as_much_costs_no_more_than_twice(what: str) -> None:
    """Counted in calls, so that the machine does not matter; some are even refused."""
    size, write = CASES[what]
    write(1)
    few, many = (work(partial(write, number)) for number in (size, 2 * size))
    assert many < 2.5 * few


def test_a_node_of_the_largest_size_is_judged_in_bounds() -> None:
    """All partitions of 64 cards would be 10^28."""
    scores = [(i * 7919) % 10_000 for i in range(64 * 63 // 2)]
    body = orjson.loads(cards_text(64)) | {"links": scores}
    state = ExtenderState(wait_s=0.0, pending_for_s=1.0)
    text = orjson.dumps(body).decode()
    node = node_json("n", annotations={names.CARDS: text})
    state.nodes.apply(WatchEvent("ADDED", node))
    policy = state.choice.policy(None)
    asked = pod()
    asked["spec"]["containers"][0]["resources"]["limits"] = {names.CORE: "200"}
    request = read_extender_args(
        orjson.dumps({"Pod": asked, "NodeNames": ["n"]})
    ).request
    assert isinstance(request, PodRequest)
    assert isinstance(policy, Policy)
    plan = partial(state.ledger.reserve, request, NodeName("n"), policy)
    assert work(plan) < 250_000
    assert state.ledger.reservations()
