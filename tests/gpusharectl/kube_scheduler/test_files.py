"""A control-plane host's files: planned, written, interrupted, put back.

How many nodes kube-scheduler looks at: for frag all, and back to what was said.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpusharectl.kube_scheduler.config import Percentages, percentages
from gpusharectl.kube_scheduler.files import (
    Desired,
    Record,
    SchedulerFiles,
    desired_now,
    shipped_extender,
)
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
    assert "no longer has our entry in extenders" in scheduler(host).missing()
    host.remove(CONFIG)
    assert "no longer has our entry in extenders" in scheduler(host).missing()
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
        == f"{MANIFEST} names /srv/own/s.yaml, which does not exist"
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
        (None, "does not exist: kubeadm has not set up"),
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


OWN = "/etc/kubernetes/own/s.yaml"
FRAG = desired_now("v1.36.3", frag=True)
FIRST_FIT = desired_now("v1.36.3")
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
THEIRS = f"""\
{HEAD}percentageOfNodesToScore: 30
profiles:
- percentageOfNodesToScore: 20
- schedulerName: silent
- schedulerName: adaptive
  percentageOfNodesToScore: 0
"""
MORE = "parallelism: 8\n"


@pytest.fixture
def bare(tmp_path: Path) -> HostFiles:
    """A host as kubeadm leaves it."""
    made = HostFiles(tmp_path)
    made.write(MANIFEST, KUBEADM)
    return made


@pytest.fixture
def scored_host(bare: HostFiles) -> HostFiles:
    """One with a configuration of the operator's."""
    flag = f"    - --config={OWN}\n".encode()
    manifest = KUBEADM.replace(b"    - --leader-elect=true\n", flag)
    manifest = manifest.replace(
        b"/etc/kubernetes/scheduler.conf\n      name", b"/etc/kubernetes\n      name"
    ).replace(
        b"path: /etc/kubernetes/scheduler.conf\n      type: FileOrCreate",
        b"path: /etc/kubernetes",
    )
    bare.write(OWN, THEIRS.encode())
    bare.write(MANIFEST, manifest)
    return bare


def of(host: HostFiles, *, frag: bool, tls: bool = False) -> SchedulerFiles:
    asked = replace(FRAG if frag else FIRST_FIT, tls=tls)
    return SchedulerFiles(host, KubeadmFile(), asked)


def install_policy(host: HostFiles, *, frag: bool) -> None:
    files = of(host, frag=frag)
    files.make(changes(files.plan()))
    assert weight(host) == (100 if frag else 5)


def uninstall_policy(host: HostFiles) -> None:
    """As it is asked: it does not know what was installed."""
    files = of(host, frag=False)
    files.make(changes(files.restore()))


def append(host: HostFiles, text: str) -> None:
    host.write(CONFIG, (host.read(CONFIG) or b"") + text.encode())


def forget(host: HostFiles) -> None:
    host.remove(STATE)


def weight(host: HostFiles) -> int:
    (extender,) = config(host)["extenders"]
    found: int = extender["weight"]
    return found


def all_said(host: HostFiles) -> list[int | None]:
    """By the whole, and by each profile."""
    found = config(host)
    return [one.get("percentageOfNodesToScore") for one in (found, *found["profiles"])]


def said(host: HostFiles) -> Percentages:
    return percentages(config(host))


def theirs(host: HostFiles) -> Percentages:
    """What was said before us."""
    return percentages(yaml.safe_load(host.read(OWN) or b"{}"))


def all_of(host: HostFiles) -> Percentages:
    return dict.fromkeys(theirs(host), 100)


def test_every_profile_that_says_something_is_set(scored_host: HostFiles) -> None:
    """Its word would overrule the whole's; 0 means that kube-scheduler reckons."""
    install_policy(scored_host, frag=True)
    assert all_said(scored_host) == [100, 100, None, 100]
    install_policy(scored_host, frag=False)
    assert all_said(scored_host) == [30, 20, None, 0]


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])
def test_back_to_another_policy_in_an_edited_file(
    scored_host: HostFiles, lost: bool
) -> None:
    """All else that somebody wrote stays, and what was said of nodes is back."""
    install_policy(scored_host, frag=True)
    assert of(scored_host, frag=True).plan() == []
    append(scored_host, MORE)
    if lost:
        forget(scored_host)
    install_policy(scored_host, frag=False)
    assert said(scored_host) == theirs(scored_host)
    assert config(scored_host)["parallelism"] == 8


