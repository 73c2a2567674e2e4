"""Pods that have their cards by ResourceClaims are seen as classic pods are."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread

import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Request

from exporter.owners.claims import PodsWithResourceClaims, ResourceClaimsFolder
from exporter.owners.owner_pods import OwnerPods
from exporter.run import assemble_exporter
from exporter.settings import ExporterSettings
from exporter.usage import Usage, account_usage, is_over
from gpushare.domain.model import Amount, CardUUID
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.resource_claims.allocated import name_device
from gpushare.kubelet.claim_records import PreparedDevice, PreparedResourceClaim
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import container_json, pod_json, with_claims
from tests.deviceplugin.node_fixture import NODE, found_card
from tests.exporter.exporter_data import (
    A,
    B,
    held,
    of,
    owner,
    owner_pods,
    processes,
    snapshot,
    use,
    with_ids,
)
from tests.exporter.scripted_telemetry import ScriptedTelemetry
from tests.testbed.waiting import wait_until

SHARE_MIB = 8 * 256
CONTEXT_MIB = 512


def claimed(name: str, **uses: str) -> Json:
    """A running pod; the claim, or ``claim/request``, of each of its containers."""
    containers = [container_json(container) for container in uses]
    return with_ids(with_claims(pod_json(name, containers=containers, node=NODE), uses))


def device(card: str = A, request: str = "card", cores: int = 10) -> PreparedDevice:
    uuid = CardUUID(card)
    return PreparedDevice(request, name_device(uuid), uuid, cores, 8, "s", ())


class Folder:
    """The device plugin's folder of prepared claims, and who reads it."""

    def __init__(self, path: Path, *pods: Json) -> None:
        self.path = path / "claims"
        self.pods = owner_pods(*pods)
        self.joined = PodsWithResourceClaims(
            lambda: self.pods, ResourceClaimsFolder(self.path).read
        )

    def prepare(self, name: str, *devices: PreparedDevice, uid: str = "") -> None:
        self.path.mkdir(exist_ok=True)
        uid = uid or f"uid-{name}"
        claim = PreparedResourceClaim(
            uid, "default", name, devices or (device(),), {}, {}
        )
        body = json.dumps({"v": 1, **asdict(claim)})
        (self.path / f"{uid}.json").write_text(body)

    def current(self) -> OwnerPods:
        found = self.joined.current()
        assert found is not None
        return found

    def usage(self, **mib: float) -> Usage:
        """The usage of card A by one process of ``pod__container`` for each."""
        running = [use(pid, memory_mib) for pid, memory_mib in enumerate(mib.values())]
        owners = {pid: owner(*name.split("__")) for pid, name in enumerate(mib.keys())}
        now = snapshot(round_=processes({A: running}, owners))
        return account_usage(now, self.current(), Usage())


def test_its_share_is_known(tmp_path: Path) -> None:
    """What it uses within its share is no overuse; what it uses beyond it is."""
    folder = Folder(tmp_path, claimed("a", main="c"), held("b", 4))
    folder.prepare("c")
    within = of(folder.usage(a__main=SHARE_MIB + CONTEXT_MIB), "a")
    assert within.allotted == Amount(10, 8)
    assert is_over(within) is False
    beyond = of(folder.usage(a__main=1.2 * SHARE_MIB + CONTEXT_MIB), "a")
    assert is_over(beyond) is True
    assert folder.usage().cards[CardUUID(A)].allotted_units == 12


def test_the_exporter_reads_the_plugins_folder(tmp_path: Path) -> None:
    """By its settings: what a pod has by a claim is on the page."""
    cluster = Embedded()
    cluster.create(Kind.PODS, claimed("a", main="c"))
    Folder(tmp_path).prepare("c")
    given = ExporterSettings(NODE, state_dir=tmp_path)
    made = assemble_exporter(given, ScriptedTelemetry(found_card(0)), cluster)
    made.file_watcher.read_fields()
    made.sampler.look_once()
    stop = Event()
    Thread(target=made.loops["follow pods"], args=(stop,), daemon=True).start()

    def told() -> str:
        return Client(Request.application(made.pages.every)).get("/metrics").text

    wait_until(lambda: 'PodName="a"' in told(), "the pod")
    stop.set()
    assert "vcuda_card_memory_allocated_bytes{" in told()


def test_each_container_has_its_request(tmp_path: Path) -> None:
    """A container without one has none, and uses the card without a request."""
    pod = claimed("a", left="c/left", right="c/right", both="c")
    pod["spec"]["containers"].append(container_json("none"))
    folder = Folder(tmp_path, with_ids(pod))
    folder.prepare("c", device(A, "left"), device(B, "right"))
    found = folder.usage(a__left=1, a__none=1)
    assert of(found, "a", "left").allotted == Amount(10, 8)
    assert {use.card for use in found.containers if use.container == "left"} == {A}
    assert of(found, "a", "right", B).allotted == Amount(10, 8)
    assert of(found, "a", "both", B).allotted == Amount(10, 8)
    assert of(found, "a", "none").allotted is None
    assert is_over(of(found, "a", "none")) is True


