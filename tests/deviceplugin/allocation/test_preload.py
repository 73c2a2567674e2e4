"""Tier preload: what the node and each container get, over restarts and changes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deviceplugin.allocation.isolation import NodeLibrary, Tier, why_not_preload
from deviceplugin.allocation.records import AllocationRecord
from exporter.owners.regions import counted_in
from gpushare.cards.source import FoundCard, MigInstance
from gpushare.domain.model import PodUID
from gpushare.files import replace_file
from gpushare.kube import names
from gpushare.kubelet.limit_files import LIMITS, REGION
from gpushare.kubelet.pods import HardLimit
from gpusharectl.demo.devices import ContainerConfig
from tests.builders import container_json, pod_json
from tests.deviceplugin.allocation import test_isolation
from tests.deviceplugin.node_fixture import (
    UUIDS,
    C,
    M,
    NodeFixture,
    allocation_records,
    asks_first,
    driver_limit,
    found_card,
    inside,
)
from tests.exporter.exporter_data import counting
from tests.machine import needs
from tests.testbed.waiting import wait_until

MACHINE = "x86_64"
MOUNTED = {
    "/etc/ld.so.preload": ("vcuda/preload/ld.so.preload", True),
    "/usr/lib/vcuda/libvcuda.so.1": ("vcuda/preload/libvcuda.so.1", True),
}
"""What each limited container has: its place on the node, whether it is read-only."""


@pytest.mark.parametrize(
    ("card", "machine", "library", "why"),
    [
        (found_card(0), MACHINE, "", ""),
        (found_card(0, instance=MigInstance(UUIDS[1], 1, 0)), MACHINE, "", ""),
        (found_card(0, simulated=True), MACHINE, "", "not a card of NVIDIA"),
        (found_card(0, known_to_driver=False), MACHINE, "", "not a card of NVIDIA"),
        (found_card(0), "aarch64", "", "processor is aarch64"),
        (found_card(0), MACHINE, "there is no library", "there is no library"),
    ],
)
def test_each_check(card: FoundCard, machine: str, library: str, why: str) -> None:
    said = why_not_preload(card, machine, library)
    assert why in said
    assert bool(said) == bool(why)


@pytest.fixture
def library(tmp_path: Path) -> NodeLibrary:
    (tmp_path / "image").write_bytes(b"the library")
    return NodeLibrary(tmp_path / "state" / "preload", tmp_path / "image")


def lose(library: NodeLibrary) -> None:
    library.library.unlink()


def alter(library: NodeLibrary) -> None:
    library.preload.write_text("/another.so\n")


def lock_up(library: NodeLibrary) -> None:
    library.library.chmod(0o600)


def make_folder(library: NodeLibrary) -> None:
    """A container that started without the file made the runtime make a folder."""
    library.preload.unlink()
    library.preload.mkdir()


def leave_alone(library: NodeLibrary) -> None:
    del library


@pytest.mark.parametrize("harm", [leave_alone, lose, alter, lock_up, make_folder])
def test_the_library_is_put_right(
    library: NodeLibrary, harm: Callable[[NodeLibrary], None]
) -> None:
    before = os.umask(0o077)
    try:
        assert library.install() == ""
        harm(library)
        assert library.install() == ""
    finally:
        os.umask(before)
    assert library.library.read_bytes() == b"the library"
    assert library.preload.read_text() == "/usr/lib/vcuda/libvcuda.so.1\n"
    modes = [path.stat().st_mode & 0o777 for path in (library.library, library.preload)]
    assert modes == [0o755, 0o644]
    assert len(list(library.folder.iterdir())) == 2


def test_a_new_library_is_another_file(library: NodeLibrary) -> None:
    """What runs has the old one mapped; what has not changed is not written again."""
    library.install()
    inode = library.library.stat().st_ino
    with library.library.open("rb") as running:
        library.install()
        assert library.library.stat().st_ino == inode
        library.source.write_bytes(b"a new one")
        library.install()
        assert running.read() == b"the library"
    assert library.library.read_bytes() == b"a new one"


def test_why_the_library_cannot_be_there(library: NodeLibrary) -> None:
    library.source.unlink()
    assert "the device plugin has no library" in library.install()
    library.source.write_bytes(b"the library")
    library.folder.parent.write_text("a file where the folder should be")
    assert "cannot be written" in library.install()


def test_a_node_from_which_nothing_can_be_executed(library: NodeLibrary) -> None:
    """The dynamic linker would leave the library out, and the program would run."""
    needs(os.geteuid() == 0, "root", "run the tests as root")
    library.folder.mkdir(parents=True)
    code = (
        "import sys; from pathlib import Path; "
        "from deviceplugin.allocation.isolation import NodeLibrary; "
        "print(NodeLibrary(*map(Path, sys.argv[1:])).install())"
    )
    mount = f"mount -t tmpfs -o noexec none {library.folder} && exec"
    python = f"{sys.executable} -c '{code}' {library.folder} {library.source}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} {python}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "is mounted with noexec" in done.stdout


@contextmanager
def node_of(folder: Path, tier: Tier) -> Iterator[NodeFixture]:
    """One card of 29 units and 100 MiB."""
    needs(os.uname().machine == MACHINE, MACHINE, "use another machine")
    settings = test_isolation.prepare(folder) | {"isolation": tier}
    with NodeFixture(folder, found_card(0), settings=settings) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFixture]:
    with node_of(tmp_path, "preload") as made:
        yield made


def mounts(node: NodeFixture, given: ContainerConfig) -> dict[str, tuple[str, bool]]:
    """What a container has mounted beside its share: place on the node, read-only."""
    return {
        path: (str(Path(mount.host_path).relative_to(node.folder)), mount.read_only)
        for path, mount in given.mounts.items()
        if path != "/etc/vcuda"
    }


def region(given: ContainerConfig) -> Path:
    return Path(given.mounts["/run/vcuda/region"].host_path)


def use(path: Path) -> None:
    """Mark a region as one that a container has had."""
    path.chmod(0o606)


def is_new(path: Path) -> bool:
    """Whether it was made since, for every user of the container."""
    return path.is_fifo() and path.stat().st_mode & 0o777 == 0o666


def limits(given: ContainerConfig) -> str:
    return (Path(given.mounts["/etc/vcuda"].host_path) / LIMITS).read_text()


def limit_of(mib: int) -> str:
    return f"vcuda-limits 2\ncard {UUIDS[0]} {mib} {CONTEXT_MIB}\n"


PODS: Mapping[str, tuple[int | None, int | None]] = {
    "memory": (4, None),
    "both": (4, 1),
    "cores": (None, 5),
    "whole by cores": (None, 100),
    "whole by both": (4, 100),
}
"""Units and cores of each."""
CONTEXT_MIB = 256
HELD = {"memory": 1024, "both": 1024, "cores": CONTEXT_MIB}
"""What holds each container, in MiB; the others are not held."""


@pytest.mark.parametrize(
    ("tier", "held"), [("none", {}), ("driver", HELD), ("preload", HELD)]
)
def test_what_each_tier_gives(
    tmp_path: Path, tier: Tier, held: Mapping[str, int]
) -> None:
    """The same container has either the driver's limit by CDI or the library."""
    with node_of(tmp_path, tier) as node:
        for what, (units, cores) in PODS.items():
            name = what.replace(" ", "-")
            given = node.run(node.bind(name, units, cores))["main"]
            mib = held.get(what)
            told = inside(given)
            assert told["isolation"] == ("none" if mib is None else tier), what
            assert told.get("hard_limit_mib") == mib, what
            limited = tier == "driver" and mib is not None
            wanted = {
                "NVIDIA_GPU_MEMORY_REQUEST": "0",
                "NVIDIA_GPU_MEMORY_LIMIT": str(mib),
            }
            assert driver_limit(given) == (wanted if limited else {}), what
            if tier == "preload" and mib is not None:
                where = str(region(given).relative_to(node.folder))
                there = MOUNTED | {"/run/vcuda/region": (where, False)}
                assert mounts(node, given) == there, what
                assert limits(given) == limit_of(mib), what
            else:
                assert mounts(node, given) == {}, what
                with pytest.raises(FileNotFoundError):
                    limits(given)
            if units is not None:
                assert given.envs["VCUDA_MEMORY_LIMIT_MIB"] == str(units * 256), what
            node.end_pod(name)


