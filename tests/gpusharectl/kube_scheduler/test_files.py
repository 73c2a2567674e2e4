"""A control-plane host's files: planned, written, interrupted, put back."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpusharectl.kube_scheduler.files import Desired, SchedulerFiles, shipped_extender
from gpusharectl.kube_scheduler.host_files import FileChange, HostFiles, Obstacle
from gpusharectl.kube_scheduler.job import Action, host_scheduler
from gpusharectl.kube_scheduler.kubeadm import KubeadmFile

MANIFEST = KubeadmFile.path
FOLDER = KubeadmFile.folder
CONFIG = f"{FOLDER}/scheduler.yaml"
STATE = f"{FOLDER}/state.json"
KUBEADM = (Path(__file__).parent / "golden" / "kubeadm.yaml").read_bytes()
ASKED = Desired(
    "v1.36.3", "0.1.0", shipped_extender(), datetime(2026, 11, 21, tzinfo=UTC)
)
NEWER = replace(ASKED, program="0.2.0", extender={**ASKED.extender, "weight": 6})


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    """A host as kubeadm leaves it."""
    made = HostFiles(tmp_path)
    made.write(MANIFEST, KUBEADM, 0o600)
    return made


def scheduler(host: HostFiles, asked: Desired = ASKED) -> SchedulerFiles:
    return SchedulerFiles(host, KubeadmFile(), asked)


def changes(found: object) -> list[FileChange]:
    """Take a plan that is none of refusal."""
    assert not isinstance(found, Obstacle), found
    assert isinstance(found, list)
    return found


def install(host: HostFiles, asked: Desired = ASKED) -> list[FileChange]:
    files = scheduler(host, asked)
    plan = changes(files.plan())
    files.make(plan)
    return plan


def uninstall(host: HostFiles) -> None:
    files = scheduler(host)
    files.make(changes(files.restore()))


def tree(host: HostFiles) -> dict[str, bytes]:
    """Give every file of the host."""
    files = (path for path in host.root.rglob("*") if path.is_file())
    return {f"/{path.relative_to(host.root)}": path.read_bytes() for path in files}


def config(host: HostFiles) -> dict:
    return yaml.safe_load(host.read(CONFIG) or b"")


def edit(host: HostFiles, path: str, old: str, new: str) -> bytes:
    """Change a file as a person would."""
    text = (host.read(path) or b"").decode()
    assert old in text
    changed = text.replace(old, new).encode()
    host.write(path, changed)
    return changed


def test_files_and_their_order(host: HostFiles) -> None:
    """The record and the backup come first, and last what makes kubelet act."""
    plan = install(host)
    assert [each.path for each in plan] == [
        STATE,
        f"{FOLDER}/backup/kube-scheduler.yaml",
        CONFIG,
        MANIFEST,
    ]
    assert host.read(f"{FOLDER}/backup/kube-scheduler.yaml") == KUBEADM
    assert config(host)["leaderElection"] == {"leaderElect": True}
    assert host.place(CONFIG).stat().st_mode & 0o777 == 0o644
    assert host.place(MANIFEST).stat().st_mode & 0o777 == 0o600
    assert host.names("/etc/kubernetes/manifests") == ("kube-scheduler.yaml",)


def test_again_changes_nothing(host: HostFiles) -> None:
    """Neither installing nor taking away has anything to do a second time."""
    install(host)
    assert scheduler(host).plan() == []
    assert scheduler(host).missing() == ""
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}
    assert not host.place(FOLDER).exists()
    assert scheduler(host).restore() == []


def test_newer_version_of_ourselves(host: HostFiles) -> None:
    """It replaces what the older one wrote, and still knows what was before both."""
    install(host)
    old = host.read(MANIFEST)
    plan = install(host, NEWER)
    assert {each.path for each in plan} == {STATE, CONFIG, MANIFEST}
    assert host.read(MANIFEST) != old
    assert config(host)["extenders"][0]["weight"] == 6
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


@pytest.mark.parametrize("written", range(5))
def test_interrupted_install(host: HostFiles, written: int) -> None:
    """After any number of files: it goes on to the end, or goes back to the start."""
    plan = changes(scheduler(host).plan())
    host.make(plan[:written])
    other = HostFiles(host.root.parent / "other")
    for path, content in tree(host).items():
        other.write(path, content)

    install(host)
    assert scheduler(host).plan() == []
    assert (host.read(MANIFEST), host.read(CONFIG)) == (plan[3].after, plan[2].after)
    uninstall(other)
    assert tree(other) == {MANIFEST: KUBEADM}


@pytest.mark.parametrize("written", range(4))
def test_interrupted_upgrade(host: HostFiles, written: int) -> None:
    """The same when an older version of ours was there."""
    install(host)
    host.make(changes(scheduler(host, NEWER).plan())[:written])
    install(host, NEWER)
    assert scheduler(host, NEWER).plan() == []
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


@pytest.mark.parametrize("written", range(5))
def test_interrupted_uninstall(host: HostFiles, written: int) -> None:
    """Taking away goes on where it stopped."""
    install(host)
    host.make(changes(scheduler(host).restore())[:written])
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


def test_leftovers_of_a_kill(host: HostFiles) -> None:
    """A file that was being written when someone was killed goes with the rest."""
    install(host)
    place = host.place(MANIFEST)
    place.with_name(".kube-scheduler.yaml.gpushare-17").write_bytes(b"half")
    host.place(CONFIG).with_name(".scheduler.yaml.gpushare-17").write_bytes(b"half")
    host.write(f"{CONFIG}.next", b"tried")
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


def test_rolled_back(host: HostFiles) -> None:
    """The plan turned round gives the old bytes back, an older version's too."""
    for asked in (ASKED, NEWER):
        before = tree(host)
        plan = install(host, asked)
        assert tree(host) != before
        scheduler(host).make([each.reversed() for each in reversed(plan)])
        assert tree(host) == before
        install(host)


