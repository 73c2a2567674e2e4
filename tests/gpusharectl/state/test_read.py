"""Reading the cluster: which extender is asked, and what is computed without one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from gpushare.domain.model import PodUID
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.snapshot import write_snapshot
from gpushare.kube import facts, names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden, NotFound, Unavailable
from gpushare.kube.facts import WEBHOOK_CONFIGURATIONS
from gpushare.kube.objects import Ref
from gpushare.kube.resource_claims.allocated import ResourceClaimUser
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.installer.webhook.apply import narrow_to_probe
from gpusharectl.state.read import (
    CLAIMS,
    Setup,
    compute_placements,
    detect_setup,
    list_all,
    read_policy_choice,
    read_state,
)
from tests.builders import (
    allocation_json,
    as_claim,
    bound_json,
    card,
    claim_json,
    node,
    node_json,
    placement,
    pod_json,
)
from tests.gpusharectl.cluster_states import (
    CORE,
    NOW,
    OURS,
    answered,
    extender,
    following,
    guarded,
    in_namespace,
    kube_scheduler,
    node_of,
    offering,
    plugin,
    quota,
)
from tests.testbed.certificates import certificates

PAGE = node(card(0, 7, uuid="GPU-told"), name="told")
SERVED = orjson.dumps(write_snapshot([PAGE], [], PolicyChoice("spread")))


class FakeReach:
    """A cluster in memory, what each extender answers, and who leads.

    ``quotas`` and ``webhook`` are what is read of them, or why it cannot be; the
    configuration of claims is there by its name. ``node`` is the cluster's only one.
    """

    def __init__(
        self,
        *pods: Json,
        answers: Mapping[str, bytes | ClusterError] = MappingProxyType({}),
        leader: str = "",
        quotas: Sequence[Json] | ClusterError = (),
        webhook: Mapping[str, Json] | ClusterError = MappingProxyType({}),
        node: Json | None = None,
        build: str = "",
    ) -> None:
        self.cluster = Embedded()
        self.cluster.create(Kind.NODES, node or node_of("n", card(0, 29)))
        self.build = build
        for pod in pods:
            self.cluster.create(Kind.PODS, pod)
            status: Any = {"status": pod["status"]}
            place, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            self.cluster.patch(Kind.PODS, place, name, status, subresource="status")
        self.answers = answers
        self.leader = leader
        self.quotas = quotas
        self.webhook = webhook
        self.asked: list[str] = []

    @property
    def objects(self) -> Any:
        return self

    def version(self) -> str:
        return f"v1.36.3{self.build}"

    def list(self, api_version: str, kind: str, namespace: str = "") -> Any:
        assert (api_version, kind, namespace) == ("v1", "ResourceQuota", "")
        return answered(self.quotas)

    def fetch(
        self, namespace: str, pod: str, port: int, path: str, *, tls: object
    ) -> Any:
        assert (namespace, port, path) == ("kube-system", 39999, "/snapshot")
        self.asked.append(pod)
        self.with_tls = tls is not None
        return answered(self.answers[pod])

    def get(self, ref: Ref) -> Json | None:
        if ref == facts.CLAIMS_CONFIGURATION:
            return answered(self.webhook).get(ref.name)
        if ref in WEBHOOK_CONFIGURATIONS:
            return answered(self.webhook).get(ref.kind)
        lease, _, host = self.leader.rpartition(":")
        if not host:
            raise Forbidden("leases is forbidden")
        if ref.name != (lease or "kube-scheduler"):
            return None
        return {"spec": {"holderIdentity": f"{host}_0f3c"}}


def test_the_extenders_own_placements_come_first() -> None:
    """With its own choice of policy; the pods are decoded beside them."""
    pod = bound_json(placement("ours", node="n"))
    found = read_state(FakeReach(extender("x"), pod, answers={"x": SERVED}), NOW)
    assert [page.name for page in found.placements.nodes] == ["told"]
    assert found.placements.not_asked == ""
    assert found.placements.choice.default == "spread"
    assert [str(one.record.pod) for one in found.pods.values()] == ["default/ours"]


def test_an_extender_with_tls_is_asked_with_the_hosts_certificates(
    tmp_path: Path,
) -> None:
    """Without them the reason says where they are; another extender needs none."""
    held = certificates(tmp_path / "tls")
    reach = FakeReach(guarded("x"), answers={"x": SERVED})
    found = read_state(reach, NOW, certificates=[tmp_path, held.folder])
    assert (found.placements.not_asked, reach.with_tls) == ("", True)
    reach = FakeReach(guarded("x"), answers={"x": SERVED})
    found = read_state(reach, NOW, certificates=[tmp_path])
    assert "x: requires a client certificate; run this" in found.placements.not_asked
    assert reach.asked == []
    reach = FakeReach(extender("x"), answers={"x": SERVED})
    read_state(reach, NOW, certificates=[held.folder])
    assert reach.with_tls is False


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Forbidden("pods/portforward is forbidden"), "x: pods/portforward"),
        (Unavailable("connection refused"), "x: connection refused"),
        (b"<html>", "x: snapshot: is not JSON"),
    ],
)
def test_without_an_answer_it_is_computed_here(
    answer: bytes | ClusterError, words: str
) -> None:
    """The reason is said; the policy is read from the extender's pod."""
    pod = extender("x")
    settings = [{"name": "GPUSHARE_POLICY", "value": "best-fit"}]
    pod["spec"]["containers"][0]["env"] = settings
    found = read_state(FakeReach(pod, answers={"x": answer}), NOW)
    assert [page.name for page in found.placements.nodes] == ["n"]
    assert found.placements.not_asked.startswith(words)
    assert found.placements.choice.default == "best-fit"


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([], "there is no extender pod in kube-system"),
        ([extender("x", ready=False)], "no extender pod is ready"),
    ],
    ids=["none", "not-ready"],
)
def test_one_that_is_not_ready_is_not_asked(pods: Sequence[Json], words: str) -> None:
    reach = FakeReach(*pods)
    assert read_state(reach, NOW).placements.not_asked == words
    assert reach.asked == []