def test_a_limit_by_cdi_is_there_as_long_as_its_container(tmp_path: Path) -> None:
    """kubelet keeps its name; a reboot empties the folder, or somebody does."""
    with node_of(tmp_path, "driver") as node:
        pod = node.bind("a", 4, 1)
        given = node.admit(pod)["main"]
        limit = driver_limit(given)
        assert limit["NVIDIA_GPU_MEMORY_LIMIT"] == "1024"
        [file] = tmp_path.glob("cdi/vcuda.baidu.com-limit_*")
        assert file.stat().st_mode & 0o777 == 0o644
        node.start_one(pod)
        for starts in (False, True):
            file.unlink()
            node.start_one(pod) if starts else node.restart(isolation="none")
            assert driver_limit(given) == limit
        node.end_pod("a")
        node.wait_gone("a")
        node.serving.parts.records.sweep(lambda _: False, after_s=0)
        assert not file.exists()


def test_a_limit_that_cdi_cannot_bring_yet(tmp_path: Path) -> None:
    """The container waits; a moment later it may start."""
    with node_of(tmp_path, "driver") as node:
        pod = node.bind("a", 4, 1)
        given = node.admit(pod)["main"]
        [file] = tmp_path.glob("cdi/vcuda.baidu.com-limit_*")
        file.unlink()
        file.mkdir()
        node.waits(pod, "cannot be written")
        file.rmdir()
        node.start_one(pod)
        assert driver_limit(given)


