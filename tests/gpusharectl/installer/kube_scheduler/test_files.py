"""A control-plane host's files: planned, written, interrupted, put back.

How many nodes kube-scheduler scores: for frag all, and later as many as before.
"""

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from os import mkfifo
from pathlib import Path, PurePosixPath

import pytest
import yaml

from gpusharectl.installer.kube_scheduler.config import Percentages, percentages
from gpusharectl.installer.kube_scheduler.files import (
    FilesTarget,
    SchedulerFiles,
    shipped_extender,
)
from gpusharectl.installer.kube_scheduler.host_files import (
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.installer.kube_scheduler.job import Action, act_on_files
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmFile
from gpusharectl.installer.kube_scheduler.static_pod import STAMP

MANIFEST = KubeadmFile.path
FOLDER = KubeadmFile.folder
CONFIG = f"{FOLDER}/scheduler.yaml"
STATE = f"{FOLDER}/state.json"
KUBEADM = (Path(__file__).parent / "golden" / "kubeadm.yaml").read_bytes()
PLAIN = FilesTarget("0.1.0", shipped_extender(), datetime(2026, 11, 21, tzinfo=UTC))
NEWER = replace(PLAIN, program="0.2.0", extender={**PLAIN.extender, "weight": 6})
FRAG = replace(PLAIN, frag=True)
TLS = replace(PLAIN, tls=True)
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
MORE = "parallelism: 8\n"


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    """A host as kubeadm leaves it."""
    made = HostFiles(tmp_path)
    made.write(MANIFEST, KUBEADM, 0o600)
    return made


BESIDE = f"{MANIFEST}.bak"
AS_JSON = json.dumps(yaml.safe_load(KUBEADM)).encode()


@pytest.mark.parametrize(
    ("name", "content", "counts"),
    [
        ("kube-scheduler.yaml.bak", KUBEADM, True),
        ("kube-scheduler.yaml~", KUBEADM, True),
        ("old", AS_JSON, True),
        ("old.yaml", KUBEADM + b"---\n{}\n", True),
        (".kube-scheduler.yaml.swp", KUBEADM, False),
        ("mine.yaml", KUBEADM.replace(b"kube-system", b"mine"), False),
        ("mine.yaml", b"kind: Pod\nmetadata: {name: kube-scheduler}\n", False),
        ("etcd.yaml", KUBEADM.replace(b"  name: kube-scheduler", b"  name: x"), False),
        ("README", b"kube-scheduler: see the wiki\n", False),
        ("broken.yaml", b"{", False),
        ("empty", b"", False),
        ("folder/kube-scheduler.yaml", KUBEADM, False),
        # kubelet asks only what its own fields mean, and reads JSON with tabs.
        ("old", KUBEADM + b"x: 2026-02-30\ny: =\nz: !!int a\n", True),
        ("old", json.dumps(yaml.safe_load(KUBEADM), indent="\t").encode(), True),
        ("old", KUBEADM.decode().encode("utf-16"), True),
        ("latin", b"# caf\xe9\n" + KUBEADM, False),
        ("long", KUBEADM + b"#" * (10 << 20), False),
    ],
)
def test_another_file_with_a_pod_of_that_name(
    host: HostFiles, name: str, content: bytes, counts: bool
) -> None:
    """kubelet starts it too, whatever its ending; then nothing is written."""
    path = f"{PurePosixPath(MANIFEST).parent}/{name}"
    host.write(path, content)
    words = f"^{path} holds a pod kube-system/kube-scheduler .* move it to another fold"
    refused = pytest.raises(Obstacle, match=words) if counts else nullcontext()
    with refused:
        act_on_files(Action.APPLY, host.root, PLAIN, host.root)
    assert (host.read(CONFIG) is None) is counts


def test_what_cannot_be_read_there_is_left_to_kubelet(host: HostFiles) -> None:
    """It logs an error of them and goes on, as with links that lead nowhere."""
    folder = host.place(MANIFEST).parent
    (folder / "circle").symlink_to("circle")
    (folder / "nowhere").symlink_to("/nowhere")
    mkfifo(folder / "pipe")
    host.write(f"{PurePosixPath(MANIFEST).parent}/deep", b"[" * 2000)
    assert act_on_files(Action.APPLY, host.root, PLAIN, host.root)


def test_all_other_files_are_named(host: HostFiles) -> None:
    """Also behind a link. What ours has written can still be taken back."""
    act_on_files(Action.APPLY, host.root, PLAIN, host.root)
    host.write("/root/old.yaml", KUBEADM)
    host.place(f"{MANIFEST}.old").symlink_to("/root/old.yaml")
    host.write(BESIDE, KUBEADM)
    words = f"^{BESIDE} and {MANIFEST}.old hold a pod kube-system/"
    with pytest.raises(Obstacle, match=words):
        act_on_files(Action.APPLY, host.root, PLAIN, host.root)
    act_on_files(Action.RESTORE, host.root, PLAIN, host.root)
    assert host.read(MANIFEST) == KUBEADM


OWN = "/srv/own/s.yaml"
OWN_MANIFEST = (
    KUBEADM.replace(
        b"    - --leader-elect=true\n", b"    - --config=/etc/kubernetes/own/s.yaml\n"
    )
    .replace(
        b"/etc/kubernetes/scheduler.conf\n      name", b"/etc/kubernetes\n      name"
    )
    .replace(
        b"path: /etc/kubernetes/scheduler.conf\n      type: FileOrCreate", b"path: /srv"
    )
)
THEIRS = f"""\
{HEAD}percentageOfNodesToScore: 30
profiles:
- percentageOfNodesToScore: 20
- schedulerName: silent
- schedulerName: adaptive
  percentageOfNodesToScore: 0
"""
SCORED = percentages(yaml.safe_load(THEIRS))


@pytest.fixture
def scored_host(host: HostFiles) -> HostFiles:
    """A host with a configuration of the operator's."""
    host.write(OWN, THEIRS.encode())
    host.write(MANIFEST, OWN_MANIFEST)
    return host


def scheduler(host: HostFiles, asked: FilesTarget = PLAIN) -> SchedulerFiles:
    return SchedulerFiles(host, KubeadmFile(), asked)


def install(host: HostFiles, asked: FilesTarget = PLAIN) -> list[str]:
    files = scheduler(host, asked)
    plan = files.plan()
    files.make(plan)
    return [each.path for each in plan]


def uninstall(host: HostFiles) -> None:
    """Without knowing what was installed."""
    files = scheduler(host)
    files.make(files.plan_restore())


def tree(host: HostFiles) -> dict[str, bytes]:
    files = (path for path in host.root.rglob("*") if path.is_file())
    return {f"/{path.relative_to(host.root)}": path.read_bytes() for path in files}


def config(host: HostFiles) -> dict:
    return yaml.safe_load(host.read(CONFIG) or b"")


def scored(host: HostFiles) -> Percentages:
    return percentages(config(host))


def edit(host: HostFiles, path: str, old: str, new: str) -> None:
    text = (host.read(path) or b"").decode()
    assert old in text
    host.write(path, text.replace(old, new).encode())


def append(host: HostFiles, text: str = MORE) -> None:
    host.write(CONFIG, (host.read(CONFIG) or b"") + text.encode())


def score(host: HostFiles, number: int) -> None:
    """Write how many nodes to score into our configuration, as a person would."""
    text = yaml.safe_dump({**config(host), "percentageOfNodesToScore": number})
    host.write(CONFIG, text.encode())


def test_files_and_their_order(host: HostFiles) -> None:
    """The record and the backup come first, and last what makes kubelet act."""
    backup = f"{FOLDER}/backup/kube-scheduler.yaml"
    assert install(host) == [STATE, backup, CONFIG, MANIFEST]
    assert host.read(backup) == KUBEADM
    assert config(host)["leaderElection"] == {"leaderElect": True}
    assert host.place(CONFIG).stat().st_mode & 0o777 == 0o644
    assert host.place(MANIFEST).stat().st_mode & 0o777 == 0o600
    assert host.names("/etc/kubernetes/manifests") == ("kube-scheduler.yaml",)
    assert install(host) == []
    assert scheduler(host).why_undone() == ""
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}
    assert not host.place(FOLDER).exists()
    assert scheduler(host).plan_restore() == []


