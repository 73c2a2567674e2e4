"""why for a pod with ResourceClaims: each card's answer."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from deviceplugin.dra.slices import FULL, build_slices, slice_devices
from gpushare.domain.model import Amount, Card
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden
from gpushare.kube.objects import Ref
from gpushare.kube.resource_claims.templates import write_template as template_of
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.state.read import ClusterState
from gpusharectl.why.claims import ByClaims, ClaimVerdict, explain_claims
from gpusharectl.why.command import draw_answer, encode_answer
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


def cards_of(node: str) -> Sequence[Card]:
    found = STATE.placements.node(node)
    assert found is not None
    return found.cards


class Kinds:
    """DeviceClasses and ResourceClaimTemplates, or what the API server says instead."""

    def __init__(self, *bodies: Json, error: ClusterError | None = None) -> None:
        driver = {"cel": {"expression": "device.driver == 'vcuda.baidu.com'"}}
        other = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
        self.found: dict[str, Json] = {
            "DeviceClass vcuda": {"spec": {"selectors": [driver]}},
            "DeviceClass gpu.nvidia.com": {"spec": {"selectors": [other]}},
        }
        self.found |= {str(Ref.of(one)): one for one in bodies}
        self.error = error

    def get(self, ref: Ref) -> Json | None:
        if self.error:
            raise self.error
        return self.found.get(str(ref))


def claimed(units: int = 10, class_name: str = "vcuda", **more: Any) -> Json:
    """A claim that asks for this much."""
    claim = claim_json("mine")
    asked = {"memory": f"{units * 256}Mi", "cores": "10"}
    exactly = {"deviceClassName": class_name, "capacity": {"requests": asked}, **more}
    claim["spec"]["devices"]["requests"] = [{"name": "card", "exactly": exactly}]
    return claim


def offered(*devices: Json, node: str = "n", generation: int = 1) -> Json:
    (one,) = build_slices(node, "uid", devices, generation)
    return one


OFFER = offered(*slice_devices(cards_of("n"), {}))


def explained(
    claim: Json | None,
    *,
    template: bool = False,
    offers: Iterable[Json] = (OFFER,),
    kinds: Kinds | None = None,
    state: ClusterState = STATE,
    phase: str = "Pending",
    **spec: Any,
) -> ByClaims | None:
    cluster = Embedded()
    for one in offers:
        cluster.create(Kind.SLICES, one)
    if claim is not None:
        status = {"status": claim["status"]}
        cluster.create(Kind.CLAIMS, claim)
        cluster.patch(Kind.CLAIMS, "default", "mine", status, subresource="status")
    pod = pod_json("p", phase=phase)
    pod["spec"] |= spec
    named = {"resourceClaimTemplateName": "vcuda-m10-c10"} if template else {}
    pod["spec"]["resourceClaims"] = [
        {"name": "card", **(named or {"resourceClaimName": "mine"})}
    ]
    if template and claim is not None:
        made = {"name": "card", "resourceClaimName": "mine"}
        pod["status"]["resourceClaimStatuses"] = [made]
    return explain_claims(cluster, kinds or Kinds(), state, pod)  # type: ignore[arg-type]


def verdict(claim: Json | None, **how: Any) -> ClaimVerdict:
    answer = explained(claim, **how)
    assert answer is not None
    (found,) = answer.claims
    return found


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
    data = encode_answer(answer, STATE.placements)
    assert (data["state"], data["code"]) == ("by-claims", 3)
    assert data["claims"][0]["room"] == ["card 1 of node n"]


def test_an_allocated_claim_says_what_it_has() -> None:
    claim = claimed() | {"status": {"allocation": allocation_json("gpu-1", units=10)}}
    answer = explained(claim)
    assert answer is not None
    assert answer.claims[0].because.startswith("it has card 1, 10 units")
    assert answer.code == 0


@pytest.mark.parametrize("claim", [claimed(class_name="gpu.nvidia.com"), None])
def test_claims_of_others_are_not_explained(claim: Json | None) -> None:
    """Nor such as do not exist: nobody knows whose they would be."""
    assert explained(claim) is None


def test_a_pod_without_claims_is_explained_as_before() -> None:
    """And so is one that has ended: its claim may be another's by now."""
    kinds: Any = Kinds()
    assert explain_claims(Embedded(), kinds, STATE, pod_json("p", units=4)) is None
    assert explained(claimed(), phase="Succeeded") is None