@pytest.mark.parametrize(
    ("leader", "answer", "order"),
    [
        ("cp-2", SERVED, ["y"]),
        ("cp-1", SERVED, ["x"]),
        ("vcuda-scheduler:y", SERVED, ["y"]),
        ("", SERVED, ["x"]),
        ("", Unavailable("reset"), ["x", "y"]),
    ],
)
def test_the_one_beside_the_leader_is_asked_first(
    leader: str, answer: bytes | ClusterError, order: list[str]
) -> None:
    """It has seen the last bind; if it does not answer, another is asked."""
    pods = extender("x", node="cp-1"), extender("y", node="cp-2")
    reach = FakeReach(*pods, answers={"x": answer, "y": SERVED}, leader=leader)
    assert read_state(reach, NOW).placements.not_asked == ""
    assert reach.asked == order


def test_what_is_kept_of_the_pods() -> None:
    """Those that ask, our own, and kube-scheduler; of thousands of others nothing."""
    pods = [
        bound_json(placement("ours", node="n")),
        pod_json("zero", units=0),
        pod_json("plain"),
        pod_json("done", units=3, phase="Succeeded"),
        kube_scheduler(),
        # Anybody may write labels in a namespace of his own.
        in_namespace(extender("forged"), "mallory"),
    ]
    found = read_state(FakeReach(*pods), NOW)
    assert [one.record.pod.name for one in found.pods.values()] == ["ours", "zero"]
    assert [pod["metadata"]["name"] for pod in found.parts] == ["kube-scheduler-cp"]


PLAIN = node_of("plain", labelled=False)