def test_what_somebody_wrote_into_ours_comes_back(scored_host: HostFiles) -> None:
    """Their number is nowhere but in our file, and the record."""
    install_policy(scored_host, frag=False)
    text = yaml.safe_dump({**config(scored_host), "percentageOfNodesToScore": 40})
    scored_host.write(CONFIG, text.encode())
    install_policy(scored_host, frag=True)
    assert said(scored_host) == all_of(scored_host)
    install_policy(scored_host, frag=True)
    install_policy(scored_host, frag=False)
    assert said(scored_host) == {**theirs(scored_host), "": 40}
    install_policy(scored_host, frag=True)
    uninstall_policy(scored_host)
    assert said(scored_host) == {**theirs(scored_host), "": 40}
    assert "extenders" not in config(scored_host)


@pytest.mark.parametrize("written", [1, 2])
def test_cut_off_on_the_way_back(scored_host: HostFiles, written: int) -> None:
    """Whatever was written by then, the next one ends it."""
    install_policy(scored_host, frag=False)
    text = yaml.safe_dump({**config(scored_host), "percentageOfNodesToScore": 40})
    scored_host.write(CONFIG, text.encode())
    install_policy(scored_host, frag=True)
    scored_host.make(changes(of(scored_host, frag=False).plan())[:written])
    install_policy(scored_host, frag=False)
    assert said(scored_host) == {**theirs(scored_host), "": 40}


def test_a_number_chosen_meanwhile_stays(scored_host: HostFiles) -> None:
    """Only the 100 that we wrote is ours to take back."""
    install_policy(scored_host, frag=True)
    text = yaml.safe_dump({**config(scored_host), "percentageOfNodesToScore": 60})
    scored_host.write(CONFIG, text.encode())
    uninstall_policy(scored_host)
    assert said(scored_host) == {**theirs(scored_host), "": 60}


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])
def test_an_edited_file_after_frag_and_uninstall(
    scored_host: HostFiles, lost: bool
) -> None:
    install_policy(scored_host, frag=True)
    append(scored_host, MORE)
    if lost:
        forget(scored_host)
    uninstall_policy(scored_host)
    assert said(scored_host) == theirs(scored_host)
    assert config(scored_host)["parallelism"] == 8
    assert "extenders" not in config(scored_host)


def test_an_edit_outlives_every_install_and_the_uninstall(
    scored_host: HostFiles,
) -> None:
    """Also the second one after it, and those that change nothing."""
    install_policy(scored_host, frag=False)
    append(scored_host, MORE)
    for frag in (False, True, False):
        install_policy(scored_host, frag=frag)
        assert config(scored_host)["parallelism"] == 8
        assert of(scored_host, frag=frag).plan() == []
    uninstall_policy(scored_host)
    assert config(scored_host)["parallelism"] == 8


def test_an_edit_taken_back_leaves_nothing(scored_host: HostFiles) -> None:
    before = tree(scored_host)
    install_policy(scored_host, frag=True)
    append(scored_host, MORE)
    install_policy(scored_host, frag=True)
    edit(scored_host, CONFIG, MORE, "")
    uninstall_policy(scored_host)
    assert tree(scored_host) == before


@pytest.mark.parametrize(("frag", "tls"), [(True, False), (False, True)])
def test_uninstall_without_a_record(
    scored_host: HostFiles, frag: bool, tls: bool
) -> None:
    """It does not know the policy, nor that there was TLS, and leaves nothing."""
    before = tree(scored_host)
    files = of(scored_host, frag=frag, tls=tls)
    files.make(changes(files.plan()))
    forget(scored_host)
    uninstall_policy(scored_host)
    assert tree(scored_host) == before


def test_where_nothing_was_said_nothing_is_left(bare: HostFiles) -> None:
    """kubeadm's flags say nothing of it."""
    for lost in (False, True):
        install_policy(bare, frag=True)
        assert said(bare) == {"": 100}
        append(bare, MORE)
        if lost:
            forget(bare)
        install_policy(bare, frag=False)
        assert said(bare) == {"": None}
        assert "percentageOfNodesToScore" not in config(bare)


def test_what_is_none_of_ours_to_judge() -> None:
    """kube-scheduler says what is wrong with it."""
    for profiles in (None, 5, [5]):
        assert percentages({"profiles": profiles}) == {"": None}


def test_the_record_of_before_is_read() -> None:
    """One that an older version wrote has nothing of it; a spoiled one is none."""
    record = Record("1", {}, {"": None, "a": 20}, edited=True)
    assert Record.decoded(record.encoded()) == record
    assert Record.decoded(b'{"gpusharectl": "1", "files": {}}') == Record("1")
    spoiled = b'{"gpusharectl": "1", "files": {}, "scored": {"": "x"}}'
    assert Record.decoded(spoiled) is None