def test_a_claim_that_cannot_be_read_is_not_known() -> None:
    """Which is not the same as no claim."""

    class Closed(Embedded):
        def get(self, kind: Kind, namespace: str, name: str) -> Json:
            raise Forbidden(f"{kind} is forbidden")

    pod = pod_json("p")
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "mine"}]
    kinds: Any = Kinds()
    answer = explain_claims(Closed(), kinds, STATE, pod)
    assert answer is not None
    assert answer.claims[0].because.startswith("not known")
    assert answer.code == 3


def test_a_card_that_is_not_offered_has_no_room() -> None:
    """Whatever the ledger says: kube-scheduler knows only ResourceSlices."""
    nowhere = verdict(claimed(), offers=[])
    assert nowhere.room == ()
    assert nowhere.refusals == (
        "node n offers no card to claims: it has no ResourceSlice of vcuda.baidu.com",
    )
    without = offered(*slice_devices(cards_of("n")[:1], {}))
    assert any(
        "GPU-1 of node n is not in the node's ResourceSlice" in text
        for text in verdict(claimed(), offers=[without]).refusals
    )


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_of_a_card_is_its_answer(effect: str) -> None:
    """If the request does not tolerate it."""
    full = slice_devices(cards_of("n"), {})
    full[1]["taints"] = [{"key": FULL, "effect": effect}]
    found = verdict(claimed(), offers=[offered(*full)])
    assert found.room == ()
    assert f"card GPU-1 of node n has the taint {FULL} in its ResourceSlice" in (
        found.refusals
    )
    tolerant = claimed(tolerations=[{"key": FULL, "operator": "Exists"}])
    assert verdict(tolerant, offers=[offered(*full)]).room
    full[1]["taints"][0]["effect"] = "None"
    assert verdict(claimed(), offers=[offered(*full)]).room


def test_a_slice_that_is_behind_is_named() -> None:
    """Only the newest generation of a pool counts."""
    old = offered(*slice_devices(cards_of("n"), {}), generation=1)
    old["metadata"]["name"] = "old"
    charged = {card.uuid: (0, 25) for card in cards_of("n")}
    new = offered(*slice_devices(cards_of("n"), charged), generation=2)
    found = verdict(claimed(), offers=[old, new])
    assert found.room == ()
    assert any("shows only 4 units" in text for text in found.refusals)


def test_slices_that_cannot_be_read_are_not_known() -> None:
    """Then room in the ledger is all that is known, and that is said."""

    class Closed(Embedded):
        def list_page(self, kind: Kind, **how: Any) -> Any:
            raise Forbidden(f"{kind} is forbidden")

    cluster, kinds = Closed(), Kinds()
    cluster.create(Kind.CLAIMS, claimed())
    pod = pod_json("p")
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "mine"}]
    answer = explain_claims(cluster, kinds, STATE, pod)  # type: ignore[arg-type]
    assert answer is not None
    (found,) = answer.claims
    assert found.room == ("card 1 of node n",)
    assert "which cards are offered to claims is not known" in found.not_judged[0]


def test_a_class_that_cannot_be_read_is_not_judged() -> None:
    """It may be there: nobody is told to create it."""
    found = verdict(claimed(), kinds=Kinds(error=Forbidden("no")))
    assert found.room == ("card 1 of node n",)
    assert found.not_judged == (
        "the DeviceClass vcuda cannot be read, so it is not judged",
    )


