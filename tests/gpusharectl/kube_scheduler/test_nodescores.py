"""How many nodes kube-scheduler looks at: for frag all, and back to what was said."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpusharectl.kube_scheduler.config import Percentages, percentages
from gpusharectl.kube_scheduler.files import Record, SchedulerFiles, desired_now
from gpusharectl.kube_scheduler.host_files import HostFiles
from gpusharectl.kube_scheduler.kubeadm import KubeadmFile
from tests.gpusharectl.kube_scheduler.test_files import (
    CONFIG,
    KUBEADM,
    MANIFEST,
    STATE,
    changes,
    config,
    edit,
    tree,
)

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
def host(bare: HostFiles) -> HostFiles:
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


def install(host: HostFiles, *, frag: bool) -> None:
    files = of(host, frag=frag)
    files.make(changes(files.plan()))
    assert weight(host) == (100 if frag else 5)


def uninstall(host: HostFiles) -> None:
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


def test_every_profile_that_says_something_is_set(host: HostFiles) -> None:
    """Its word would overrule the whole's; 0 means that kube-scheduler reckons."""
    install(host, frag=True)
    assert all_said(host) == [100, 100, None, 100]
    install(host, frag=False)
    assert all_said(host) == [30, 20, None, 0]


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])
def test_back_to_another_policy_in_an_edited_file(host: HostFiles, lost: bool) -> None:
    """All else that somebody wrote stays, and what was said of nodes is back."""
    install(host, frag=True)
    assert of(host, frag=True).plan() == []
    append(host, MORE)
    if lost:
        forget(host)
    install(host, frag=False)
    assert said(host) == theirs(host)
    assert config(host)["parallelism"] == 8


def test_what_somebody_wrote_into_ours_comes_back(host: HostFiles) -> None:
    """Their number is nowhere but in our file, and the record."""
    install(host, frag=False)
    text = yaml.safe_dump({**config(host), "percentageOfNodesToScore": 40})
    host.write(CONFIG, text.encode())
    install(host, frag=True)
    assert said(host) == all_of(host)
    install(host, frag=True)
    install(host, frag=False)
    assert said(host) == {**theirs(host), "": 40}
    install(host, frag=True)
    uninstall(host)
    assert said(host) == {**theirs(host), "": 40}
    assert "extenders" not in config(host)


@pytest.mark.parametrize("written", [1, 2])
def test_cut_off_on_the_way_back(host: HostFiles, written: int) -> None:
    """Whatever was written by then, the next one ends it."""
    install(host, frag=False)
    text = yaml.safe_dump({**config(host), "percentageOfNodesToScore": 40})
    host.write(CONFIG, text.encode())
    install(host, frag=True)
    host.make(changes(of(host, frag=False).plan())[:written])
    install(host, frag=False)
    assert said(host) == {**theirs(host), "": 40}


def test_a_number_chosen_meanwhile_stays(host: HostFiles) -> None:
    """Only the 100 that we wrote is ours to take back."""
    install(host, frag=True)
    text = yaml.safe_dump({**config(host), "percentageOfNodesToScore": 60})
    host.write(CONFIG, text.encode())
    uninstall(host)
    assert said(host) == {**theirs(host), "": 60}


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])
def test_an_edited_file_after_frag_and_uninstall(host: HostFiles, lost: bool) -> None:
    install(host, frag=True)
    append(host, MORE)
    if lost:
        forget(host)
    uninstall(host)
    assert said(host) == theirs(host)
    assert config(host)["parallelism"] == 8
    assert "extenders" not in config(host)


def test_an_edit_outlives_every_install_and_the_uninstall(host: HostFiles) -> None:
    """Also the second one after it, and those that change nothing."""
    install(host, frag=False)
    append(host, MORE)
    for frag in (False, True, False):
        install(host, frag=frag)
        assert config(host)["parallelism"] == 8
        assert of(host, frag=frag).plan() == []
    uninstall(host)
    assert config(host)["parallelism"] == 8


def test_an_edit_taken_back_leaves_nothing(host: HostFiles) -> None:
    before = tree(host)
    install(host, frag=True)
    append(host, MORE)
    install(host, frag=True)
    edit(host, CONFIG, MORE, "")
    uninstall(host)
    assert tree(host) == before


@pytest.mark.parametrize(("packs", "tls"), [(True, False), (False, True)])
def test_uninstall_without_a_record(host: HostFiles, frag: bool, tls: bool) -> None:
    """It does not know the policy, nor that there was TLS, and leaves nothing."""
    before = tree(host)
    files = of(host, frag=frag, tls=tls)
    files.make(changes(files.plan()))
    forget(host)
    uninstall(host)
    assert tree(host) == before


def test_where_nothing_was_said_nothing_is_left(bare: HostFiles) -> None:
    """kubeadm's flags say nothing of it."""
    for lost in (False, True):
        install(bare, frag=True)
        assert said(bare) == {"": 100}
        append(bare, MORE)
        if lost:
            forget(bare)
        install(bare, frag=False)
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