@pytest.mark.parametrize(
    ("reach", "setup"),
    [
        (FakeReach(node=PLAIN), Setup.ABSENT),
        (FakeReach(kube_scheduler(), node=PLAIN), Setup.ABSENT),
        (FakeReach(in_namespace(extender(), "mallory"), node=PLAIN), Setup.ABSENT),
        (FakeReach(build=names.DEMO_BUILD), Setup.DEMO),
        # Each of these was left by an installation.
        (FakeReach(extender(ready=False), node=PLAIN), Setup.INSTALLED),
        (FakeReach(node=node_of("labelled")), Setup.INSTALLED),
        (
            FakeReach(node=node_of("n", card(0, 29), labelled=False)),
            Setup.INSTALLED,
        ),
        (
            FakeReach(kube_scheduler(f"--config={OURS}"), node=PLAIN),
            Setup.INSTALLED,
        ),
    ],
)
def test_whether_gpushare_is_there(reach: FakeReach, setup: Setup) -> None:
    """A demo, a cluster without it, and one with any part of it, broken or not."""
    assert detect_setup(reach) is setup
    reach.answers = {"gpushare-extender-x": SERVED}
    assert read_state(reach, NOW).setup is setup


def test_long_lists_are_read_page_by_page() -> None:
    cluster = Embedded()
    for number in range(1203):
        cluster.create(Kind.PODS, pod_json(f"p-{number}", uid=f"u{number}"))
    assert len(list(list_all(cluster, Kind.PODS))) == 1203


def test_computed_here_it_is_the_same() -> None:
    """From pods and nodes by the extender's own code; sorted by name."""
    held = placement("a", "GPU-x", 5, 2, node="b-node")
    objects = [
        node_json("b-node", card(0, 29, uuid="GPU-x")),
        node_json("a-node", card(0, 8)),
    ]
    pods = [bound_json(held), pod_json("w", units=3)]
    found, seen = compute_placements(objects, pods, PolicyChoice(), "x")
    assert [node.name for node in found.nodes] == ["a-node", "b-node"]
    assert found.nodes[1].placements == {held.pod.uid: held}
    assert [one.body for one in seen.values()] == pods


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        ({"GPUSHARE_CARD_ORDER": "uuid"}, PolicyChoice(card_order="uuid")),
        ({"GPUSHARE_POLICY": "none", "GPUSHARE_CARD_ORDER": "none"}, PolicyChoice()),
    ],
)
def test_the_choice_is_read_from_the_extenders_pod(
    settings: dict[str, str], choice: PolicyChoice
) -> None:
    assert read_policy_choice(settings) == choice


TOLD = quota("edge", hard={CORE: "100"})
CALLED: Json = {"webhooks": [{"matchConditions": [{"name": "asks-for-cards"}]}]}
MUTATING, VALIDATING = (ref.kind for ref in WEBHOOK_CONFIGURATIONS)
BOTH = {MUTATING: CALLED, VALIDATING: CALLED}
NARROWED = narrow_to_probe(CALLED)


@pytest.mark.parametrize(
    ("reach", "quotas", "reviewed"),
    [
        (FakeReach(quotas=[TOLD], webhook=BOTH), (TOLD,), True),
        # An API server without ResourceQuotas.
        (FakeReach(quotas=NotFound("no such kind")), (), False),
        (FakeReach(webhook=Forbidden("webhooks is forbidden")), (), None),
    ],
)
def test_quotas_and_webhook(
    reach: FakeReach, quotas: Any, reviewed: bool | None
) -> None:
    state = read_state(reach, NOW, whole=True)
    assert (state.quotas, state.reviewed, state.troubles) == (quotas, reviewed, ())