def test_folder_that_the_pod_mounts_by_itself_stays(host: HostFiles) -> None:
    """Its volume has the type Directory: without the folder the pod does not start."""
    mount = b"    volumeMounts:\n    - {mountPath: /etc/kubernetes/vcuda, name: mine}\n"
    volume = b"  volumes:\n  - {name: mine, hostPath: {path: /etc/kubernetes/vcuda}}\n"
    mine = KUBEADM.replace(b"    volumeMounts:\n", mount)
    mine = mine.replace(b"  volumes:\n", volume)
    host.write(MANIFEST, mine)
    host.place(FOLDER).mkdir()
    install(host)
    uninstall(host)
    assert tree(host) == {MANIFEST: mine}
    assert host.place(FOLDER).is_dir()


@pytest.mark.parametrize("written", range(5))
def test_interrupted_install(host: HostFiles, written: int) -> None:
    """After any number of files: it goes on to the end, or goes back to the start."""
    plan = scheduler(host).plan()
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
    """A newer version of ours still knows what was before both."""
    install(host)
    plan = scheduler(host, NEWER).plan()
    assert {each.path for each in plan} == {STATE, CONFIG, MANIFEST}
    host.make(plan[:written])
    install(host, NEWER)
    assert scheduler(host, NEWER).plan() == []
    assert config(host)["extenders"][0]["weight"] == 6
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