def test_manifest_changed_since(host: HostFiles) -> None:
    """Only what is ours is taken out of a manifest that someone has changed."""
    install(host)
    edit(host, MANIFEST, "cpu: 100m", "cpu: 200m # more")
    assert scheduler(host).missing() == ""
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM.replace(b"cpu: 100m", b"cpu: 200m # more")}


def test_manifest_changed_and_installed_again(host: HostFiles) -> None:
    """A change by hand outlives our next installation and our end."""
    install(host)
    edit(host, MANIFEST, "cpu: 100m", "cpu: 200m")
    install(host, NEWER)
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM.replace(b"cpu: 100m", b"cpu: 200m")}


def test_kubeadm_upgrade(host: HostFiles) -> None:
    """A manifest without our flag is told in words, and mended; the new one is kept."""
    install(host)
    newer = KUBEADM.replace(b"v1.36.3", b"v1.37.0")
    host.write(MANIFEST, newer)
    assert "no longer names" in scheduler(host).missing()
    install(host)
    assert scheduler(host).missing() == ""
    uninstall(host)
    assert tree(host) == {MANIFEST: newer}


def test_configuration_changed_by_hand(host: HostFiles) -> None:
    """What someone wrote into our configuration stays, also when we go."""
    install(host)
    edit(host, CONFIG, "leaderElect: true", "leaderElect: false")
    plan = install(host)
    # kube-scheduler has to read it, so the manifest's stamp changes.
    assert MANIFEST in [each.path for each in plan]
    assert config(host)["leaderElection"] == {"leaderElect": False}
    edit(host, CONFIG, "weight: 5", "weight: 9")
    edit(
        host,
        CONFIG,
        "leaderElect: false",
        "leaderElect: false\npodMaxBackoffSeconds: 3",
    )
    uninstall(host)
    assert config(host)["podMaxBackoffSeconds"] == 3
    assert "extenders" not in config(host)
    assert set(tree(host)) == {MANIFEST, CONFIG}
    assert f"--config={CONFIG}".encode() in (host.read(MANIFEST) or b"")


def test_lost_record(host: HostFiles) -> None:
    """Without our record, or with a spoiled one, the files speak for themselves."""
    for spoiled in (None, b"", b"[]", b'{"files": 5}', b"\xff"):
        install(host)
        host.make([FileChange(STATE, None, spoiled)])
        assert scheduler(host).missing() == ""
        uninstall(host)
        assert tree(host) == {MANIFEST: KUBEADM}


def test_lost_stanza(host: HostFiles) -> None:
    """Our configuration without our stanza, or none at all, is told in words."""
    install(host)
    host.write(CONFIG, b"apiVersion: v1\n")
    assert "has lost our stanza" in scheduler(host).missing()
    host.remove(CONFIG)
    assert "has lost our stanza" in scheduler(host).missing()
    install(host)
    assert scheduler(host).missing() == ""


