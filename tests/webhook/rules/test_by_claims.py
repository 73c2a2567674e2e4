"""Pods of a namespace with DRA: by a claim that means the same, or as they are."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.model import Amount
from gpushare.kube import codec, names
from gpushare.kube.cluster import Json
from gpushare.kube.resource_claims.templates import (
    MOST_PARTS,
    name_request,
    name_template,
    read_template_name,
)
from tests.builders import container_json, pod_json, ref
from tests.webhook.webhook_client import every_container, for_bitfusion
from tests.webhook.webhook_client import judged as review
from webhook.rules.review import MOST_OF_A_WARNING, PodVerdict, ReviewSettings

judged = partial(review, dra=True)
"""Review it as in a namespace with the label."""


def template_of(pod: Json) -> str | None:
    """The template of the pod's claim; None if it has none."""
    claims = pod["spec"].get("resourceClaims", [])
    found = [one for one in claims if one["name"] == "vcuda"]
    return found[0]["resourceClaimTemplateName"] if found else None


def names_cards(pod: Json) -> bool:
    return any(
        name.startswith(names.PREFIX)
        for one in every_container(pod)
        for part in ("limits", "requests")
        for name in one.get("resources", {}).get(part, ())
    )


def test_a_share_becomes_a_claim() -> None:
    """One for the pod; what else it asks, and other claims, stay."""
    main = container_json("main", 20, 20)
    main["resources"]["limits"]["cpu"] = main["resources"]["requests"]["cpu"] = "2"
    main["resources"]["claims"] = [{"name": "nic"}]
    pod = pod_json(containers=[main, container_json("plain"), container_json("0", 0)])
    nic = {"name": "nic", "resourceClaimTemplateName": "nic"}
    pod["spec"]["resourceClaims"] = [nic]
    found = judged(pod)
    spec = found.pod["spec"]
    mine = {"name": "vcuda", "resourceClaimTemplateName": "vcuda-m20-c20"}
    assert spec["resourceClaims"] == [nic, mine]
    assert spec["containers"][0]["resources"] == {
        "limits": {"cpu": "2"},
        "requests": {"cpu": "2"},
        "claims": [{"name": "nic"}, {"name": "vcuda", "request": "card"}],
    }
    assert spec["containers"][1] == pod["spec"]["containers"][1]
    assert spec["containers"][2]["resources"] == {"limits": {}, "requests": {}}
    make = "gpusharectl claim-template vcuda-m20-c20 | kubectl -n default apply -f -"
    assert found.warnings == (f"it gets a claim; create its template: {make}",)


def test_the_command_of_the_warning_is_never_cut() -> None:
    """Not even with the longest names; and it comes first, for the last may be lost."""
    asking = [container_json(str(n), 999_999, 10) for n in range(MOST_PARTS)]
    pod = pod_json(containers=asking, annotations={"baidu.com/vcuda-model": "x"})
    namespace = "n" * 63
    command, *others = judged(pod, namespace=namespace).warnings
    name = name_template([Amount(10, 999_999)] * MOST_PARTS)
    assert command.endswith(
        f"gpusharectl claim-template {name} | kubectl -n {namespace} apply -f -"
    )
    assert len(command) <= MOST_OF_A_WARNING
    assert others


def test_defaults_and_mib_come_first() -> None:
    """One core where none is asked, and units, as without the label."""
    pod = pod_json(containers=[container_json("main", mib=5000)])
    assert template_of(judged(pod).pod) == "vcuda-m20-c1"
    zero = pod_json(units=4, cores=0)
    assert template_of(judged(zero, ReviewSettings(quotas=True)).pod) == "vcuda-m4-c1"


def test_each_container_has_its_part_of_one_card() -> None:
    """A sidecar too, which comes first as for kubelet."""
    pod = pod_json(
        init=[container_json("side", 2, 5, restart="Always")],
        containers=[container_json("a", 8, 20), container_json("b", 4)],
    )
    after = judged(pod).pod
    assert template_of(after) == "vcuda-m2-c5-m8-c20-m4-c1"
    used = [one["resources"]["claims"] for one in every_container(after)]
    assert used == [
        [{"name": "vcuda", "request": f"card-{number}"}] for number in (1, 2, 3)
    ]


def with_claim() -> Json:
    pod = pod_json(units=4, cores=1)
    mine = {"name": "vcuda", "resourceClaimName": "mine"}
    pod["spec"]["resourceClaims"] = [mine]
    return pod