def test_first_installation_is_unfinished_until_it_is_seen_to_run(
    host: HostFiles,
) -> None:
    """A later one that is cut off is not: what it found ran, and cards are offered."""
    assert not scheduler(host).unfinished
    install(host)
    assert scheduler(host).unfinished
    install(host, NEWER)
    assert scheduler(host).unfinished
    scheduler(host).finish()
    assert not scheduler(host).unfinished
    assert install(host, NEWER) == []
    for change in (lambda: host.write(MANIFEST, KUBEADM), lambda: host.remove(STATE)):
        change()
        install(host)
        assert not scheduler(host).unfinished


@pytest.mark.parametrize("written", range(5))
def test_interrupted_uninstall(host: HostFiles, written: int) -> None:
    """What a killed writer left goes, too."""
    install(host)
    for path in (MANIFEST, CONFIG):
        place = host.place(path)
        place.with_name(f".{place.name}.gpushare-17").write_bytes(b"half")
    host.write(f"{CONFIG}.next", b"tried")
    host.make(scheduler(host).plan_restore()[:written])
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


def test_rolled_back(host: HostFiles) -> None:
    for asked in (PLAIN, NEWER):
        before, files = tree(host), scheduler(host, asked)
        plan = files.plan()
        files.make(plan)
        files.make([each.reversed() for each in reversed(plan)])
        assert tree(host) == before
        install(host)


@pytest.mark.parametrize("again", [False, True])
def test_manifest_changed_since(host: HostFiles, again: bool) -> None:
    """A change by hand outlives our next installation and our end."""
    install(host)
    edit(host, MANIFEST, "cpu: 100m", "cpu: 200m # more")
    assert scheduler(host).why_undone() == ""
    assert not scheduler(host).are_read(scheduler(host).plan())
    assert scheduler(host, NEWER).are_read(scheduler(host, NEWER).plan())
    if again:
        install(host, NEWER)
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM.replace(b"cpu: 100m", b"cpu: 200m # more")}


def test_kubeadm_upgrade(host: HostFiles) -> None:
    """A manifest without our flag is told in words, and mended; the new one is kept."""
    install(host)
    host.write(MANIFEST, b"")
    assert f"{MANIFEST} is empty" in scheduler(host).why_undone()
    newer = KUBEADM.replace(b"v1.36.3", b"v1.37.0")
    host.write(MANIFEST, newer)
    assert "no longer names" in scheduler(host).why_undone()
    install(host)
    assert scheduler(host).why_undone() == ""
    uninstall(host)
    assert tree(host) == {MANIFEST: newer}


def test_configuration_changed_by_hand(host: HostFiles) -> None:
    install(host)
    edit(host, CONFIG, "leaderElect: true", "leaderElect: false")
    # kube-scheduler has to read it, so the manifest's stamp changes.
    assert MANIFEST in install(host)
    assert config(host)["leaderElection"] == {"leaderElect": False}
    edit(host, CONFIG, "weight: 5", "weight: 9")
    append(host)
    uninstall(host)
    assert config(host)["parallelism"] == 8
    assert "extenders" not in config(host)
    assert set(tree(host)) == {MANIFEST, CONFIG}
    assert f"--config={CONFIG}".encode() in (host.read(MANIFEST) or b"")


@pytest.mark.parametrize("text", [MORE, "parallelism: [\n"], ids=["read", "broken"])
def test_edited_configuration_that_nobody_reads_stays(
    host: HostFiles, text: str
) -> None:
    """kubeadm has written the manifest again, but the edit is the operator's."""
    install(host)
    append(host, text)
    host.write(MANIFEST, KUBEADM)
    edited = host.read(CONFIG)
    uninstall(host)
    assert set(tree(host)) == {MANIFEST, CONFIG}
    assert host.read(MANIFEST) == KUBEADM
    if text == MORE:
        assert config(host)["parallelism"] == 8
        assert "extenders" not in config(host)
    else:
        assert host.read(CONFIG) == edited
    assert scheduler(host).plan_restore() == []