def test_own_configuration(host: HostFiles) -> None:
    """An administrator's file is read and never touched; its later changes are taken
    up by the next installation.
    """
    own = (
        b"apiVersion: kubescheduler.config.k8s.io/v1\n"
        b"kind: KubeSchedulerConfiguration\n"
        b"clientConnection: {kubeconfig: /k}\n"
    )
    manifest = KUBEADM.replace(
        b"    - --leader-elect=true\n", b"    - --config=/etc/kubernetes/own/s.yaml\n"
    ).replace(
        b"/etc/kubernetes/scheduler.conf\n      name", b"/etc/kubernetes\n      name"
    )
    manifest = manifest.replace(
        b"path: /etc/kubernetes/scheduler.conf\n      type: FileOrCreate",
        b"path: /srv",
    )
    host.write(MANIFEST, manifest)
    assert (
        str(scheduler(host).plan())
        == f"{MANIFEST} names /srv/own/s.yaml, which is not there"
    )
    host.write("/srv/own/s.yaml", own)
    install(host)
    assert config(host)["clientConnection"] == {"kubeconfig": "/k"}
    edit(host, "/srv/own/s.yaml", "/k", "/other")
    install(host)
    assert config(host)["clientConnection"] == {"kubeconfig": "/other"}
    uninstall(host)
    assert tree(host) == {
        MANIFEST: manifest,
        "/srv/own/s.yaml": own.replace(b"/k", b"/other"),
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not there: this is no control-plane node"),
        (b"", "is empty"),
        (b"a:\n\tb: c\n", "is not YAML"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"kind: Deployment\n", "is not a Pod, its kind is Deployment"),
    ],
)
def test_refused_manifest(host: HostFiles, content: bytes | None, words: str) -> None:
    """The file is named, and what is wrong with it; nothing is written."""
    host.make([FileChange(MANIFEST, KUBEADM, content)])
    before = tree(host)
    plan = scheduler(host).plan()
    assert isinstance(plan, Obstacle)
    assert str(plan).startswith(f"{MANIFEST} {words}")
    assert "kubeadm init phase" in str(plan) or "run gpusharectl" in str(plan)
    assert tree(host) == before


def test_extended_by_another(host: HostFiles) -> None:
    """Another tool's configuration in our place is refused, by its address."""
    other = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": [{"urlPrefix": "http://other:1/x", "bindVerb": "bind"}],
    }
    host.write(CONFIG, json.dumps(other).encode())
    plan = scheduler(host).plan()
    assert isinstance(plan, Obstacle)
    assert "http://other:1/x" in str(plan)


def test_certificates(host: HostFiles) -> None:
    """With TLS they come before what names them; a renewed client's restarts the
    scheduler, and all go when we go.
    """
    asked = replace(ASKED, tls=True)
    plan = install(host, asked)
    paths = [each.path for each in plan]
    assert paths.index(f"{FOLDER}/tls/client.key") < paths.index(CONFIG)
    assert config(host)["extenders"][0]["tlsConfig"]["caFile"] == f"{FOLDER}/tls/ca.crt"
    assert "PRIVATE" not in "".join(each.diff() for each in plan)
    assert scheduler(host, asked).plan() == []
    host.remove(f"{FOLDER}/tls/client.crt")
    again = [each.path for each in install(host, asked)]
    assert MANIFEST in again
    assert CONFIG not in again
    assert f"{FOLDER}/tls/ca.crt" not in again
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


def test_from_a_job(host: HostFiles, tmp_path: Path) -> None:
    """A mounted host is tried on copies, then written, then put back, by the same code;
    what is printed is the manifest as it is then.
    """
    into = tmp_path / "try"
    root, before = host.root, tree(host)
    done = host_scheduler(Action.TRY, root, replace(ASKED, tls=True), into)
    assert (done.code, done.words) == (0, KUBEADM.decode())
    tried = tree(HostFiles(into))
    assert {CONFIG, f"{FOLDER}/tls/client.key"} <= tried.keys()
    assert {path: text for path, text in tree(host).items() if path in before} == before
    done = host_scheduler(Action.APPLY, root, ASKED, into)
    assert (done.code, done.words.encode()) == (0, host.read(MANIFEST))
    done = host_scheduler(Action.RESTORE, root, ASKED, into)
    assert (done.code, done.words) == (0, KUBEADM.decode())
    host.write(MANIFEST, b"")
    done = host_scheduler(Action.APPLY, root, ASKED, into)
    assert done.code == 1
    assert done.words.startswith(f"{MANIFEST} is empty")
