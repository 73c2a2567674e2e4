"""The claims of a pod, and what a claim asks of cards."""

import pytest

from gpushare.domain.model import Amount
from gpushare.kube.claims.asked import ClaimUse, claims_of, requests_of, uses_of
from gpushare.kube.claims.templates import template
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from tests.builders import claim_json


def test_what_a_claim_asks_for() -> None:
    """Of our class, with the slice's defaults where it says nothing."""
    asked = {"capacity": {"requests": {"memory": "5Gi", "cores": "20"}}}
    ours = {"deviceClassName": "vcuda"}
    claim = claim_json()
    claim["spec"]["devices"]["requests"] = [
        {"name": "a", "exactly": ours | asked},
        {"name": "b", "exactly": ours},
        {"name": "c", "exactly": {"deviceClassName": "gpu.nvidia.com"} | asked},
        {"name": "d", "firstAvailable": [{"name": "x", **ours}]},
    ]
    assert requests_of(claim) == {"a": Amount(20, 20), "b": Amount(1, 1)}


def test_requests_that_must_be_of_one_card_count_as_one() -> None:
    """So a template of two parts asks one card for their sum."""
    claim = template([Amount(20, 8), Amount(1, 4)])["spec"]
    assert requests_of(claim) == {"card-1+card-2": Amount(21, 12)}
    (constraint,) = claim["spec"]["devices"]["constraints"]
    # Without names it is about all requests.
    del constraint["requests"]
    assert requests_of(claim) == {"card-1+card-2": Amount(21, 12)}
    constraint["requests"] = ["card-2", "another"]
    assert requests_of(claim) == {"card-1": Amount(20, 8), "card-2": Amount(1, 4)}
    constraint["requests"] = 1
    with pytest.raises(Malformed, match="constraints"):
        requests_of(claim)
    constraint["matchAttribute"] = "vcuda.baidu.com/model"
    assert len(requests_of(claim)) == 2


def test_the_claims_of_a_pod() -> None:
    """By their own names, also where a template gives them."""
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "mine"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "not-yet", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {
            "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-x1"}]
        },
    }
    found = {"own": "mine", "made": "p-x1", "not-yet": ""}
    assert claims_of(pod) == found
    assert claims_of({"spec": {}}) == {}


def test_who_uses_the_claims_of_a_pod() -> None:
    """Each container by what it names; an init container may end before the others."""

    def container(name: str, *uses: dict[str, str], **more: str) -> Json:
        return {"name": name, "resources": {"claims": list(uses)}, **more}

    pod: Json = {
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "mine"},
                {"name": "not-yet", "resourceClaimTemplateName": "t"},
            ],
            "initContainers": [
                container("first", {"name": "own"}),
                container("beside", {"name": "own"}, restartPolicy="Always"),
            ],
            "containers": [
                container("a", {"name": "own", "request": "left/small"}),
                container("b", {"name": "not-yet"}),
                {"name": "c"},
            ],
        }
    }
    assert uses_of(pod) == (
        ClaimUse("mine", "first", ends=True),
        ClaimUse("mine", "beside"),
        ClaimUse("mine", "a", "left"),
        ClaimUse("", "b"),
    )
