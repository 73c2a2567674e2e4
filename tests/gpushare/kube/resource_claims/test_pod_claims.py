"""The claims of a pod, and who uses them."""

from gpushare.kube.cluster import Json
from gpushare.kube.resource_claims.pod_claims import (
    ResourceClaimUse,
    read_claim_names,
    read_claim_uses,
)


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
    names = {"own": "mine", "made": "p-x1", "not-yet": ""}
    assert read_claim_names(pod) == names
    assert read_claim_names({"spec": {}}) == {}


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
    assert read_claim_uses(pod) == (
        ResourceClaimUse("mine", "first", ends=True),
        ResourceClaimUse("mine", "beside"),
        ResourceClaimUse("mine", "a", "left"),
        ResourceClaimUse("", "b"),
    )
