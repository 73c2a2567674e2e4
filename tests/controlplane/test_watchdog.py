"""The exporter's watchdog on a real API server, with just the rights that we ship."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event, Thread

import pytest

from exporter.overuse import COMPONENT, REASON, OveruseMonitor
from exporter.owners.owner_pods import Owner
from exporter.run import WatchedPods
from exporter.snapshot import TelemetrySnapshot
from exporter.usage import Mode, OveruseTally, UsageBook
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.reflector import Reflector, ReflectorPace
from gpusharectl.installer.manifests import load_manifests
from tests.builders import AT as WRITTEN
from tests.builders import placement
from tests.deviceplugin.node_fixture import found_card
from tests.exporter.exporter_data import AT, A, cid, processes, snapshot, use
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.objects import pod
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

NODE = "watched"
ACCOUNT = "gpushare-exporter"
BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"


def shipped_rules(components: Sequence[str]) -> list[Json]:
    """What the exporter's ClusterRole allows, with these components laid over it."""
    (role,) = (
        body
        for body in load_manifests("exporter", components=components)
        if body["kind"] == "ClusterRole"
    )
    rules: list[Json] = role["rules"]
    return rules


@dataclass
class Watched:
    """A pod with 2048 MiB on a node, and a patrol that sees it use 3000."""

    plane: ControlPlane
    space: str
    cluster: ApiServer
    watched: WatchedPods
    uid: str = ""
    rounds: int = 0

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.space}/pods/greedy"

    def run_pod(self) -> None:
        asked = {"limits": {names.MEMORY: "8"}}
        container = {"name": "main", "image": "local.test/x", "resources": asked}
        spec = {"nodeName": NODE, "containers": [container]}
        body = pod("greedy", self.space, spec=spec, labels={"app": "greedy"})
        rest = self.plane.rest
        pods = f"/api/v1/namespaces/{self.space}/pods"
        self.uid = rest.must("POST", pods, body)["metadata"]["uid"]
        held = placement("greedy", A, 8, node=NODE)
        text = encode_placement(held, WRITTEN).replace("uid-greedy", self.uid)
        notes = {"metadata": {"annotations": {names.PLACEMENT: text}}}
        rest.must("PATCH", self.path, notes)
        main = {
            "name": "main",
            "containerID": f"containerd://{cid('greedy/main')}",
            "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
            "image": "x",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
        }
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "conditions": ready, "containerStatuses": [main]}
        rest.must("PATCH", f"{self.path}/status", {"status": status})

    def snapshot(self) -> TelemetrySnapshot:
        """Each look is at a round of its own, a second after the last one."""
        self.rounds += 1
        owner = Owner(self.uid, cid("greedy/main"))
        running = {A: [use(1, 3000.0)]}
        round_ = processes(running, {1: owner}, at=AT + self.rounds)
        return snapshot(found_card(0), round_=round_)

    @contextmanager
    def patrol(self, mode: Mode) -> Iterator[OveruseMonitor]:
        book = UsageBook(self.snapshot, self.watched.current)
        made = OveruseMonitor(
            book,
            self.snapshot,
            self.cluster,
            mode,
            3,
            node=NODE,
            # A look is a second here, as the rounds have it.
            clock=lambda: float(self.rounds),
        )
        stop = Event()
        thread = Thread(target=made.run, args=(stop, 0.05))
        thread.start()
        try:
            yield made
        finally:
            stop.set()
            thread.join(60)
            assert not thread.is_alive()

    def wait_reported(self, patrol: OveruseMonitor) -> None:
        """Wait for a report, and ten rounds more in which nothing else may come."""
        wait_until(lambda: patrol.tally().reports, "a report")
        rounds = self.rounds
        wait_until(lambda: self.rounds > rounds + 10, "some more rounds")

    def events(self) -> list[Json]:
        found = self.plane.rest.must("GET", f"/api/v1/namespaces/{self.space}/events")
        return [event for event in found["items"] if event["reason"] == REASON]

    def is_there(self) -> bool:
        status, body = self.plane.rest.get(self.path)
        return status == 200 and "deletionTimestamp" not in body["metadata"]

    def budget(self, allowed: int) -> None:
        """Cover the pod; a second call changes how many disruptions are allowed."""
        rest, where = self.plane.rest, BUDGETS.format(self.space)
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "greedy"}}}
        body = {"metadata": {"name": "greedy"}, "spec": spec}
        if rest.get(f"{where}/greedy")[0] == 404:
            rest.must("POST", where, body)
        status = {
            "observedGeneration": 1,
            "disruptionsAllowed": allowed,
            "currentHealthy": 1,
            "desiredHealthy": 1,
            "expectedPods": 1,
        }
        rest.must("PATCH", f"{where}/greedy/status", {"status": status})


