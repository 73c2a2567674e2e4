"""Files of a host: whole or not at all, whatever happens meanwhile."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpusharectl.installer.kube_scheduler.host_files import FileChange, HostFiles
from tests.machine import needs
from tests.testbed.waiting import wait_until

FILE = "/etc/kubernetes/manifests/kube-scheduler.yaml"


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    return HostFiles(tmp_path)


def names(host: HostFiles) -> list[str]:
    return sorted(path.name for path in host.place(FILE).parent.iterdir())


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """Let no file grow beyond this; the kernel refuses the write itself."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_new_file_with_its_folders(host: HostFiles) -> None:
    """Whatever the umask, processes of other users reach what is meant for them."""
    assert host.read(FILE) is None
    before = os.umask(0o077)
    try:
        host.write(FILE, b"new", 0o644)
    finally:
        os.umask(before)
    place = host.place(FILE)
    assert place.stat().st_mode & 0o777 == 0o644
    for folder in (place.parent, place.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o755


def test_rights_stay(host: HostFiles) -> None:
    host.write(FILE, b"old", 0o600)
    place = host.place(FILE)
    place.chmod(0o604)
    if os.geteuid() == 0:
        os.chown(place, 65532, 65533)
    before = place.stat()
    host.write(FILE, b"new", 0o644)
    after = place.stat()
    for each in ("st_mode", "st_uid", "st_gid"):
        assert getattr(after, each) == getattr(before, each)
    assert host.read(FILE) == b"new"


def test_owner_that_is_asked_for(host: HostFiles) -> None:
    needs(os.geteuid() == 0, "not root", "run as root to give files away")
    host.write(FILE, b"old", 0o644)
    host.write(FILE, b"key", 0o600, 65532)
    there = host.place(FILE).stat()
    assert (there.st_mode & 0o777, there.st_uid) == (0o600, 65532)


def test_failed_write_leaves_the_old_file(host: HostFiles) -> None:
    host.write(FILE, b"old")
    with no_room_beyond(10), pytest.raises(OSError) as raised:
        host.write(FILE, b"x" * 100)
    assert raised.value.errno == errno.EFBIG
    # The kernel names no file, and the temporary one would say nothing.
    assert raised.value.filename == FILE
    assert host.read(FILE) == b"old"
    assert names(host) == ["kube-scheduler.yaml"]


WRITER = """
import signal, sys
from pathlib import Path
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
# As a terminal has it: a run in the background ignores it, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
host = HostFiles(Path(sys.argv[1]))
print("ready", flush=True)
n = 0
while True:
    n += 1
    host.write(sys.argv[2], b"%d\\n" % n * 20000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_anywhere(host: HostFiles, number: signal.Signals) -> None:
    """Whenever a writer is ended, the file is one whole version, and kubelet's too.

    Ctrl-C leaves nothing beside it; what a kill leaves begins with a dot.
    """
    command = [sys.executable, "-c", WRITER, str(host.root), FILE]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        wait_until(lambda: host.read(FILE), "a first version")
        first = host.read(FILE)
        wait_until(lambda: host.read(FILE) != first, "another version")
        writer.send_signal(number)
    lines = set((host.read(FILE) or b"").splitlines())
    assert len(lines) == 1
    assert (host.read(FILE) or b"").count(b"\n") == 20000
    beside = [name for name in names(host) if name != "kube-scheduler.yaml"]
    assert all(name.startswith(".") for name in beside)
    if number is signal.SIGINT:
        assert beside == []


def test_links_are_the_hosts_own(host: HostFiles, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/kubernetes").symlink_to("/data")
    host.write(FILE, b"new")
    assert (tmp_path / "data/manifests/kube-scheduler.yaml").read_bytes() == b"new"
    assert (tmp_path / "etc/kubernetes").is_symlink()


def test_removing(host: HostFiles) -> None:
    host.make([FileChange(FILE, None, b"new")])
    folder = "/etc/kubernetes/manifests"
    host.remove_empty(folder)
    assert host.names(folder) == ("kube-scheduler.yaml",)
    host.make([FileChange(FILE, b"new", None), FileChange(FILE, b"new", None)])
    host.remove_empty(folder)
    assert not host.place(folder).exists()
    assert host.names(folder) == ()


def test_diff() -> None:
    assert FileChange("/f", b"a\nb\n", b"a\nc").diff() == (
        "--- /f\n+++ /f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
    )
    assert FileChange("/f", None, b"a\n").diff().startswith("--- /dev/null\n+++ /f\n")
    assert FileChange("/f", b"a\n", None).diff().startswith("--- /f\n+++ /dev/null\n")
    key = FileChange("/tls/client.key", None, b"secret")
    assert key.diff() == "create /tls/client.key (its contents are not shown)\n"
    assert "secret" not in key.reversed().diff()