def test_edited_configuration_that_stays_is_not_marked(host: HostFiles) -> None:
    """By the stamp of its pod an uninstall finds a host that is set up."""
    install(host)
    assert STAMP.encode() in (host.read(MANIFEST) or b"")
    append(host)
    uninstall(host)
    assert STAMP.encode() not in (host.read(MANIFEST) or b"")
    assert scheduler(host).plan_restore() == []
    install(host)
    edit(host, CONFIG, MORE, "")
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


ENTRY = "http://127.0.0.1:39999/scheduler"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ENTRY, "http://127.0.0.1:39998/scheduler"),
        (ENTRY, "http://127.0.0.1:39999/mine"),
        ("baidu.com/vcuda-", "example.org/"),
    ],
    ids=["port", "path", "resources"],
)
def test_entry_that_somebody_edited_is_still_ours(
    host: HostFiles, old: str, new: str
) -> None:
    """Left behind without an extender, it would keep pods from being scheduled."""
    install(host)
    append(host)
    edit(host, CONFIG, old, new)
    if "39998" in new:
        assert "with port 39999" in scheduler(host).why_undone()
    install(host)
    assert [each["urlPrefix"] for each in config(host)["extenders"]] == [ENTRY]
    edit(host, CONFIG, old, new)
    uninstall(host)
    assert "extenders" not in config(host)
    assert config(host)["parallelism"] == 8


SPOILED = [
    *(None, b"", b"[]", b'{"files": 5}', b"\xff"),
    b'{"gpusharectl": "1", "files": {}, "scored": {"": "x"}}',
]


@pytest.mark.parametrize("spoiled", SPOILED)
def test_lost_record(host: HostFiles, spoiled: bytes | None) -> None:
    """Then the files themselves are compared."""
    install(host)
    host.make([FileChange(STATE, None, spoiled)])
    assert scheduler(host).why_undone() == ""
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


def test_lost_entry(host: HostFiles) -> None:
    install(host)
    for content in (b"apiVersion: v1\n", None):
        host.make([FileChange(CONFIG, None, content)])
        assert (
            "no longer has the gpushare entry in extenders"
            in scheduler(host).why_undone()
        )
    install(host)
    assert scheduler(host).why_undone() == ""


def test_own_configuration(scored_host: HostFiles) -> None:
    """An administrator's file is read, also when it has changed, and never written."""
    host = scored_host
    install(host)
    assert "parallelism" not in config(host)
    host.write(OWN, f"{THEIRS}{MORE}".encode())
    install(host)
    assert config(host)["parallelism"] == 8
    uninstall(host)
    assert tree(host) == {MANIFEST: OWN_MANIFEST, OWN: f"{THEIRS}{MORE}".encode()}
    host.remove(OWN)
    with pytest.raises(
        Obstacle, match=f"^{MANIFEST} names {OWN}, which does not exist"
    ):
        scheduler(host).plan()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist: .* run gpusharectl"),
        (b"", "is empty; .* kubeadm init phase"),
        (b"\xff\xfe", "is not UTF-8 text; .* kubeadm init phase"),
    ],
)
def test_refused_manifest(host: HostFiles, content: bytes | None, words: str) -> None:
    host.make([FileChange(MANIFEST, KUBEADM, content)])
    with pytest.raises(Obstacle, match=f"^{MANIFEST} {words}"):
        scheduler(host).plan()


def test_certificates(host: HostFiles) -> None:
    """With TLS they come before what names them; a renewed client's restarts the
    scheduler, and all go when we go.
    """
    plan = scheduler(host, TLS).plan()
    assert "PRIVATE" not in "".join(each.diff() for each in plan)
    paths = install(host, TLS)
    assert paths.index(f"{FOLDER}/tls/client.key") < paths.index(CONFIG)
    assert config(host)["extenders"][0]["tlsConfig"] == {
        "caFile": f"{FOLDER}/tls/ca.crt",
        "certFile": f"{FOLDER}/tls/client.crt",
        "keyFile": f"{FOLDER}/tls/client.key",
        "serverName": "gpushare-extender.kube-system.svc",
    }
    assert install(host, TLS) == []
    host.remove(f"{FOLDER}/tls/client.crt")
    again = set(install(host, TLS))
    assert MANIFEST in again
    assert not again & {CONFIG, f"{FOLDER}/tls/ca.crt"}
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