@contextmanager
def watched(
    plane: ControlPlane, space: str, components: Sequence[str]
) -> Iterator[Watched]:
    token = service_account_token(plane.rest, "kube-system", ACCOUNT)
    user = f"system:serviceaccount:kube-system:{ACCOUNT}"
    grant(plane.rest, user, shipped_rules(components))
    with ExitStack() as stack:
        cluster = ApiServer.connect(str(plane.kubeconfig(token, "exporter")))
        stack.callback(cluster.close)
        pods, stop = WatchedPods(), Event()
        selector = f"spec.nodeName={NODE}"
        reflector = Reflector(
            cluster,
            Kind.PODS,
            pods,
            field_selector=selector,
            pace=ReflectorPace(watch_s=5),
        )
        thread = Thread(target=reflector.run, args=(stop,), daemon=True)
        thread.start()
        stack.callback(stop.set)
        made = Watched(plane, space, cluster, pods)
        made.run_pod()

        def told() -> bool:
            current = pods.current()
            one = current.find(made.uid) if current else None
            return one is not None and bool(one.containers) and bool(one.shares())

        wait_until(told, "the watch to tell of the pod")
        yield made
        # A watch looks up at each word: so its thread sees that it is to stop.
        stop.set()
        plane.rest.must("DELETE", made.path, {"gracePeriodSeconds": 0})
        thread.join(60)
        assert not thread.is_alive()


def test_an_event_is_written_on_the_pod(plane: ControlPlane, space: str) -> None:
    """People see it in ``kubectl describe pod``; once, and the pod stays."""
    with watched(plane, space, []) as found, found.patrol("report") as patrol:
        found.wait_reported(patrol)
        [event] = found.events()
        assert event["involvedObject"]["uid"] == found.uid
        assert event["type"] == "Warning"
        assert event["source"] == {"component": COMPONENT, "host": NODE}
        assert "container main uses 3000 MiB of card 0" in event["message"]
        assert "its share is 2048 MiB" in event["message"]
        assert found.is_there()


def test_the_right_to_evict_is_not_there_by_itself(
    plane: ControlPlane, space: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The pod stays; the event is written, and the log says once what was refused."""
    with watched(plane, space, []) as found, found.patrol("evict") as patrol:
        found.wait_reported(patrol)
        assert patrol.tally() == OveruseTally(reports=1)
        assert found.is_there()
    refused = [record for record in caplog.records if "refused" in record.message]
    assert len(refused) == 1
    assert "Forbidden" in refused[0].because  # type: ignore[attr-defined]


def test_a_pod_over_its_share_is_evicted(plane: ControlPlane, space: str) -> None:
    """With the component laid over; it ends with its own grace."""
    with (
        watched(plane, space, ["exporter-evict"]) as found,
        found.patrol("evict") as patrol,
    ):
        wait_until(lambda: not found.is_there(), "the pod to be evicted")
        wait_until(lambda: patrol.tally().evictions, "the count")
        assert patrol.tally() == OveruseTally(reports=1, evictions=1)


def test_a_budget_keeps_the_pod(
    plane: ControlPlane, space: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server says no while it allows none."""
    with watched(plane, space, ["exporter-evict"]) as found:
        found.budget(0)
        with found.patrol("evict") as patrol:
            found.wait_reported(patrol)
            assert patrol.tally() == OveruseTally(reports=1)
            assert found.is_there()
        found.budget(1)
        with found.patrol("evict") as patrol:
            wait_until(lambda: not found.is_there(), "the pod to be evicted")
    refused = [record for record in caplog.records if "refused" in record.message]
    assert ["Throttled" in record.because for record in refused] == [True]  # type: ignore[attr-defined]