def test_both_folders_have_the_limit(node: NodeFixture) -> None:
    """kubelet mounts either resource's folder, and only memory's answer limits."""
    given = node.run(node.bind("a", 4, 1))["main"]
    records = node.serving.parts.records
    folders = {records.folder(kept) for kept in records_of(node, "a")}
    assert len(folders) == 2
    assert {(folder / LIMITS).read_text() for folder in folders} == {limit_of(1024)}
    assert [(folder / REGION).exists() for folder in folders].count(True) == 1
    assert (region(given).parent / LIMITS).stat().st_mode & 0o777 == 0o644


def test_an_ended_static_pods_limit_is_not_taken_over(node: NodeFixture) -> None:
    """Its record is still there, nameless, and of the same devices."""
    node.restart(isolation="driver")
    node.run(pod_json("s-n", uid="hash", units=4, cores=1, node="n"))
    node.devices.release("hash")
    node.restart(isolation="preload")
    node.run(node.bind("a", 4, 1))
    folders = [node.serving.parts.records.folder(one) for one in records_of(node, "a")]
    assert [(one / LIMITS).read_text() for one in folders] == [limit_of(1024)] * 2


def records_of(node: NodeFixture, name: str) -> list[AllocationRecord]:
    all_records = node.serving.parts.records.all()
    return [record for record in all_records if record.pod == ("default", name)]


def test_each_start_has_its_own_region(node: NodeFixture) -> None:
    """What the start before counted, or damaged, is gone."""
    pod = node.bind("a", 4, 1)
    before = os.umask(0o077)
    try:
        path = region(node.run(pod)["main"])
        assert is_new(path)
        # A container that runs keeps what it has mounted.
        with counting(path, {(7, 100): 300}):
            assert counted_in(path)
            use(path)
            node.start_one(pod)
            assert is_new(path)
            assert counted_in(path) == {}
    finally:
        os.umask(before)
    assert not list(path.parent.glob("*.part"))


def test_the_region_can_be_mounted_where_a_runtime_made_a_folder(
    node: NodeFixture,
) -> None:
    pod = node.bind("a", 4, 1)
    path = region(node.run(pod)["main"])
    path.unlink()
    path.mkdir()
    node.start_one(pod)
    assert is_new(path)


