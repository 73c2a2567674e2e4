"""Reading the cluster: which extender is asked, and what is computed without one."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from gpushare.cache.snapshot import snapshot
from gpushare.domain.policies import Choice
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden, NotFound, Unavailable
from gpushare.kube.facts import WEBHOOK_CONFIGURATIONS
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.webhook.probe import narrowed
from gpusharectl.state.read import (
    ClusterState,
    configured_choice,
    everything,
    from_objects,
    read_state,
)
from tests.builders import bound_json, card, node, node_json, placement, pod_json
from tests.gpusharectl.cluster_states import (
    CORE,
    NOW,
    extender,
    kube_scheduler,
    node_of,
    quota,
)

PAGE = node(card(0, 7, uuid="GPU-told"), name="told")
SERVED = orjson.dumps(snapshot([PAGE], [], Choice("spread")))


class FakeObjects:
    """Stands in for ``Objects``: what each extender answers, and who leads.

    ``quotas`` and ``webhook`` are what is read of them, or why it cannot be.
    """

    def __init__(
        self,
        answers: Mapping[str, bytes | ClusterError],
        leader: str = "",
        quotas: Sequence[Json] | ClusterError = (),
        webhook: Mapping[str, Json] | ClusterError = MappingProxyType({}),
    ) -> None:
        self._answers = answers
        self._leader = leader
        self._quotas = quotas
        self._webhook = webhook
        self.asked: list[str] = []

    def list(self, api_version: str, kind: str) -> Sequence[Json]:
        assert (api_version, kind) == ("v1", "ResourceQuota")
        if isinstance(self._quotas, ClusterError):
            raise self._quotas
        return self._quotas

    def fetch(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        assert (namespace, port, path) == ("kube-system", 39999, "/snapshot")
        self.asked.append(pod)
        answer = self._answers[pod]
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    def get(self, ref: Ref) -> Json | None:
        if ref in WEBHOOK_CONFIGURATIONS:
            if isinstance(self._webhook, ClusterError):
                raise self._webhook
            return self._webhook.get(ref.kind)
        lease, _, host = self._leader.rpartition(":")
        if not host:
            raise Forbidden("leases is forbidden")
        if ref.name != (lease or "kube-scheduler"):
            return None
        return {"spec": {"holderIdentity": f"{host}_0f3c"}}


class FakeCluster:
    """A cluster in memory, and objects beside it."""

    def __init__(self, objects: FakeObjects, *pods: Json) -> None:
        self.embedded = Embedded()
        self.fake = objects
        self.embedded.create(Kind.NODES, node_of("n", card(0, 29)))
        for pod in pods:
            self.embedded.create(Kind.PODS, pod)
            status: Any = {"status": pod["status"]}
            place, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            self.embedded.patch(Kind.PODS, place, name, status, subresource="status")

    @property
    def cluster(self) -> Cluster:
        return self.embedded

    @property
    def objects(self) -> Objects:
        return self.fake  # type: ignore[return-value]


def test_the_extenders_own_books_come_first() -> None:
    """With its own choice of policy; nothing is said of a source."""
    cluster = FakeCluster(FakeObjects({"x": SERVED}), extender("x"))
    found = read_state(cluster, NOW)
    assert [page.name for page in found.placements.nodes] == ["told"]
    assert found.placements.not_asked == ""
    assert found.placements.choice.default == "spread"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Forbidden("pods/portforward is forbidden"), "x: pods/portforward"),
        (Unavailable("connection refused"), "x: connection refused"),
        (b"<html>", "x: snapshot: is not JSON"),
    ],
)
def test_without_an_answer_it_is_reckoned_here(
    answer: bytes | ClusterError, words: str
) -> None:
    """And said so, with the reason; the policy is read off the extender's pod."""
    pod = extender("x")
    settings = [{"name": "GPUSHARE_POLICY", "value": "best-fit"}]
    pod["spec"]["containers"][0]["env"] = settings
    found = read_state(FakeCluster(FakeObjects({"x": answer}), pod), NOW)
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
def test_nobody_is_asked_in_vain(pods: list[Json], words: str) -> None:
    """Where no extender is ready, no port-forward is tried."""
    objects = FakeObjects({})
    assert read_state(FakeCluster(objects, *pods), NOW).placements.not_asked == words
    assert objects.asked == []


@pytest.mark.parametrize(
    ("leader", "order"),
    [
        ("cp-2", ["y"]),
        ("cp-1", ["x"]),
        ("vcuda-scheduler:y", ["y"]),
        ("", ["x"]),
    ],
)
def test_the_one_beside_the_leader_is_asked_first(
    leader: str, order: list[str]
) -> None:
    """It has seen the last bind; where nobody knows who leads, any is right."""
    objects = FakeObjects({"x": SERVED, "y": SERVED}, leader)
    cluster = FakeCluster(
        objects, extender("x", node="cp-1"), extender("y", node="cp-2")
    )
    assert read_state(cluster, NOW).placements.not_asked == ""
    assert objects.asked == order


