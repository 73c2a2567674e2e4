"""What was allocated to whom, over restarts; and one plugin a node."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.allocation.records import (
    ALLOCATION,
    AllocationRecord,
    AllocationRecords,
)
from deviceplugin.serve import instance_lock
from gpushare.domain.model import Amount, PodUID
from gpushare.kube import names
from gpushare.kubelet.node_pods import NodePods, PodResources
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.deviceplugin.node_fixture import NODE, allocation_records

IDS = ("aaaaaaaa-m0000", "aaaaaaaa-m0001")
OLD_S = 1000.0
CORES = {"a": ("1", "2"), "b": ("3", "4"), "c": ("5",), "e": ("6",)}
"""Of some pods, the cores of a container that has ``IDS``."""


def record(
    name: str = "a", ids: tuple[str, ...] = IDS, container: str = "main"
) -> AllocationRecord:
    return AllocationRecord(
        "default", name, PodUID(f"uid-{name}"), container, names.MEMORY, ids
    )


@pytest.fixture
def records(tmp_path: Path) -> AllocationRecords:
    return allocation_records(tmp_path / "state" / "containers")


def file_of(records: AllocationRecords, found: AllocationRecord) -> Path:
    folder = records.folder(found)
    return folder.with_name(f"{folder.name}.json")


def start(
    records: AllocationRecords, found: AllocationRecord, text: str = "text"
) -> None:
    records.fill(found, found, text)


def test_a_record_comes_back(records: AllocationRecords, tmp_path: Path) -> None:
    records.write(record())
    again = allocation_records(tmp_path / "state" / "containers")
    assert again.of(reversed(IDS)) == [record()]
    assert again.all() == [record()]
    assert again.of(IDS[:1]) == []


def test_ids_are_their_last_pods(records: AllocationRecords, tmp_path: Path) -> None:
    """An earlier pod may run without kubelet's knowledge: its file is left alone."""
    earlier, later = record("a"), record("b")
    records.write(earlier)
    start(records, earlier)
    records.write(later)
    start(records, later, "other")
    os.utime(file_of(records, earlier), (OLD_S, OLD_S))
    for found in (records, allocation_records(tmp_path / "state" / "containers")):
        assert found.of(IDS) == [later]
        assert found.all() == [earlier, later]
        assert (found.folder(earlier) / ALLOCATION).read_text() == "text"


def test_a_new_pod_of_the_same_name_has_its_own(records: AllocationRecords) -> None:
    first = record("a")
    second = replace(first, uid=PodUID("another"))
    records.write(first)
    start(records, first)
    records.write(second)
    assert records.folder(first) != records.folder(second)
    assert not records.may_start(second)
    assert records.of(IDS) == [second]


def test_a_container_is_allocated_anew(records: AllocationRecords) -> None:
    """kubelet ended before it wrote the first down; what was before counts no more."""
    records.write(record(ids=("old",)))
    start(records, record(ids=("old",)))
    records.write(record(ids=("new",)))
    assert records.all() == [record(ids=("new",))]
    start(records, record(ids=("new",)))
    records.write(record(ids=("new",)))
    assert not records.may_start(record(ids=("new",)))


def test_what_is_learnt_later_leaves_the_folder_where_it_is(
    records: AllocationRecords, tmp_path: Path
) -> None:
    unknown = replace(record(), uid=PodUID(""), container="")
    records.write(unknown)
    folder = records.folder(unknown)
    known = replace(unknown, uid=PodUID("uid-a"))
    records.fill(unknown, known, "text")
    for found in (records, allocation_records(tmp_path / "state" / "containers")):
        assert found.all() == [known]
        assert found.folder(known) == folder
        assert found.may_start(known)


def test_a_name_from_before_is_kept(tmp_path: Path) -> None:
    """Another version named its files otherwise; its containers have them mounted."""
    folder = tmp_path / "containers"
    (folder / "other").mkdir(parents=True)
    (folder / "other.json").write_text(json.dumps(asdict(record())))
    records = allocation_records(folder)
    assert records.all() == [record()]
    start(records, record())
    assert (folder / "other" / ALLOCATION).read_text() == "text"