@pytest.mark.parametrize(
    ("webhook", "setup"),
    [
        ({}, Setup.ABSENT),
        (BOTH, Setup.INSTALLED),
        ({VALIDATING: NARROWED}, "installed"),
    ],
)
def test_a_webhook_that_was_left_is_a_part_of_gpushare(
    webhook: Mapping[str, Json], setup: Setup
) -> None:
    reach = FakeReach(node=PLAIN, webhook=webhook)
    assert read_state(reach, NOW, whole=True).setup == setup


@pytest.mark.parametrize(
    "error",
    [Forbidden('resourcequotas is forbidden: User "x"'), Unavailable("no answer")],
)
def test_quotas_that_cannot_be_read_are_reported(error: ClusterError) -> None:
    """Not known is not none; the rest of the screen is there."""
    state = read_state(FakeReach(quotas=error), NOW, whole=True)
    assert state.quotas is None
    (trouble,) = state.troubles
    assert (trouble.about, trouble.what) == ("quotas", f"they cannot be read: {error}")
    assert "`list` resourcequotas" in trouble.do


@pytest.mark.parametrize("kind", [MUTATING, VALIDATING])
def test_an_installation_that_was_interrupted(kind: str) -> None:
    """One configuration is still limited to the installer's probe pod."""
    state = read_state(FakeReach(webhook=BOTH | {kind: NARROWED}), NOW, whole=True)
    (one,) = state.troubles
    assert one.about == "webhook"
    assert "answers only the installer's probe pod" in one.what
    assert one.do.startswith("run gpusharectl install again")
    assert state.reviewed is False


def using(name: str) -> Json:
    """A pod with a ResourceClaim."""
    pod = pod_json(name)
    claim = {"name": "card", "resourceClaimName": "c"}
    pod["spec"]["resourceClaims"] = [claim]
    return pod


def allocated(reach: FakeReach) -> str:
    made = reach.cluster.create(Kind.CLAIMS, claim_json("c"))
    status = {
        "status": claim_json("c", allocation_json(units=8), pods=["web"])["status"]
    }
    where = (Kind.CLAIMS, "default", "c")
    reach.cluster.patch(*where, status, subresource="status")
    return str(made["metadata"]["uid"])


SILENT = Unavailable("reset")


@pytest.mark.parametrize(
    ("pods", "answer", "counts", "known"),
    [
        ([following("x")], SILENT, True, True),
        ([extender("x"), offering("p")], SILENT, True, False),
        ([extender("x"), offering("p")], SERVED, True, False),
        # Its device plugin may have the setting from a ConfigMap.
        ([extender("x"), using("web")], SERVED, True, False),
        ([extender("x")], SERVED, False, True),
        ([extender("x")], SILENT, False, True),
    ],
)
def test_claims_that_the_extender_does_not_tell(
    pods: Sequence[Json], answer: bytes | ClusterError, *, counts: bool, known: bool
) -> None:
    """They are read and charged; that it does not know of them is said."""
    reach = FakeReach(*pods, answers={"x": answer})
    uid = allocated(reach)
    found = read_state(reach, NOW)
    nodes = found.placements.nodes
    held = [node for node in nodes if f"claim/{uid}" in node.placements]
    assert bool(held) is counts
    if counts:
        assert found.placements.users == {
            uid: (ResourceClaimUser("web", PodUID("uid-web")),)
        }
    assert [one.about for one in found.troubles] == [CLAIMS] * (not known)
    assert known or "the extender does not follow them" in found.troubles[0].what


ASKED = {facts.CLAIMS_CONFIGURATION.name: CALLED}


@pytest.mark.parametrize(
    ("pods", "webhook", "about"),
    [
        ([offering("p")], {}, [CLAIMS]),
        ([offering("p")], ASKED, []),
        # Without the right, it is not known.
        ([offering("p")], Forbidden("webhooks is forbidden"), []),
        ([plugin("n")], {}, []),
    ],
)
def test_cards_offered_to_claims_while_nobody_is_asked(
    pods: Sequence[Json], webhook: Any, about: Sequence[str]
) -> None:
    """Somebody has deleted what makes the API server ask the extender."""
    found = read_state(FakeReach(*pods, webhook=webhook), NOW, whole=True).troubles
    assert [one.about for one in found] == about
    assert [one.do for one in found] == ["gpusharectl install --dra"] * len(about)


