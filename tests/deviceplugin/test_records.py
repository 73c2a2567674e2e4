"""What was allocated to whom, over restarts; and one plugin a node."""

import json
import os
from pathlib import Path
from threading import Event, Thread

import pytest

from deviceplugin.alone import only_one
from deviceplugin.records import ALLOCATION, Record, Records, key
from gpushare.domain.model import PodUID
from gpushare.kube import names
from tests.testbed.waiting import wait_until

IDS = ("aaaaaaaa-m0001", "aaaaaaaa-m0000")
OLD_S = 1000.0


def record(
    name: str = "a", ids: tuple[str, ...] = IDS, container: str = "main"
) -> Record:
    return Record("default", name, PodUID(f"uid-{name}"), container, names.MEMORY, ids)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "state" / "containers")


def file_of(records: Records, ids: tuple[str, ...] = IDS) -> Path:
    folder = records.folder(ids, "main")
    return folder.with_name(f"{folder.name}.json")


def test_the_key_is_of_the_set() -> None:
    """kubelet names ids in any order; one more or less is another key."""
    assert key(IDS) == key(reversed(IDS))
    assert len({key(IDS), key(IDS[:1]), key([]), key([*IDS, "x"])}) == 4
    assert len(key(IDS)) == 16


def test_a_record_comes_back(records: Records, tmp_path: Path) -> None:
    """In another process too, whatever the order of the ids."""
    records.write(record())
    again = Records(tmp_path / "state" / "containers")
    assert again.of(reversed(IDS)) == [record()]
    assert again.all() == [record()]
    assert again.of(IDS[:1]) == []


def test_the_next_owner_replaces_the_last(records: Records) -> None:
    """Ids are given again once their pod has ended."""
    records.write(record("a"))
    records.write(record("b"))
    assert records.all() == [record("b")]


def test_two_containers_of_one_pod_with_the_same_ids(records: Records) -> None:
    """kubelet hands an init container's on: a folder and a record each."""
    records.write(record(container="once"))
    records.write(record(container="main"))
    assert {one.container for one in records.of(IDS)} == {"once", "main"}
    assert records.folder(IDS, "once") != records.folder(IDS, "main")
    records.write(record("b"))
    assert records.of(IDS) == [record("b")]


def test_a_container_sees_its_file_whole(records: Records) -> None:
    """Readable by any user, replaced in one step, nothing left beside it."""
    folder = records.folder(IDS, "main")
    records.fill(IDS, "main", "old")
    opened = (folder / ALLOCATION).open()
    records.fill(IDS, "main", "new")
    assert opened.read() == "old"
    opened.close()
    assert (folder / ALLOCATION).read_text() == "new"
    assert list(folder.iterdir()) == [folder / ALLOCATION]
    assert (folder / ALLOCATION).stat().st_mode & 0o777 == 0o644
    assert folder.stat().st_mode & 0o755 == 0o755


def test_a_crash_while_writing_leaves_the_old_record(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one counts once it is whole."""
    records.write(record("a"))

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        records.write(record("b"))
    assert records.all() == [record("a")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "null",
        "{}",
        json.dumps({"ids": []}),
        json.dumps({"ids": 7}),
        json.dumps({"namespace": "d", "name": "n", "more": 1, "ids": []}),
        "\udcff",
    ],
)
def test_a_broken_record_is_none(records: Records, text: str) -> None:
    """As if never written; others are read."""
    file_of(records).write_bytes(text.encode(errors="surrogateescape"))
    records.write(record("b", ids=("x",)))
    assert records.of(IDS) == []
    assert records.all() == [record("b", ids=("x",))]


def test_a_record_is_swept_with_its_folder(records: Records) -> None:
    """Once its pod lives no more and it is not young."""
    for name, ids in (("dead", ("1",)), ("young", ("2",)), ("living", ("3",))):
        records.write(record(name, ids))
        records.fill(ids, "main", "text")
        if name != "young":
            os.utime(file_of(records, ids), (OLD_S, OLD_S))
            os.utime(records.folder(ids, "main"), (OLD_S, OLD_S))
    broken = file_of(records, ("1",)).with_name("broken.json")
    broken.write_text("{")
    os.utime(broken, (OLD_S, OLD_S))
    assert records.sweep(lambda one: one.name == "living", OLD_S) == 2
    assert {one.name for one in records.all()} == {"young", "living"}
    left = {path.name for path in broken.parent.iterdir()}
    assert len(left) == 4
    assert {name[:16] for name in left} == {key(["2"]), key(["3"])}


def test_a_second_plugin_waits_for_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and goes on when the first has ended."""
    stop, inside, leave = Event(), Event(), Event()

    def second() -> None:
        with only_one(tmp_path, stop) as only:
            assert only
            inside.set()
            leave.wait()

    with only_one(tmp_path, stop) as only:
        assert only
        thread = Thread(target=second)
        thread.start()
        wait_until(lambda: caplog.records, "a word about it")
        assert not inside.is_set()
    inside.wait(20)
    leave.set()
    thread.join()
    assert inside.is_set()
    words = ["another device plugin runs here; waiting for its end"]
    assert [one.message for one in caplog.records] == words


def test_a_second_plugin_can_be_stopped(tmp_path: Path) -> None:
    """While it waits: then it was never the only one."""
    stop = Event()
    found: list[bool] = []

    def second() -> None:
        with only_one(tmp_path, stop) as only:
            found.append(only)

    with only_one(tmp_path, Event()):
        thread = Thread(target=second)
        thread.start()
        stop.set()
        thread.join()
    assert found == [False]


def test_the_lock_is_let_go_of_whatever_happens(tmp_path: Path) -> None:
    """An exception inside does not shut the next one out."""
    with pytest.raises(KeyError), only_one(tmp_path / "new", Event()):
        raise KeyError
    with only_one(tmp_path / "new", Event()) as only:
        assert only