MANY = [container_json(f"c{number}", 1, 1) for number in range(MOST_PARTS + 1)]
STAYS: dict[str, tuple[Json, str]] = {
    "models": (
        pod_json(units=4, cores=1, annotations={names.MODELS: "Tesla P4"}),
        names.MODELS,
    ),
    "uuids": (
        pod_json(units=4, cores=1, annotations={names.UUIDS: "GPU-9f12f917"}),
        names.UUIDS,
    ),
    "policy": (
        pod_json(units=4, cores=1, annotations={names.POLICY: "spread"}),
        names.POLICY,
    ),
    "apart": (
        pod_json(units=4, cores=1, annotations={names.CONTAINERS: "apart"}),
        names.CONTAINERS,
    ),
    "whole cards": (pod_json(units=4, cores=200), "whole cards"),
    "two halves": (
        pod_json(containers=[container_json("a", 4, 50), container_json("b", 4, 50)]),
        "whole cards",
    ),
    "cores only": (pod_json(cores=50), "0 units"),
    "no cores": (pod_json(units=4, cores=0), "0 cores"),
    "init": (
        pod_json(init=[container_json("i", 4, 1)], units=4, cores=1),
        "spec.initContainers[0]",
    ),
    "nodeName": (pod_json(units=4, cores=1, node="n-1"), "spec.nodeName"),
    "many": (pod_json(containers=MANY), "more than 8"),
    "huge": (pod_json(units=10**6, cores=1), "too large"),
    "name taken": (with_claim(), "spec.resourceClaims"),
    "bitfusion": (for_bitfusion(memory="8000M"), "Bitfusion"),
}


@pytest.mark.parametrize(("pod", "why"), STAYS.values(), ids=STAYS)
def test_what_a_claim_cannot_mean_stays(pod: Json, why: str) -> None:
    """It is as without the label, and the warning says why."""
    found, without = judged(pod), judged(pod, dra=False)
    assert found.pod == without.pod
    (told,) = set(found.warnings) - set(without.warnings)
    assert told.startswith("the pod gets no claim: ")
    assert why in told
    assert "…" not in told


def test_another_scheduler_gets_no_claims() -> None:
    """Its writes may go to an extender that does not decide."""
    pod = pod_json(units=4, cores=1)
    found = judged(pod, ReviewSettings(set_scheduler="vcuda"))
    assert template_of(found.pod) is None
    assert "--set-scheduler" in found.warnings[0]


@pytest.mark.parametrize("pod", [pod_json(), pod_json(units=0), pod_json(cores=0)])
def test_a_pod_that_asks_nothing_stays(pod: Json) -> None:
    assert judged(pod) == judged(pod, dra=False)


def test_a_denied_pod_is_denied_as_before() -> None:
    pod = pod_json(units=4, cores=150)
    assert judged(pod) == judged(pod, dra=False)
    assert judged(pod).denials


def test_a_container_that_is_added_later_stays() -> None:
    """The claim has no part for it: it asks in the classic way."""
    first = judged(pod_json(units=4, cores=1)).pod
    first["spec"]["containers"].append(container_json("late", 2, 1))
    found = judged(first)
    assert found.pod == first
    assert "already has one with the name vcuda" in found.warnings[0]


def test_a_default_that_comes_again_is_0() -> None:
    """A LimitRange adds it to the container that has its part by the claim."""
    first = judged(pod_json(units=4, cores=1)).pod
    for part in ("limits", "requests"):
        first["spec"]["containers"][0]["resources"][part][names.MEMORY] = "40"
    found = judged(first)
    (main,) = found.pod["spec"]["containers"]
    for part in ("limits", "requests"):
        assert set(main["resources"][part].values()) == {"0"}
    (told,) = found.warnings
    assert told.startswith("spec.containers[0]: it has its part")
    assert judged(found.pod) == PodVerdict(found.pod)


def test_a_claim_of_another_name_is_another_part() -> None:
    """The pod's own claim for something else does not replace what it asks."""
    pod = with_claim()
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "vcuda"}]
    assert judged(pod).pod == pod


CONTAINERS = st.builds(
    container_json,
    st.just("name"),
    st.none() | st.integers(0, 40),
    st.none() | st.integers(0, 60),
)
SIDECARS = CONTAINERS.map(lambda one: one | {"restartPolicy": "Always"})


@given(
    apps=st.lists(CONTAINERS, min_size=1, max_size=4),
    init=st.lists(SIDECARS | CONTAINERS, max_size=2),
    quotas=st.booleans(),
)
def test_the_claim_is_what_the_pod_asked(
    apps: list[Json], init: list[Json], quotas: bool
) -> None:
    """In sum and by container, of one card; and a second look changes nothing."""
    for number, one in enumerate((*init, *apps)):
        one["name"] = f"c{number}"
    pod = pod_json(containers=apps, init=init)
    rules = ReviewSettings(quotas=quotas)
    classic, found = judged(pod, rules, dra=False), judged(pod, rules)
    assert found.denials == classic.denials
    assert judged(found.pod, rules).pod == found.pod
    name = template_of(found.pod)
    if name is None:
        assert found.pod == classic.pod
        return
    assert not names_cards(found.pod)
    parts = read_template_name(name)
    request: Any = codec.read_pod_request(classic.pod, ref())
    (claim,) = request.claims
    assert claim.amount == sum(parts, Amount())
    used = {
        container["name"]: use["request"]
        for container in every_container(found.pod)
        for use in container.get("resources", {}).get("claims", [])
    }
    asked = {one.name: one.amount for one in claim.containers}
    assert asked == {
        container: parts[
            [name_request(n, len(parts)) for n in range(len(parts))].index(request)
        ]
        for container, request in used.items()
    }