def test_a_claim_counts_once_for_all_that_use_it(tmp_path: Path) -> None:
    """Together they may use its share; one that is idle is not accused."""
    pods = [claimed("a", x="c", y="c"), claimed("b", main="c")]
    folder = Folder(tmp_path, *pods)
    folder.prepare("c")
    half = 0.6 * SHARE_MIB + CONTEXT_MIB
    found = folder.usage(a__x=half, a__y=half, b__main=100)
    assert found.cards[CardUUID(A)].allotted_units == 8
    over = {use.container: is_over(use) for use in found.containers}
    assert over == {"x": True, "y": True, "main": False}
    alone = folder.usage(a__x=half)
    assert {is_over(use) for use in alone.containers} == {False}


def test_who_also_holds_more_is_not_charged_to_who_holds_less(tmp_path: Path) -> None:
    """Of which part it uses the card is not known."""
    folder = Folder(tmp_path, claimed("a", left="c/left", both="c"))
    folder.prepare("c", device(request="left"), device(request="right"))
    half = 0.5 * SHARE_MIB
    found = folder.usage(a__left=half + CONTEXT_MIB, a__both=3 * half + CONTEXT_MIB)
    assert {is_over(use) for use in found.containers} == {False}


@pytest.mark.parametrize(
    ("parts", "over"),
    [
        ([device(cores=100)], None),
        ([device(request=name, cores=50) for name in ("left", "right")], True),
    ],
    ids=["whole", "halves"],
)
def test_a_whole_card_has_no_share_to_exceed(
    tmp_path: Path, parts: list[PreparedDevice], over: bool | None
) -> None:
    """Two requests of 50 cores are no whole card."""
    folder = Folder(tmp_path, claimed("a", main="c"))
    folder.prepare("c", *parts)
    found = folder.usage(a__main=9 * SHARE_MIB)
    assert is_over(of(found, "a")) is over
    assert of(found, "a").exclusive == found.cards[CardUUID(A)].exclusive == (not over)


def test_an_init_container_holds_its_claim_while_it_runs(tmp_path: Path) -> None:
    pod = pod_json("a", init=[container_json("first")], node=NODE)
    pod = with_claims(pod, {"first": "c", "main": "c"})
    folder = Folder(tmp_path, pod)
    folder.prepare("c")
    assert [use.container for use in folder.usage().containers] == ["main"]
    folder.pods = owner_pods(with_ids(pod))
    names = {use.container for use in folder.usage().containers}
    assert names == {"first", "main"}


def test_a_restarted_container_is_not_its_init_container(tmp_path: Path) -> None:
    """Its new id is not known yet. The init container, which has ended, is not it."""
    pod = pod_json("a", init=[container_json("first")], node=NODE)
    pod = with_ids(with_claims(pod, {"first": "c", "main": "c"}))
    pod["status"]["initContainerStatuses"][0]["state"] = {"terminated": {}}
    folder = Folder(tmp_path, pod)
    folder.prepare("c")
    assert of(folder.usage(a__new=100), "a").memory_mib == 100


def test_what_is_not_known_is_not_judged(tmp_path: Path) -> None:
    """Without the folder, with a damaged record, or with two claims of the name."""
    folder = Folder(tmp_path, claimed("a", main="c"), held("b", 4))

    def judged() -> tuple[bool | None, int | None]:
        found = folder.usage(a__main=9 * SHARE_MIB)
        return is_over(of(found, "a")), found.cards[CardUUID(A)].allotted_units

    assert judged() == (None, None)
    folder.prepare("c")
    assert judged() == (True, 12)
    (folder.path / "uid-c.json").write_text('{"v": 1')
    assert judged() == (None, None)
    folder.prepare("c")
    folder.prepare("c", uid="uid-earlier")
    assert judged() == (None, 20)


def test_a_folder_that_was_removed_tells_nothing(tmp_path: Path) -> None:
    """The exporter has it mounted, so it goes on to see the former one, and empty."""
    folder = Folder(tmp_path, claimed("a", main="c"))
    folder.path.mkdir()
    mounted = os.open(folder.path, os.O_RDONLY)
    folder.path.rmdir()
    its = ResourceClaimsFolder(Path(f"/proc/self/fd/{mounted}"))
    assert not its.read().complete
    os.close(mounted)


def test_claims_of_other_drivers_are_no_part_of_a_card(tmp_path: Path) -> None:
    """Once all prepared claims are known, it uses the card without a request."""
    folder = Folder(tmp_path, claimed("a", main="network"))
    folder.path.mkdir()
    found = of(folder.usage(a__main=100), "a")
    assert found.allotted is None
    assert is_over(found) is True


def test_nothing_is_joined_again_while_nothing_changes(tmp_path: Path) -> None:
    """Else the usage is computed anew; a damaged record makes no difference."""
    folder = Folder(tmp_path, claimed("a", main="c"))
    folder.prepare("c")
    (folder.path / "damaged.json").write_text("{")
    before = folder.current()
    assert folder.current() is before
    folder.prepare("d")
    assert folder.current() is not before
    (folder.path / "uid-d.json").unlink()
    assert folder.current().claimed == before.claimed
