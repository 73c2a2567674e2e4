"""ResourceClaims to our nouns, and cards to names of devices."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.model import Amount, CardUUID
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.resource_claims.allocated import (
    AllocatedDevice,
    ResourceClaim,
    ResourceClaimUse,
    ResourceClaimUser,
    name_device,
    read_claim_names,
    read_claim_uses,
    read_resource_claim,
)
from tests.builders import allocation_json, claim_json

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
UUIDS = st.one_of(
    st.from_regex(r"(GPU|MIG|gpu|card)-[-0-9a-fA-F]{0,70}", fullmatch=True),
    st.text(min_size=1, max_size=80),
)


@given(st.lists(UUIDS, unique=True, min_size=1))
def test_each_card_has_a_name_of_its_own(uuids: list[str]) -> None:
    """Each is a DNS label, and no two are the same."""
    names = [name_device(CardUUID(uuid)) for uuid in uuids]
    assert all(LABEL.fullmatch(name) for name in names)
    assert len(set(names)) == len(names)


def test_cards_that_differ_in_capitals_have_different_names() -> None:
    """Simulated cards may be called anything."""
    names = {
        name_device(CardUUID(uuid)) for uuid in ("GPU-a", "gpu-a", "GPU-A", "Gpu-a")
    }
    assert len(names) == 4


def test_a_claim_with_everything() -> None:
    """Who it is, which devices of which node it has, and for which pods."""
    claim = claim_json("c", allocation_json("gpu-1", units=20, cores=30, node="n1"))
    pod = {"resource": "pods", "name": "p", "uid": "uid-p"}
    other = {"apiGroup": "x.io", "resource": "jobs", "name": "j", "uid": "uid-j"}
    claim["status"]["reservedFor"] = [pod, other]
    assert read_resource_claim(claim) == ResourceClaim(
        "uid-c",
        "default",
        "c",
        "n1",
        (AllocatedDevice("card", "gpu-1", Amount(30, 20), "share-gpu-1"),),
        (ResourceClaimUser("p", "uid-p"),),
    )


@pytest.mark.parametrize(
    ("memory", "units"),
    [("256Mi", 1), ("257Mi", 2), ("5Gi", 20), ("1", 1), ("0", 0), ("5368709120", 20)],
)
def test_memory_is_rounded_up_to_units(memory: str, units: int) -> None:
    """The ledger never charges less than the claim has."""
    allocation = allocation_json()
    result = allocation["devices"]["results"][0]
    result["consumedCapacity"]["memory"] = memory
    names = read_resource_claim(claim_json("c", allocation))
    assert names is not None
    assert names.devices[0].amount.units == units


def without_results(claim: Json) -> Json:
    del claim["status"]["allocation"]["devices"]["results"]
    return claim


def of_another_driver(claim: Json) -> Json:
    claim["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"
    return claim


def for_an_admin(claim: Json) -> Json:
    claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    return claim


@pytest.mark.parametrize(
    "claim",
    [
        claim_json("c"),
        claim_json("c") | {"status": {}},
        claim_json("c") | {"status": {"allocation": {}}},
        without_results(claim_json("c", allocation_json())),
        of_another_driver(claim_json("c", allocation_json())),
        for_an_admin(claim_json("c", allocation_json())),
    ],
)
def test_claims_that_hold_nothing_of_ours(claim: Json) -> None:
    """Not allocated, another driver's, or an administrator's look at a device."""
    assert read_resource_claim(claim) is None


def test_results_of_other_drivers_are_left_out() -> None:
    """A claim may have a network card beside its card."""
    claim = claim_json("c", allocation_json("gpu-1"))
    results = claim["status"]["allocation"]["devices"]["results"]
    results.insert(
        0, {"request": "net", "driver": "net.io", "pool": "x", "device": "d"}
    )
    names = read_resource_claim(claim)
    assert names is not None
    assert [device.name for device in names.devices] == ["gpu-1"]


RESULT = "status.allocation.devices.results[0]"


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("pool", None, "pool"),
        ("device", "", "device"),
        ("consumedCapacity", None, "consumedCapacity"),
        ("consumedCapacity", {"cores": "1"}, "consumedCapacity.memory"),
        ("consumedCapacity", {"memory": "1Gi"}, "consumedCapacity.cores"),
        ("consumedCapacity", {"memory": "x", "cores": "1"}, "consumedCapacity.memory"),
        ("consumedCapacity", {"memory": "-1", "cores": "1"}, "consumedCapacity.memory"),
        (
            "consumedCapacity",
            {"memory": "1Ei", "cores": "1"},
            "consumedCapacity.memory",
        ),
        ("consumedCapacity", {"memory": "1", "cores": "1m"}, "consumedCapacity.cores"),
    ],
)
def test_what_is_not_understood_is_named(field: str, value: object, path: str) -> None:
    """By the path of its field."""
    allocation = allocation_json()
    allocation["devices"]["results"][0][field] = value
    with pytest.raises(Malformed) as caught:
        read_resource_claim(claim_json("c", allocation))
    assert caught.value.field == f"{RESULT}.{path}"


def test_a_claim_over_two_nodes_is_not_understood() -> None:
    """A pod could use the devices of one only."""
    allocation = allocation_json("gpu-1", node="n1")
    allocation["devices"]["results"] += allocation_json("gpu-2", node="n2")["devices"][
        "results"
    ]
    with pytest.raises(Malformed, match=r"results\[1\].pool: must be n1"):
        read_resource_claim(claim_json("c", allocation))


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
