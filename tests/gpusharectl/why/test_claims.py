"""why for a pod with ResourceClaims: each card's answer."""

from functools import partial

import pytest

from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Forbidden
from gpusharectl.why.claims import by_claims
from gpusharectl.why.explain import ByClaims
from gpusharectl.why.render import draw_answer
from gpusharectl.why.serialize import answer_data
from tests.builders import (
    allocation_json,
    bound_json,
    card,
    claim_json,
    placement,
    pod_json,
)
from tests.gpusharectl.cluster_states import cluster_state, node_of
from tests.gpusharectl.golden import drawn

STATE = cluster_state(
    [node_of("n", card(0, 29), card(1, 29), card(2, 29, healthy=False))],
    [bound_json(placement("other", 0, 20, 1, node="n"))],
)


def claimed(units: int = 10, class_name: str = "vcuda") -> Json:
    """A claim that asks for this much."""
    claim = claim_json("mine")
    asked = {"memory": f"{units * 256}Mi", "cores": "10"}
    exactly = {"deviceClassName": class_name, "capacity": {"requests": asked}}
    claim["spec"]["devices"]["requests"] = [{"name": "card", "exactly": exactly}]
    return claim


def explained(claim: Json | None, *, template: bool = False) -> ByClaims | None:
    cluster = Embedded()
    if claim is not None:
        status = {"status": claim["status"]}
        cluster.create(Kind.CLAIMS, claim)
        cluster.patch(Kind.CLAIMS, "default", "mine", status, subresource="status")
    pod = pod_json("p")
    named = {"resourceClaimTemplateName": "t"} if template else {}
    pod["spec"]["resourceClaims"] = [
        {"name": "card", **(named or {"resourceClaimName": "mine"})}
    ]
    if template and claim is not None:
        made = {"name": "card", "resourceClaimName": "mine"}
        pod["status"]["resourceClaimStatuses"] = [made]
    return by_claims(cluster, STATE, pod)


@pytest.mark.parametrize("template", [False, True])
def test_each_card_answers(template: bool) -> None:
    """Those with room first; the others say what is left and what was asked."""
    answer = explained(claimed(), template=template)
    assert answer is not None
    (verdict,) = answer.claims
    assert verdict.room == ("card 1 of node n",)
    assert verdict.refusals == (
        "card GPU-0 of node n has 9 units left, not 10",
        "card GPU-2 of node n is sick",
    )
    assert answer.code == 3
    text = " ".join(drawn(partial(draw_answer, answer=answer, state=STATE)).split())
    assert "it asks for 10 units (2.5 GiB)" in text
    assert "card 1 of node n has room" in text
    assert "has 9 units left, not 10" in text
    data = answer_data(answer, STATE.placements)
    assert (data["state"], data["code"]) == ("by-claims", 3)
    assert data["claims"][0]["room"] == ["card 1 of node n"]


def test_an_allocated_claim_says_what_it_has() -> None:
    claim = claimed() | {"status": {"allocation": allocation_json("gpu-1", units=10)}}
    answer = explained(claim)
    assert answer is not None
    assert answer.claims[0].words.startswith("it has card 1, 10 units")
    assert answer.code == 0


@pytest.mark.parametrize("claim", [claimed(class_name="gpu.nvidia.com"), None])
def test_claims_of_others_are_not_explained(claim: Json | None) -> None:
    """Nor such as do not exist: nobody knows whose they would be."""
    assert explained(claim) is None
    assert explained(None, template=True) is None


def test_a_pod_without_claims_is_explained_as_before() -> None:
    assert by_claims(Embedded(), STATE, pod_json("p", units=4)) is None


def test_a_claim_that_cannot_be_read_is_not_known() -> None:
    """Which is not the same as no claim."""

    class Closed(Embedded):
        def get(self, kind: Kind, namespace: str, name: str) -> Json:
            raise Forbidden(f"{kind} is forbidden")

    pod = pod_json("p")
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "mine"}]
    answer = by_claims(Closed(), STATE, pod)
    assert answer is not None
    assert answer.claims[0].words.startswith("not known")
    assert answer.code == 3