def test_what_is_not_judged_is_shown() -> None:
    """Beside the room, so that nobody takes it for a card that fits."""
    model = {"cel": {"expression": "device.attributes['vcuda.baidu.com'].index == 7"}}
    claim = claimed(selectors=[model])
    (text,) = verdict(claim).not_judged
    assert "has a selector that only kube-scheduler can judge" in text
    answer = explained(claim)
    assert answer is not None
    screen = drawn(partial(draw_answer, answer=answer, state=STATE))
    assert "not judged: request card has a selector" in screen
    data = encode_answer(answer, STATE.placements)
    assert data["claims"][0]["not_judged"] == [text]


def test_a_request_that_no_card_can_be_is_said_once() -> None:
    """The arbiter denies it for each card, and kube-scheduler tries each."""
    found = verdict(claimed(units=0))
    assert found.room == ()
    (text,) = found.refusals
    assert "asks for 0 MiB" in text


def test_a_node_that_the_pod_may_not_use_has_no_room() -> None:
    found = verdict(claimed(), nodeSelector={"zone": "a"})
    assert found.room == ()
    (text,) = found.refusals
    assert text.startswith("the pod may not use node n: its nodeSelector is zone=a")


def test_a_template_that_is_missing_is_named_with_its_command() -> None:
    """The webhook cannot make it; its warning may have been seen by nobody."""
    found = verdict(None, template=True)
    assert "its template vcuda-m10-c10 does not exist in default" in found.because
    make = "gpusharectl claim-template vcuda-m10-c10 | kubectl -n default apply -f -"
    assert make in found.because
    body = template_of([Amount(10, 10)])
    body["metadata"]["namespace"] = "default"
    for kinds in (Kinds(body), Kinds(error=Forbidden("no"))):
        assert "kube-controller-manager makes it" in (
            verdict(None, template=True, kinds=kinds).because
        )


def test_of_many_cards_the_first_are_shown() -> None:
    """Those with room stand before the others, so they are seen; ``-v`` shows all."""
    many = [card(n, 29, healthy=n == 11) for n in range(12)]
    state = cluster_state([node_of("n", *many)])
    offer = offered(*slice_devices(many, {}))
    answer = explained(claimed(), offers=[offer], state=state)
    assert answer is not None
    few, all_of_them = (
        drawn(partial(draw_answer, answer=answer, state=state, verbose=verbose))
        for verbose in (False, True)
    )
    assert few.index("card 11 of node n has room") < few.index("GPU-0 of node n")
    assert "and 2 more (-v)" in few
    assert all_of_them.count("is sick") == 11


def test_a_pod_with_several_claims_needs_them_on_one_node() -> None:
    """That is not judged, and said."""
    cluster, kinds, pod = Embedded(), Kinds(), pod_json("p")
    cluster.create(Kind.SLICES, OFFER)
    pod["spec"]["resourceClaims"] = []
    for name in ("a", "b"):
        claim = claimed()
        claim["metadata"] |= {"name": name, "uid": name}
        cluster.create(Kind.CLAIMS, claim)
        pod["spec"]["resourceClaims"] += [{"name": name, "resourceClaimName": name}]
    answer = explain_claims(cluster, kinds, STATE, pod)  # type: ignore[arg-type]
    assert answer is not None
    assert len(answer.not_judged) == 1
    data = encode_answer(answer, STATE.placements)
    assert data["not_judged"] == list(answer.not_judged)
    assert answer.not_judged[0] in drawn(
        partial(draw_answer, answer=answer, state=STATE)
    )


def test_kube_schedulers_own_words_come_along() -> None:
    """With them the arbiter's last denial, as the pod's condition has it."""
    answer = explained(claimed())
    assert answer is not None
    told = 'webhook "claims.vcuda.baidu.com" denied the request: card GPU-1 has 9 units'
    waiting = {"type": "PodScheduled", "status": "False", "message": told}
    answer.body["status"]["conditions"] = [waiting]
    screen = drawn(partial(draw_answer, answer=answer, state=STATE))
    assert told in " ".join(screen.split())
    assert encode_answer(answer, STATE.placements)["kube_scheduler"] == told