def test_another_is_asked_when_one_does_not_answer() -> None:
    """All ready ones, before it is from_objects here."""
    objects = FakeObjects({"x": Unavailable("reset"), "y": SERVED})
    found = read_state(FakeCluster(objects, extender("x"), extender("y")), NOW)
    assert objects.asked == ["x", "y"]
    assert found.placements.not_asked == ""


def test_what_is_kept_of_the_pods() -> None:
    """Those that ask, our own, and kube-scheduler; of thousands of others nothing."""
    pods = [
        bound_json(placement("ours", node="n")),
        pod_json("zero", units=0),
        pod_json("plain"),
        pod_json("done", units=3, phase="Succeeded"),
        kube_scheduler(),
    ]
    found = read_state(FakeCluster(FakeObjects({}), *pods), NOW)
    assert [one.record.pod.name for one in found.pods.values()] == ["ours", "zero"]
    assert [pod["metadata"]["name"] for pod in found.parts] == ["kube-scheduler-cp"]


def test_pods_are_decoded_beside_the_extenders_placements() -> None:
    pod = bound_json(placement("ours", node="n"))
    found = read_state(FakeCluster(FakeObjects({"x": SERVED}), extender("x"), pod), NOW)
    assert found.placements.not_asked == ""
    assert [str(one.record.pod) for one in found.pods.values()] == ["default/ours"]


def test_long_lists_are_read_to_their_end() -> None:
    """Page by page."""
    cluster = FakeCluster(FakeObjects({}))
    for number in range(1203):
        cluster.embedded.create(Kind.PODS, pod_json(f"p-{number}", uid=f"u{number}"))
    assert len(list(everything(cluster.embedded, Kind.PODS))) == 1203


def test_reckoned_here_it_is_the_same() -> None:
    """From pods and nodes by the extender's own code; sorted by name."""
    held = placement("a", "GPU-x", 5, 2, node="b-node")
    objects = [
        node_json("b-node", card(0, 29, uuid="GPU-x")),
        node_json("a-node", card(0, 8)),
    ]
    pods = [bound_json(held), pod_json("w", units=3)]
    found, seen = from_objects(objects, pods, Choice(), "x")
    assert [node.name for node in found.nodes] == ["a-node", "b-node"]
    assert found.nodes[1].placements == {held.pod.uid: held}
    assert found.not_asked == "x"
    assert [one.body for one in seen.values()] == pods


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        ({}, Choice()),
        ({"GPUSHARE_POLICY": "spread"}, Choice("spread")),
        ({"GPUSHARE_CARD_ORDER": "uuid"}, Choice(card_order="uuid")),
        ({"GPUSHARE_POLICY": "none", "GPUSHARE_CARD_ORDER": "none"}, Choice()),
    ],
)
def test_the_choice_is_read_off_the_extenders_pod(
    settings: dict[str, str], choice: Choice
) -> None:
    """An extender that does not answer still says how it would choose."""
    assert configured_choice(settings) == choice


def read_whole(**objects: Any) -> ClusterState:
    return read_state(FakeCluster(FakeObjects({}, **objects)), NOW, whole=True)


def test_all_quotas_are_read() -> None:
    told = quota("edge", hard={CORE: "100"})
    state = read_whole(quotas=[told])
    assert (state.quotas, state.troubles) == ((told,), ())


@pytest.mark.parametrize(
    "error",
    [Forbidden('resourcequotas is forbidden: User "x"'), Unavailable("no answer")],
)
def test_quotas_that_cannot_be_read_are_reported(error: ClusterError) -> None:
    """Not known is not none; the rest of the screen is there."""
    state = read_whole(quotas=error)
    assert state.quotas is None
    (trouble,) = state.troubles
    assert (trouble.about, trouble.what) == ("quotas", f"they cannot be read: {error}")
    assert "`list` resourcequotas" in trouble.do


def test_an_api_server_without_quotas_has_none() -> None:
    state = read_whole(quotas=NotFound("no such kind"))
    assert (state.quotas, state.troubles) == ((), ())


CALLED: Json = {"webhooks": [{"matchConditions": [{"name": "asks-for-cards"}]}]}
KINDS = [ref.kind for ref in WEBHOOK_CONFIGURATIONS]


@pytest.mark.parametrize(
    ("webhook", "reviewed"),
    [
        (dict.fromkeys(KINDS, CALLED), True),
        ({}, False),
        (Forbidden("mutatingwebhookconfigurations is forbidden"), None),
    ],
)
def test_whether_the_api_server_calls_the_webhook(
    webhook: Mapping[str, Json] | ClusterError, reviewed: bool | None
) -> None:
    state = read_whole(webhook=webhook)
    assert (state.reviewed, state.troubles) == (reviewed, ())


@pytest.mark.parametrize("kind", KINDS)
def test_an_installation_that_was_interrupted(kind: str) -> None:
    """One configuration is still limited to the installer's probe pod."""
    webhook = dict.fromkeys(KINDS, CALLED) | {kind: narrowed(CALLED)}
    state = read_whole(webhook=webhook)
    (one,) = state.troubles
    assert one.about == "webhook"
    assert "answers only the installer's probe pod" in one.what
    assert one.do.startswith("run gpusharectl install again")
    assert state.reviewed is False
