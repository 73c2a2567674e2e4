"""kube-scheduler's configuration on a real control plane: put, tried, taken back.

Where nothing of ours runs, because it is the scheduler itself that is broken and
mended. The extender runs on the node as elsewhere; ours is what kubeadm has made.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
import yaml

from gpushare.kube.apiserver.api import ApiObjects
from gpusharectl.installer.kube_scheduler.files import make_files_target
from gpusharectl.installer.kube_scheduler.host import SchedulerTimeouts
from gpusharectl.installer.kube_scheduler.host_files import (
    FileChange,
    HostFiles,
    HostPath,
)
from gpusharectl.installer.kube_scheduler.job import SchedulerJobs, SchedulerTarget
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmFile, KubeadmScheduler
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.kube_scheduler.verify import ConfigurationResult
from tests.cluster.fresh import PART, Fresh, Tree, read_tree
from tests.cluster.site import EXTENDER, SYSTEM, Site
from tests.testbed.credentials import grant
from tests.testbed.kubeadm.appimage import app_version
from tests.testbed.manifests import rights

NODE = "cp"
MANIFEST = KubeadmFile.path
CONFIG = f"{KubeadmFile.folder}/scheduler.yaml"
HEAD = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}
"""


@pytest.fixture(scope="module")
def bare_site(bare: Fresh) -> Iterator[Site]:
    """A cluster as kubeadm makes it, and the extender that nobody asks yet."""
    user = f"system:serviceaccount:{SYSTEM}:{EXTENDER}"
    grant(bare.cluster.rest, user, rights(EXTENDER))
    bare._write_kubeconfig(EXTENDER)
    bare.start_extender()
    yield bare
    assert bare.extender is not None
    bare.extender.stop()
    bare.kubectl("delete", "clusterrolebindings,clusterroles", f"testbed:{user}")
    bare.kubectl("delete", "serviceaccount", EXTENDER, "-n", SYSTEM)


@pytest.fixture
def objects(bare_site: Site) -> Iterator[ApiObjects]:
    api = ApiObjects.connect(str(bare_site.cluster.kubeconfig))
    yield api
    api.close()


class NodeFiles(HostFiles):
    """A node's files, without settings that would be of this process's network."""

    def place(self, path: HostPath) -> Path:
        hidden = PurePosixPath(path).is_relative_to("/proc")
        return super().place("/run/none" if hidden else path)


@pytest.fixture
def files(bare_site: Site) -> HostFiles:
    return NodeFiles(bare_site.cluster.nodes[NODE].path("/"))


@pytest.fixture
def host(files: HostFiles, objects: ApiObjects) -> KubeadmScheduler:
    return KubeadmScheduler(files, objects, NODE, make_files_target())


def tree(files: HostFiles) -> Tree:
    return read_tree(files.place("/etc/kubernetes"))


def pods_of_ours(objects: ApiObjects) -> list[str]:
    pods = objects.list("v1", "Pod", label_selector=PART)
    return [pod["metadata"]["name"] for pod in pods]


def test_put_proved_and_taken_back(
    host: KubeadmScheduler, files: HostFiles, objects: ApiObjects
) -> None:
    """As the installer goes: plan, check, apply, wait, probe; then back, byte for byte.

    Before it is applied the probe tells that nobody asks the extender.
    """
    before = tree(files)
    assert "bound without a call to the extender" in host.probe()
    plan = host.plan()
    assert host.verdict(plan).result is ConfigurationResult.WELL
    assert tree(files) == before
    heard: list[str] = []
    host.apply(plan)
    assert host.wait(heard.append) == ""
    assert any("the old pod has to end" in words for words in heard)
    assert host.probe() == ""
    assert host.plan() == []
    assert host._scheduler_files.why_undone() == ""
    assert pods_of_ours(objects) == []

    host.apply(host.plan_restore())
    assert host.wait(heard.append) == ""
    assert tree(files) == before
    assert host.plan_restore() == []
    assert "bound without a call to the extender" in host.probe()


def test_tried_with_certificates(
    files: HostFiles, objects: ApiObjects, host: KubeadmScheduler
) -> None:
    """Certificates that are not in place yet are read by the trial; nothing is left."""
    before = tree(files)
    asked = make_files_target(tls=True)
    with_tls = KubeadmScheduler(files, objects, NODE, asked)
    plan = with_tls.plan()
    assert with_tls.verdict(plan).result is ConfigurationResult.WELL
    spoiled = [
        replace(each, after=b"nonsense") if each.path.endswith("ca.crt") else each
        for each in plan
    ]
    verdict = with_tls.verdict(spoiled)
    assert verdict.result is ConfigurationResult.BAD
    assert "certificate" in verdict.words
    assert tree(files) == before
    assert pods_of_ours(objects) == []
    assert host.plan_restore() == []


def test_nobody_to_try_it(files: HostFiles, objects: ApiObjects) -> None:
    """That it could not be tried is no reason against it, and is said."""
    asked = make_files_target()
    timeouts = SchedulerTimeouts(check_s=2, wait_s=2)
    host = KubeadmScheduler(files, objects, "nowhere", asked, timeouts)
    before = tree(files)
    plan = host.plan()
    assert host.verdict(plan).result is ConfigurationResult.UNKNOWN
    assert host.check(plan) == ""
    heard: list[str] = []
    assert "kubelet has to start the new pod" in host.wait(heard.append)
    assert "could not be tried" in heard[0]
    assert tree(files) == before


