"""Templates by their content: a name and its parts, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.model import Amount
from gpushare.domain.quantity import parse_mebibytes, parse_whole
from gpushare.kube.resource_claims.templates import (
    MOST_PARTS,
    name_template,
    read_template_name,
    write_template,
)

PARTS = st.lists(
    st.builds(Amount, cores=st.integers(0, 120), units=st.integers(0, 10**6)),
    max_size=MOST_PARTS + 1,
)


def test_one_part() -> None:
    """As docs/dra.md shows it."""
    amounts = {"memory": "5120Mi", "cores": "20"}
    exactly = {"deviceClassName": "vcuda", "capacity": {"requests": amounts}}
    assert write_template([Amount(20, 20)]) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "vcuda-m20-c20"},
        "spec": {"spec": {"devices": {"requests": [_request("card", exactly)]}}},
    }


def _request(name: str, exactly: object) -> dict[str, object]:
    return {"name": name, "exactly": exactly}


def test_several_parts_are_of_one_card() -> None:
    """A request for each, in the order of the name, which must have the same UUID."""
    made = write_template([Amount(cores=20, units=8), Amount(cores=1, units=4)])
    assert made["metadata"]["name"] == "vcuda-m8-c20-m4-c1"
    devices = made["spec"]["spec"]["devices"]
    assert [entry["name"] for entry in devices["requests"]] == ["card-1", "card-2"]
    (constraint,) = devices["constraints"]
    assert constraint["requests"] == ["card-1", "card-2"]
    assert constraint["matchAttribute"] == "vcuda.baidu.com/uuid"


@given(parts=PARTS)
def test_a_name_has_its_parts_and_no_others(parts: list[Amount]) -> None:
    """So a name never means two amounts; what claims cannot have has no name."""
    possible = (
        0 < len(parts) <= MOST_PARTS
        and all(part.units and part.cores for part in parts)
        and sum(part.cores for part in parts) < 100
        and all(part.units < 10**6 for part in parts)
    )
    name = name_template(parts)
    assert (name is not None) is possible
    if name is None:
        with pytest.raises(ValueError, match="no template"):
            write_template(parts)
        return
    assert read_template_name(name) == tuple(parts)
    requests = [
        entry["exactly"]["capacity"]["requests"]
        for entry in write_template(parts)["spec"]["spec"]["devices"]["requests"]
    ]
    assert parts == [
        Amount(parse_whole(entry["cores"]), parse_mebibytes(entry["memory"]) // 256)
        for entry in requests
    ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "vcuda",
        "vcuda-m20",
        "vcuda-m020-c1",
        "vcuda-m20-c0",
        "vcuda-m20-c100",
        "vcuda-m1-c50-m1-c50",
        "vcuda-m20-c20\n",
        "Vcuda-m20-c20",
        "vcuda-m٢-c1",
        "vcuda" + "-m1-c1" * (MOST_PARTS + 1),
    ],
)
def test_other_names_are_no_templates(name: str) -> None:
    assert read_template_name(name) == ()