def test_claims_that_the_extender_does_not_know_stand_beside_its_pods() -> None:
    """What it tells of a node stays, and what the claims hold of it is added."""
    page = node(card(0, 29), name="n", holds=[placement("p", 0, 4, 1)])
    told = orjson.dumps(write_snapshot([page], [], PolicyChoice()))
    reach = FakeReach(extender("x"), using("web"), answers={"x": told})
    uid = allocated(reach)
    (found,) = read_state(reach, NOW).placements.nodes
    assert found.placements.keys() == {*page.placements, f"claim/{uid}"}
    assert found.free[found.cards[0].uuid].units == 29 - 4 - 8


def test_the_extender_is_believed_if_it_follows_claims() -> None:
    """It has seen the last reservation; then the API server is not asked."""
    held = as_claim(placement("c", "GPU-told", 2, 1))
    page = node(card(0, 7, uuid="GPU-told"), holds=[held])
    users = {held.pod.uid: (ResourceClaimUser("web", PodUID("uid-web")),)}
    told = orjson.dumps(write_snapshot([page], [], PolicyChoice(), (), users))
    reach = FakeReach(following("x"), using("web"), answers={"x": told})
    allocated(reach)
    found = read_state(reach, NOW)
    assert (found.placements.nodes, found.placements.users) == ((page,), users)
    assert [facts.name_of(pod) for pod in found.with_claims.values()] == ["web"]


def test_a_claim_that_is_not_understood_is_named() -> None:
    """What it holds is not known, which is not the same as nothing."""
    reach = FakeReach(following("x"), answers={"x": Unavailable("reset")})
    reach.cluster.create(Kind.CLAIMS, claim_json("c"))
    allocation = allocation_json(units=8)
    allocation["devices"]["results"][0]["consumedCapacity"]["memory"] = "some"
    status = {"status": {"allocation": allocation}}
    reach.cluster.patch(Kind.CLAIMS, "default", "c", status, subresource="status")
    (trouble,) = read_state(reach, NOW).troubles
    assert trouble.about == "default/c"
    assert "is not known: status.allocation" in trouble.what
    assert trouble.do == "kubectl -n default get resourceclaim c -o yaml"


@pytest.mark.parametrize(
    ("pods", "told"),
    [([following("x")], True), ([extender("x"), using("web")], False)],
)
def test_claims_that_cannot_be_read_are_not_known(
    pods: Sequence[Json], *, told: bool
) -> None:
    """Which is said, since none is not the same; not where all must be others'."""
    reach = FakeReach(*pods, answers={"x": SILENT})
    read = reach.cluster.list_page

    def list_page(kind: Kind, **how: Any) -> Any:
        if kind is Kind.CLAIMS:
            raise Forbidden("resourceclaims is forbidden")
        return read(kind, **how)

    reach.cluster.list_page = list_page  # type: ignore[method-assign]
    found = read_state(reach, NOW).troubles
    assert [one.about for one in found] == ["ResourceClaims"] * told
    for trouble in found:
        assert "is not known" in trouble.what
        assert "resourceclaims.resource.k8s.io" in trouble.do


def test_the_extender_tells_which_claims_are_only_reserved() -> None:
    held = as_claim(placement("c", "GPU-told", 2, 1))
    page = node(card(0, 7, uuid="GPU-told"), holds=[held])
    told = orjson.dumps(write_snapshot([page], [], PolicyChoice(), {held.pod.key}))
    placements = read_state(
        FakeReach(extender("x"), answers={"x": told}), NOW
    ).placements
    assert placements.reserved == {held.pod.uid}
    assert placements.nodes == (page,)