def test_two_containers_of_one_pod_with_the_same_ids(
    records: AllocationRecords,
) -> None:
    """kubelet hands an init container's on: a folder and a record each."""
    both = [record(container="once"), record(container="main")]
    for written in both:
        records.write(written)
    assert records.of(IDS) == both
    assert records.folder(both[0]) != records.folder(both[1])
    records.write(record("b"))
    assert records.of(IDS) == [record("b")]


def test_a_container_sees_its_file_whole(records: AllocationRecords) -> None:
    records.write(record())
    folder = records.folder(record())
    start(records, record(), "old")
    opened = (folder / ALLOCATION).open()
    start(records, record(), "new")
    assert opened.read() == "old"
    opened.close()
    assert (folder / ALLOCATION).read_text() == "new"
    assert list(folder.iterdir()) == [folder / ALLOCATION]
    assert (folder / ALLOCATION).stat().st_mode & 0o777 == 0o644
    assert folder.stat().st_mode & 0o755 == 0o755


def test_a_crash_while_writing_leaves_the_old_record(
    records: AllocationRecords, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records.write(record("a"))

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        records.write(record("b"))
    assert allocation_records(tmp_path / "state" / "containers").all() == [record("a")]


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", "{}", '{"ids": []}', '{"more": 1, "ids": []}', "\udcff"]
)
def test_a_broken_record_is_none(
    records: AllocationRecords, tmp_path: Path, text: str
) -> None:
    records.write(record())
    file_of(records, record()).write_bytes(text.encode(errors="surrogateescape"))
    records.write(record("b", ids=("x",)))
    again = allocation_records(tmp_path / "state" / "containers")
    assert again.of(IDS) == []
    assert again.all() == [record("b", ids=("x",))]


def test_a_record_is_swept_with_its_folder(records: AllocationRecords) -> None:
    for name, ids in (("dead", ("1",)), ("living", ("2",))):
        kept = record(name, ids)
        records.write(kept)
        start(records, kept)
    broken = records.folder(record()).with_name("broken.json")
    broken.write_text("{")
    records.sweep(lambda kept: kept.name == "living", 0)
    assert {record.name for record in records.all()} == {"living"}
    files = [file_of(records, record) for record in records.all()]
    folders = [path.with_suffix("") for path in files]
    assert {*broken.parent.iterdir()} == {*files, *folders}


def test_how_long_a_record_was_not_kept(records: AllocationRecords) -> None:
    """Its age says nothing: the pod of an old one may just be ending."""
    kept = record()
    records.write(kept)
    os.utime(file_of(records, kept), (OLD_S, OLD_S))
    records.sweep(lambda _: False, OLD_S)
    records.sweep(lambda _: True, 0)
    least_s = 1e-9
    records.sweep(lambda _: False, least_s)
    records.write(kept)
    records.sweep(lambda _: False, least_s)
    assert records.all() == [kept]
    records.sweep(lambda _: False, least_s)
    assert records.all() == []


def test_what_containers_had_before() -> None:
    """Of each pod by itself, and only if all that had so much agree."""
    cores = [replace(record(n), resource=names.CORE, ids=i) for n, i in CORES.items()]
    before = [*map(record, CORES), *cores, record("e", ids=("1",), container="other")]
    nobody = cast("PodResources", None)
    of = Occupancy(NODE, NodePods(Embedded(), NODE), nobody, before)
    memory = Amount(units=len(IDS))
    for pods, part, amount in (
        ("a", memory, Amount(2, 2)),
        ("ab", memory, Amount(2, 2)),
        ("abx", Amount(cores=2), Amount(2, 2)),
        ("abc", memory, None),
        ("e", Amount(units=1), Amount(units=1)),
        ("e", Amount(units=4), None),
        ("x", memory, None),
    ):
        assert of.amount_before([("default", name) for name in pods], part) == amount


def test_a_second_plugin_can_be_stopped(tmp_path: Path) -> None:
    stop = Event()
    stop.set()
    with instance_lock(tmp_path, Event()), instance_lock(tmp_path, stop) as only:
        assert not only