def test_a_restart_between_allocation_and_start(node: NodeFixture) -> None:
    pod = node.bind("a", 4, 1)
    given = node.admit(pod)["main"]
    assert not region(given).exists()
    node.restart()
    node.start_one(pod)
    assert is_new(region(given))
    assert limits(given) == limit_of(1024)


@pytest.mark.parametrize("tier", ["none", "driver"])
def test_another_tier_leaves_containers_as_they_are(
    node: NodeFixture, tier: Tier
) -> None:
    """kubelet keeps what Allocate answered; the library is there for it still."""
    pod = node.bind("a", 4, 1)
    given = node.run(pod)["main"]
    use(region(given))
    node.restart(isolation=tier, inject="cdi")
    node.serving.parts.setup.library.library.unlink()
    node.start_one(pod)
    assert is_new(region(given))
    assert limits(given) == limit_of(1024)
    told = inside(given)
    assert (told["isolation"], told["hard_limit_mib"]) == ("preload", 1024)
    assert node.serving.parts.setup.library.library.read_bytes() == b"the library"
    other = node.run(node.bind("b", 4, 1))["main"]
    assert mounts(node, other) == {}
    assert inside(other)["isolation"] == tier
    # And back: each is restarted with what it was given.
    node.restart(isolation="preload", inject="env")
    for name in ("a", "b"):
        node.devices.start(node.pod(name)["metadata"]["uid"], "main")
    assert [inside(setup)["isolation"] for setup in (given, other)] == ["preload", tier]


def test_an_earlier_version_and_forward_again(node: NodeFixture) -> None:
    """It knows the record and its own file, and leaves the others where they are."""
    pod = node.bind("a", 4, 1)
    given = node.run(pod)["main"]
    node.end()
    for folder in (node.settings.state_dir / "containers").glob("*.json"):
        record = json.loads(folder.read_text())
        # Another field, and it would take the record for a broken one.
        assert set(record) == {
            "namespace",
            "name",
            "uid",
            "container",
            "resource",
            "ids",
        }
        folder.write_text(json.dumps(record))
        told = folder.with_suffix("") / "allocation.json"
        told.write_text(json.dumps({"v": 1, "container": "main"}))
    node.start()
    node.start_one(pod)
    assert inside(given)["hard_limit_mib"] == 1024
    assert is_new(region(given))
    assert limits(given) == limit_of(1024)


def test_a_container_of_the_version_before_keeps_its_limit(node: NodeFixture) -> None:
    """It counted no contexts, and kept 512 MiB of the card for them."""
    pod = node.bind("a", 1, 1)
    given = node.run(pod)["main"]
    [memory] = [its for its in records_of(node, "a") if its.resource == M]
    kept = node.serving.parts.records.folder(memory) / ".hard_limit"
    assert json.loads(kept.read_text())["needed_mib"] == 256
    node.end()
    kept.write_text('{"tier": "preload", "mib": 256, "needed_mib": 768}')
    node.start()
    node.start_one(pod)
    assert limits(given) == f"vcuda-limits 1\ncard {UUIDS[0]} 256\n"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('{"tier": "preload", "mib": 4, "needed_mib": 5}', HardLimit("preload", 4, 5)),
        ('{"tier": "preload", "mib": 4}', HardLimit("preload", 4, 4)),
        ('{"tier": "later", "mib": 4, "needed_mib": 5}', HardLimit("later", 4, 5)),
        ('{"tier": "a", "mib": 4, "needed_mib": 5, "b": 1}', HardLimit("a", 4, 5)),
        ('{"tier": "driver", "mib": "4", "needed_mib": 5}', None),
        ('{"tier": 1, "mib": 4, "needed_mib": 5}', None),
        ('{"tier": "driver"', None),
        ("[]", None),
        ("768", None),
    ],
)
def test_the_limit_of_another_version(
    tmp_path: Path, text: str, limit: HardLimit | None
) -> None:
    """A tier that is not known here counts too; a damaged file is no limit."""
    record = AllocationRecord("default", "a", PodUID("uid-a"), "main", M, ("x-m0000",))
    records = allocation_records(tmp_path)
    records.write(record, HardLimit("driver", 1, 1))
    (records.folder(record) / ".hard_limit").write_text(text)
    assert allocation_records(tmp_path).limit(record) == limit


