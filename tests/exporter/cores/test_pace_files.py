"""The files by which containers hear how long their launches wait."""

import errno
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from unittest.mock import Mock
from uuid import UUID

import pytest

from exporter.cores.pace import Pace
from exporter.cores.pace_files import PACE, PaceWriter
from exporter.run import assemble_exporter, start_exporter
from exporter.settings import ExporterSettings
from exporter.snapshot import TelemetrySnapshot
from exporter.telemetry.base import ProcessesAnswer
from exporter.usage import UsageBook
from gpushare.domain.model import PodUID
from gpushare.kube import names
from gpushare.kube.cluster import Kind
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.deviceplugin.node_fixture import NODE
from tests.exporter.exporter_data import (
    SAMPLES,
    A,
    B,
    cid,
    held,
    owner,
    owner_pods,
    processes,
    use,
)
from tests.exporter.exporter_data import snapshot as made_snapshot
from tests.exporter.owners.test_limit_folders import DRIVER, PRELOAD, RECORD, put
from tests.exporter.owners.test_procfs import Tree
from tests.exporter.scripted_telemetry import ScriptedTelemetry
from tests.testbed.waiting import wait_until

Log = pytest.LogCaptureFixture
KEY = (A, "uid-a", "main")
PODS = [held("a", cores=30), held("b", cores=70), held("w", charged=(29, 100))]


class Node:
    """``a`` has 30 cores of a card and ``b`` 70; ``state`` is the plugin's folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.now = 1000.0
        self.snapshot = TelemetrySnapshot()
        pods = owner_pods(*PODS)
        book = UsageBook(lambda: self.snapshot, lambda: pods)
        containers = state / "containers"
        self.writer = PaceWriter(lambda: self.snapshot, book, containers, self.clock)

    def clock(self) -> float:
        return self.now

    def measure(self, *sm: float | None, failure: str = "") -> None:
        """A round in which the containers had these shares of the card (%)."""
        uses = [use(pid, 100, share) for pid, share in enumerate(sm)]
        owners = {pid: owner(name) for pid, name in enumerate("abw")}
        at = 1e9 + self.now
        round_ = processes({A: uses}, owners, at=at, failure=failure)
        self.snapshot = made_snapshot(round_=round_)
        self.tick()

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.1
            self.writer.write()

    def busy(self) -> None:
        for _ in range(5):
            self.measure(50, 50)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def content_of(folder: Path) -> Sequence[int]:
    """What the file says: its form, the delay, and when it was written."""
    text = (folder / PACE).read_text()
    assert text.endswith("\n")
    return [int(word) for word in text.split(" ")]


def test_a_container_above_its_cores_hears_a_delay(node: Node) -> None:
    """Each tenth of a second anew. Who is below its own hears nothing."""
    folder = put(node.state, RECORD, PRELOAD)
    other = put(node.state, replace(RECORD, uid=PodUID("uid-b")), PRELOAD)
    whole = put(node.state, replace(RECORD, uid=PodUID("uid-w")), PRELOAD)
    node.busy()
    form, delay_us, stamp_ms = content_of(folder)
    assert form == 1
    assert 0 < delay_us <= 100_000
    assert stamp_ms == int(node.now * 1000)
    os.utime(folder / PACE, (0, 0))
    node.tick()
    # Its time says that it is not old, and costs less than another file.
    assert content_of(folder) == [1, delay_us, stamp_ms]
    assert (folder / PACE).stat().st_mtime > 0
    assert node.writer.delays()[KEY] == pytest.approx(delay_us / 1e6, abs=1e-6)
    assert not (other / PACE).exists()
    assert not (whole / PACE).exists()
    assert node.writer.delays()[(A, "uid-b", "main")] == 0
    assert (A, "uid-w", "main") not in node.writer.delays()


def test_who_has_no_library_has_no_file(node: Node) -> None:
    """Nor a delay that anybody could show."""
    folder = put(node.state, RECORD, DRIVER)
    node.busy()
    assert not (folder / PACE).exists()
    assert not node.writer.delays()


def test_both_folders_of_a_container_say_it(node: Node) -> None:
    """kubelet mounts one of them, and nobody knows which."""
    first = put(node.state, RECORD, PRELOAD)
    core = replace(RECORD, resource=names.CORE, ids=("1f9c27aa-c001",))
    second = put(node.state, core, PRELOAD)
    node.busy()
    assert content_of(first) == content_of(second)


def test_a_file_is_whole_and_every_user_may_read_it(node: Node) -> None:
    """By another file for another delay: an open one does not change."""
    folder = put(node.state, RECORD, PRELOAD)
    node.busy()
    with (folder / PACE).open() as opened:
        before = content_of(folder)
        node.measure(50, 50)
        assert content_of(folder) != before
        assert [int(word) for word in opened.read().split()] == before
    assert stat.S_IMODE((folder / PACE).stat().st_mode) == 0o644
    assert [path.name for path in folder.iterdir() if PACE in path.name] == [PACE]


def test_a_delay_that_ends_is_told_once(node: Node) -> None:
    """Later the file may grow old: an old one is no delay."""
    folder = put(node.state, RECORD, PRELOAD)
    node.busy()
    node.now += 4
    node.measure(90, 0)
    last = content_of(folder)
    assert last[1] == 0
    node.tick(5)
    assert content_of(folder) == last
    assert node.writer.delays()[KEY] == 0


@pytest.mark.parametrize(
    "how", ["a share is not known", "the round failed", "no round"]
)
def test_what_is_not_known_ends_the_delay(node: Node, how: str) -> None:
    folder = put(node.state, RECORD, PRELOAD)
    node.busy()
    if how == "a share is not known":
        node.measure(None, 50)
    elif how == "the round failed":
        node.measure(50, 50, failure="it hangs")
    else:
        node.tick(49)
        assert content_of(folder)[1] > 0
    node.tick(10)
    assert content_of(folder)[1] == 0


def test_a_folder_that_vanishes_is_no_error(node: Node, caplog: Log) -> None:
    folder = put(node.state, RECORD, PRELOAD)
    node.busy()
    folder.rename(folder.with_name("elsewhere"))
    node.tick()
    assert KEY not in node.writer.delays()
    node.measure(50, 50)
    assert not caplog.records


def test_a_disk_that_fails_is_logged_once_and_delays_nobody(
    node: Node, caplog: Log
) -> None:
    """The others hear theirs; this one is shown without a delay until it hears one."""
    folder = put(node.state, RECORD, PRELOAD)
    (folder / PACE).mkdir()
    (folder / PACE / "in the way").touch()
    node.busy()
    node.tick(3)
    (record,) = caplog.records
    assert record.folder == str(folder)  # type: ignore[attr-defined]
    assert KEY not in node.writer.delays()
    (folder / PACE / "in the way").unlink()
    (folder / PACE).rmdir()
    node.tick()
    assert node.writer.delays()[KEY] > 0


def test_a_container_on_two_cards_waits_as_the_longer_delay_says(node: Node) -> None:
    """It has a share of one, and a claim gave it a part of the other: one file."""
    folder = put(node.state, RECORD, PRELOAD)
    node.busy()
    node.writer._paces = {
        (card, "uid-a", "main"): Pace(delay_us, delay_us, 30.0)
        for card, delay_us in ((A, 900.0), (B, 40.0))
    }
    node.tick()
    assert content_of(folder)[1] == 900
    assert set(node.writer.delays().values()) == {900 / 1e6}


def test_a_folder_of_a_container_that_allocate_did_not_know(node: Node) -> None:
    """Its record has no container's name; what the container sees has it."""
    folder = put(node.state, replace(RECORD, container=""), PRELOAD)
    told_inside = {"uid": "uid-a", "container": "main"}
    (folder / "allocation.json").write_text(json.dumps(told_inside))
    node.busy()
    assert content_of(folder)[1] > 0