def test_expired_certificates(host: HostFiles) -> None:
    """All are made again, and kube-scheduler has to read them."""
    install(host, replace(TLS, now=datetime(2001, 1, 1, tzinfo=UTC)))
    names = host.names(f"{FOLDER}/tls")
    again = install(host, TLS)
    assert {f"{FOLDER}/tls/{name}" for name in names} <= set(again)
    assert MANIFEST in again
    assert install(host, TLS) == []
    uninstall(host)
    assert tree(host) == {MANIFEST: KUBEADM}


def test_from_a_job(host: HostFiles, tmp_path: Path) -> None:
    """A mounted host is tried on copies, then written, then put back, by the same code;
    what is printed is the manifest as it is then.
    """
    into = tmp_path / "try"
    root, before = host.root, tree(host)
    assert act_on_files(Action.TRY, root, TLS, into) == KUBEADM.decode()
    tried = tree(HostFiles(into))
    assert {CONFIG, f"{FOLDER}/tls/client.key"} <= tried.keys()
    assert {path: text for path, text in tree(host).items() if path in before} == before
    manifest = act_on_files(Action.APPLY, root, PLAIN, into)
    assert manifest.encode() == host.read(MANIFEST)
    assert act_on_files(Action.RESTORE, root, PLAIN, into) == KUBEADM.decode()
    host.write(MANIFEST, b"")
    with pytest.raises(Obstacle, match=f"^{MANIFEST} is empty"):
        act_on_files(Action.APPLY, root, PLAIN, into)


LOST = pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])


@LOST
@pytest.mark.parametrize("asked", [FRAG, TLS], ids=["frag", "tls"])
def test_installed_and_uninstalled(
    scored_host: HostFiles, asked: FilesTarget, lost: bool
) -> None:
    """Nothing is left; each profile's value would overrule that of the whole file."""
    before = tree(scored_host)
    install(scored_host, asked)
    assert scored(scored_host) == (dict.fromkeys(SCORED, 100) if asked.frag else SCORED)
    assert config(scored_host)["extenders"][0]["weight"] == (100 if asked.frag else 5)
    if lost:
        scored_host.remove(STATE)
    uninstall(scored_host)
    assert tree(scored_host) == before


@LOST
@pytest.mark.parametrize("stays", [True, False], ids=["another policy", "uninstalled"])
def test_frag_ends_in_an_edited_file(
    scored_host: HostFiles, stays: bool, lost: bool
) -> None:
    """All else that somebody wrote stays, and the old percentages are back."""
    install(scored_host, FRAG)
    append(scored_host)
    if lost:
        scored_host.remove(STATE)
    if stays:
        install(scored_host)
    else:
        uninstall(scored_host)
    assert scored(scored_host) == SCORED
    assert config(scored_host)["parallelism"] == 8
    assert ("extenders" in config(scored_host)) is stays


@LOST
def test_percentage_that_nobody_set(host: HostFiles, lost: bool) -> None:
    install(host, FRAG)
    assert scored(host) == {"": 100}
    append(host)
    if lost:
        host.remove(STATE)
    install(host)
    assert scored(host) == {"": None}


@pytest.mark.parametrize("written", [1, 2, 9])
def test_percentage_in_our_file_comes_back(
    scored_host: HostFiles, written: int
) -> None:
    """It is nowhere but in our file and the record; also after a kill on the way."""
    install(scored_host)
    score(scored_host, 40)
    install(scored_host, FRAG)
    assert scored(scored_host) == dict.fromkeys(SCORED, 100)
    install(scored_host, FRAG)
    scored_host.make(scheduler(scored_host).plan()[:written])
    install(scored_host)
    assert scored(scored_host) == {**SCORED, "": 40}
    install(scored_host, FRAG)
    uninstall(scored_host)
    assert scored(scored_host) == {**SCORED, "": 40}


def test_percentage_chosen_meanwhile_stays(scored_host: HostFiles) -> None:
    """Only the 100 that we wrote is ours to take back."""
    install(scored_host, FRAG)
    score(scored_host, 60)
    uninstall(scored_host)
    assert scored(scored_host) == {**SCORED, "": 60}


def test_edit_outlives_every_install(scored_host: HostFiles) -> None:
    """Also the second one after it, and those that change nothing."""
    before = tree(scored_host)
    install(scored_host)
    append(scored_host)
    for asked in (PLAIN, FRAG, PLAIN, FRAG):
        install(scored_host, asked)
        assert config(scored_host)["parallelism"] == 8
        assert install(scored_host, asked) == []
    edit(scored_host, CONFIG, MORE, "")
    uninstall(scored_host)
    assert tree(scored_host) == before


def test_profiles_of_a_strange_form() -> None:
    for profiles in (None, 5, [5]):
        assert percentages({"profiles": profiles}) == {"": None}