def test_without_the_library_nothing_is_offered_or_restarted(node: NodeFixture) -> None:
    """As with an image for another processor; never something weaker."""
    pod = node.bind("a", 4, 1)
    node.run(pod)
    node.library.unlink()
    there = node.devices.allocatable
    wait_until(lambda: there()[M] == 0, "nothing to be offered")
    [why] = node.serving.parts.offer.sick().values()
    assert why.startswith("isolation tier preload: the device plugin has no library")
    node.waits(pod, "has no library")
    node.library.write_bytes(b"the library")
    wait_until(lambda: there()[M] == 29, "the card to be offered")
    node.start_one(pod)


@pytest.mark.parametrize("first", [M, C])
@pytest.mark.parametrize("mounted", [M, C])
def test_a_pod_that_kubelet_knew_first(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch, mounted: str, first: str
) -> None:
    """Nobody knew whose devices these were; at its start both folders are told."""
    asks_first(monkeypatch, mounted)
    node.cut_off()
    for name in ("etcd", "proxy"):
        node.admit(pod_json(name, uid=name, node="n"))
    once, main = container_json("once", 8, 3), container_json("main", 3, 1)
    pod = node.bind("a", card=0, init=[once], containers=[main])
    given = node.admit(pod)
    node.line.cut = False
    asks_first(monkeypatch, first)
    for container, mib in (("once", 2048), ("main", 768)):
        node.start_one(pod, container)
        assert limits(given[container]) == limit_of(mib)
        assert is_new(region(given[container]))
        told = inside(given[container])
        assert (told["container"], told["isolation"]) == (container, "preload")
        assert told["hard_limit_mib"] == mib


def test_an_init_container_passes_its_devices_on(node: NodeFixture) -> None:
    """The same devices, and each of the two has a region of its own."""
    once, main = container_json("once", 24, 1), container_json("main", 24, 1)
    pod = node.bind("a", init=[once], containers=[main])
    given = node.admit(pod)
    uid = pod["metadata"]["uid"]
    node.devices.start(uid, "once")
    use(region(given["once"]))
    node.devices.start(uid, "main")
    assert region(given["once"]) != region(given["main"])
    assert is_new(region(given["main"]))
    assert limits(given["once"]) == limits(given["main"]) == limit_of(24 * 256)


def test_a_restart_leaves_the_other_containers_alone(node: NodeFixture) -> None:
    """Of the same pod, and of other pods on the card."""
    beside = container_json("beside", 2, 1) | {"restartPolicy": "Always"}
    pods = [
        node.bind("a", init=[beside], containers=[container_json("main", 3, 1)]),
        node.bind("b", 4, 1),
    ]
    given = [setup for pod in pods for setup in node.run(pod).values()]
    assert len({region(setup) for setup in given}) == 3
    for setup in given:
        use(region(setup))
    node.start_one(pods[0])
    assert [is_new(region(setup)) for setup in given] == [False, True, False]
    assert [limits(setup) for setup in given] == [limit_of(n * 256) for n in (2, 3, 4)]


GROWS: dict[str, Callable[[int], object]] = {
    "truncate": lambda file: os.ftruncate(file, 20 << 30),
    "fallocate": lambda file: os.posix_fallocate(file, 0, 20 << 30),
    "write behind": lambda file: os.pwrite(file, b"x", 20 << 30),
}


@pytest.mark.parametrize("how", GROWS)
def test_a_region_takes_nothing_of_the_nodes_disk(node: NodeFixture, how: str) -> None:
    """Kubernetes would not count it; each user of the container may write it."""
    path = region(node.run(node.bind("a", 4, 1))["main"])
    file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError):
            GROWS[how](file)
        with suppress(BlockingIOError):
            while os.write(file, bytes(2**16)):
                assert path.stat().st_blocks == 0
    finally:
        os.close(file)
    assert path.stat().st_size == path.stat().st_blocks == 0