def test_broken_one_is_told_and_rolled_back(
    host: KubeadmScheduler, files: HostFiles, objects: ApiObjects
) -> None:
    """kube-scheduler's own words come before anything is written.

    Forced through, it is seen to end again and again, and the old files come back.
    """
    before = tree(files)
    asked = make_files_target()
    broken = replace(asked, extender={**asked.extender, "weight": -1})
    host = KubeadmScheduler(files, objects, NODE, broken, SchedulerTimeouts(wait_s=120))
    plan = host.plan()
    assert "must have a positive weight" in host.check(plan)
    assert tree(files) == before
    assert pods_of_ours(objects) == []

    host.apply(plan)
    why = host.wait(lambda _: None)
    assert "must have a positive weight" in why
    host.roll_back()
    assert tree(files) == before
    assert host.wait(lambda _: None) == ""


def test_manifest_written_anew_is_mended(
    host: KubeadmScheduler, files: HostFiles
) -> None:
    """kubeadm upgrade brings a manifest without our flag: told, and put right."""
    untouched = files.read(MANIFEST)
    host.apply(host.plan())
    files.write(MANIFEST, untouched)
    assert "no longer names" in host._scheduler_files.why_undone()
    plan = host.plan()
    assert [change.path for change in plan] == [MANIFEST]
    host.apply(plan)
    assert host.wait(lambda _: None) == ""
    assert host._scheduler_files.why_undone() == ""
    # kubelet starts a copy too, and its pod would replace the one that is Ready.
    files.write(f"{MANIFEST}.bak", untouched or b"")
    for words in (
        host.wait(print),
        str(host.plan()),
        host._scheduler_files.why_undone(),
    ):
        assert words.startswith(f"{MANIFEST}.bak holds a pod")
    files.remove(f"{MANIFEST}.bak")
    host.apply(host.plan_restore())
    assert files.read(MANIFEST) == untouched
    assert host.wait(lambda _: None) == ""


def test_own_configuration_is_kept(
    host: KubeadmScheduler, files: HostFiles, bare_site: Site
) -> None:
    """What an administrator configured stays in force, and comes back afterwards."""
    kubeadms = files.read(MANIFEST)
    profiles = [{"schedulerName": "theirs"}, {"schedulerName": "default-scheduler"}]
    config = {**yaml.safe_load(HEAD), "profiles": profiles}
    bare_site.cluster.set_scheduler_config(yaml.safe_dump(config), leader_elect=True)
    before = tree(files)
    plan = host.plan()
    assert host.check(plan) == ""
    host.apply(plan)
    assert host.wait(lambda _: None) == ""
    assert host.probe() == ""
    ours = yaml.safe_load(files.read(CONFIG))
    assert ours.pop("extenders")[0]["bindVerb"] == "bind"
    assert ours == config
    host.apply(host.plan_restore())
    assert tree(files) == before
    assert host.wait(lambda _: None) == ""
    files.write(MANIFEST, kubeadms)
    assert host.wait(lambda _: None) == ""


def test_own_mount_of_the_folder(
    host: KubeadmScheduler, files: HostFiles, objects: ApiObjects
) -> None:
    """A second mount of one path is rejected by the API server, so it is a no.

    kubelet would end kube-scheduler and start none. The one that is there is used.
    """
    kubeadms = (files.read(MANIFEST) or b"").decode()
    body = yaml.safe_load(kubeadms)
    (main,) = body["spec"]["containers"]
    folder = KubeadmFile.folder
    main["volumeMounts"].append({"name": "mine", "mountPath": folder})
    mine = {"name": "mine", "hostPath": {"path": folder, "type": "Directory"}}
    body["spec"]["volumes"].append(mine)
    twice = copy.deepcopy(body)
    twice["spec"]["containers"][0]["volumeMounts"].append(
        {"name": "mine", "mountPath": folder, "subPath": "tls"}
    )
    plan = host.plan()
    doubled = [
        replace(each, after=yaml.safe_dump(twice).encode())
        if each.path == MANIFEST
        else each
        for each in plan
    ]
    assert "must be unique" in host.check(doubled)

    files.place(folder).mkdir()
    files.write(MANIFEST, yaml.safe_dump(body, sort_keys=False).encode())
    before = tree(files)
    plan = host.plan()
    assert host.check(plan) == ""
    host.apply(plan)
    assert host.wait(lambda _: None) == ""
    assert host.probe() == ""
    host.apply(host.plan_restore())
    assert tree(files) == before
    assert host.wait(lambda _: None) == ""
    files.write(MANIFEST, kubeadms.encode())
    assert host.wait(lambda _: None) == ""
    files.remove_empty(folder)


def test_job_on_a_control_plane_node(
    files: HostFiles, objects: ApiObjects, host: KubeadmScheduler
) -> None:
    """Our image does the same from a Job: tries first, writes, waits, puts back."""
    before = tree(files)
    image = f"gpushare:{app_version()}"
    target = SchedulerTarget(Flavour.KUBEADM, NODE, objects.version(), image)
    jobs = SchedulerJobs(objects, target)
    heard: list[str] = []
    assert jobs.run("apply", NODE, heard.append) == ""
    assert host.plan() == []
    assert host.probe() == ""
    assert jobs.run("apply", NODE, heard.append) == ""
    assert jobs.run("restore", NODE, heard.append) == ""
    assert tree(files) == before

    bad = f"{HEAD}percentageOfNodesToScore: 500\n"
    files.write(CONFIG, bad.encode())
    before = tree(files)
    why = jobs.run("apply", NODE, heard.append)
    assert "rejects the new configuration" in why
    assert "percentageOfNodesToScore" in why
    assert tree(files) == before
    files.make([FileChange(CONFIG, None, None)])
    files.remove_empty(KubeadmFile.folder)
    assert objects.list("batch/v1", "Job", namespace=SYSTEM) == ()