def test_folders_that_cannot_be_listed_end_nothing(
    node: Node, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds all of the process's files open does not end the exporter."""
    folder = put(node.state, RECORD, PRELOAD)
    node.busy()
    with monkeypatch.context() as patch:
        full = OSError(errno.EMFILE, "Too many open files")
        patch.setattr(os, "scandir", Mock(side_effect=full))
        node.busy()
    message = "new containers do not hear how long their launches wait"
    assert caplog.messages == [message]
    os.utime(folder / PACE, (0, 0))
    node.tick()
    assert (folder / PACE).stat().st_mtime > 0


def test_a_record_that_is_cut_short_is_left_out(node: Node) -> None:
    folder = put(node.state, RECORD, PRELOAD)
    os.truncate(folder.with_name(f"{folder.name}.json"), 9)
    node.busy()
    assert not (folder / PACE).exists()


def test_the_exporter_writes_until_it_ends(tmp_path: Path) -> None:
    """From the driver's figures of two processes to the file, with all its threads."""
    (tmp_path / "host").mkdir()
    uids = {name: PodUID(str(UUID(int=ord(name)))) for name in "ab"}
    cluster = Embedded(new_uid=iter(uids.values()).__next__)
    tree, telemetry = Tree(tmp_path / "host"), ScriptedTelemetry()
    telemetry.lists[A] = ProcessesAnswer((use(1, 9, 50), use(2, 9, 50)), SAMPLES)
    for pid, (name, uid) in enumerate(uids.items(), 1):
        pod = json.loads(json.dumps(held(name, cores=30)).replace(f"uid-{name}", uid))
        made = cluster.create(Kind.PODS, pod)
        running = made | {"status": pod["status"]}
        cluster.replace(Kind.PODS, running, subresource="status")
        tree.process(pid, f"0::/kubepods/pod{uid}/{cid(f'{name}/main')}\n")
        record = replace(RECORD, uid=uid, name=name, ids=(f"1f9c27aa-m{pid}",))
        folder = put(tmp_path, record, PRELOAD)
    settings = ExporterSettings(
        NODE, state_dir=tmp_path, host_root=tree.root, compute="share"
    )
    exporter = assemble_exporter(settings, telemetry, cluster)
    stop = Event()
    threads = {thread.name: thread for thread in start_exporter(exporter, stop)}
    try:
        wait_until((folder / PACE).exists, "a file")
        first = (folder / PACE).stat().st_mtime_ns
        wait_until(lambda: (folder / PACE).stat().st_mtime_ns > first, "a newer one")
    finally:
        stop.set()
        exporter.sampler.wake()
    writer = threads["pace launches"]
    writer.join(30)
    assert not writer.is_alive()