def test_a_region_of_the_version_before_is_replaced(node: NodeFixture) -> None:
    """It was a file; after a rollback that version makes one in place of a FIFO."""
    pod = node.bind("a", 4, 1)
    path = region(node.run(pod)["main"])
    path.unlink()
    path.write_bytes(b"counted")
    node.start_one(pod)
    assert is_new(path)
    replace_file(path, b"", mode=0o666)
    assert path.is_file()


def lose_files(node: NodeFixture) -> None:
    """End the plugin, lose its folder on the node, and start it."""
    node.end()
    shutil.rmtree(node.settings.state_dir)
    node.start()
    node.wait_seen("a")


@pytest.mark.parametrize(("units", "mib"), [(4, 1024), (None, CONTEXT_MIB)])
def test_a_container_whose_files_were_lost_starts_with_its_limit(
    node: NodeFixture, units: int | None, mib: int
) -> None:
    """kubelet still mounts them, and by the annotation they are made anew."""
    pod = node.bind("a", units, 1)
    given = node.run(pod)["main"]
    node.serving.reporter.catch_up()
    lose_files(node)
    node.start_one(pod)
    assert limits(given) == limit_of(mib)
    assert is_new(region(given))
    told = inside(given)
    assert (told["isolation"], told["hard_limit_mib"]) == ("preload", mib)
    assert all(Path(mount.host_path).exists() for mount in given.mounts.values())
    # And again, as any other container.
    node.start_one(pod)
    assert limits(given) == limit_of(mib)


@pytest.mark.parametrize(
    ("tier", "annotated", "amount"),
    [("none", "", (4, 1)), ("none", "later", (4, 1)), ("preload", "preload", (4, 100))],
)
def test_lost_files_bring_no_limit_that_the_container_has_not(
    node: NodeFixture, tier: Tier, annotated: str, amount: tuple[int, int]
) -> None:
    node.restart(isolation=tier)
    pod = node.bind("a", *amount, annotations={names.ISOLATION: annotated})
    given = node.run(pod)["main"]
    lose_files(node)
    node.start_one(pod)
    assert inside(given)["isolation"] == "none"
    records = node.serving.parts.records
    assert not any(map(records.limit, records.all()))


@pytest.mark.parametrize("mounted", [M, C])
@pytest.mark.parametrize("cut", [True, False])
def test_a_static_pod(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch, mounted: str, cut: bool
) -> None:
    """Only kubelet knows it, and also when the API server answers it has no mirror."""
    asks_first(monkeypatch, mounted)
    if cut:
        node.cut_off()
    static = pod_json("s-n", uid="hash", units=4, cores=1, node="n")
    given = node.run(static)["main"]
    for _ in range(2):
        assert limits(given) == limit_of(1024)
        assert inside(given)["isolation"] == "preload"
        assert is_new(region(given))
        use(region(given))
        node.devices.start("hash", "main")


def test_one_resource_does_not_say_that_the_other_was_checked(
    node: NodeFixture,
) -> None:
    """It only tells the limit in both folders."""
    node.admit(node.bind("a", 4, 1))
    memory, core = sorted(records_of(node, "a"), key=lambda kept: kept.resource != M)
    node.start_container(M, memory.ids)
    records = node.serving.parts.records
    assert [records.may_start(record) for record in (memory, core)] == [True, False]
    assert (records.folder(core) / LIMITS).read_text() == limit_of(1024)


def test_files_of_an_earlier_pod_are_not_taken_for_those_that_were_lost(
    node: NodeFixture,
) -> None:
    """It had the same devices, and containers of the same names."""
    node.run(node.bind("earlier", 8, 1))
    node.end_pod("earlier")
    pod = node.bind("a", 8, 1)
    given = node.run(pod)["main"]
    node.serving.reporter.catch_up()
    lost = [node.serving.parts.records.folder(kept) for kept in records_of(node, "a")]
    node.end()
    for folder in lost:
        shutil.rmtree(folder)
        folder.with_name(f"{folder.name}.json").unlink()
    node.start()
    node.wait_seen("a")
    node.start_one(pod)
    assert limits(given) == limit_of(2048)
    assert is_new(region(given))
