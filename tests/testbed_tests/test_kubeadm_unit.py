"""What a cluster is made of, as far as it can be told without one."""

import io
import json
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.testbed.binaries import (
    HERE,
    NODE,
    NVIDIA,
    NVIDIA_MODULE,
    PROMETHEUS,
    PROMETHEUS_MODULE,
    RUNTIME,
    RUNTIME_MODULE,
    build_flags,
    needs_c,
)
from tests.testbed.kubeadm import files, instances, machine, network, scheduler_pod
from tests.testbed.kubeadm.images import Image, write_archive
from tests.testbed.kubeadm.network import Addresses

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler}
spec:
  containers:
  - command: [kube-scheduler, --leader-elect=true, --kubeconfig=/a]
    volumeMounts: [{mountPath: /a, name: kubeconfig}]
  volumes: [{hostPath: {path: /a}, name: kubeconfig}]
"""


def test_every_tool_stands_in_its_go_mod() -> None:
    """go.mod's tool block is what makes a package buildable."""
    for module, tools in (
        (HERE / "controlplane", NODE),
        (RUNTIME_MODULE, RUNTIME),
        (NVIDIA_MODULE, NVIDIA),
        (PROMETHEUS_MODULE, PROMETHEUS),
    ):
        go_mod = (module / "go.mod").read_text()
        assert all(f"\t{tool.package}\n" in go_mod for tool in tools)
        assert needs_c(module) == (module == NVIDIA_MODULE)


def test_only_kubernetes_is_stamped_with_its_version() -> None:
    """containerd knows no component-base."""
    assert build_flags("go 1.26.0\n")[-1] == "-ldflags=-s -w"


def test_an_image_holds_its_files_and_names(tmp_path: Path) -> None:
    """One layer, every folder ahead of what is in it, and one entry a name."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    image = Image(
        ("local.test/a:1", "docker.io/b/c:2"),
        {"/usr/local/bin/program": program},
        {"/bin/sh": "busybox"},
        entrypoint=("program",),
    )
    write_archive(image, tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        index = blob(archive, "index.json")
        manifest = blob(archive, by_digest(index["manifests"][0]))
        config = blob(archive, by_digest(manifest["config"]))
        layer = archive.extractfile(by_digest(manifest["layers"][0]))
        assert layer is not None
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as inside:
            names = inside.getnames()
    named = [
        each["annotations"]["io.containerd.image.name"] for each in index["manifests"]
    ]
    assert named == list(image.names)
    assert config["config"]["Entrypoint"] == ["program"]
    assert "PATH=" in config["config"]["Env"][0]
    assert "/usr/local/bin" in config["config"]["Env"][0]
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert names == [
        *("bin", "tmp", "usr", "usr/local", "usr/local/bin"),
        *("usr/local/bin/program", "bin/sh"),
    ]


def test_an_image_is_the_same_each_time(tmp_path: Path) -> None:
    """No clock goes into it, so that a node need not take it twice."""
    image = Image(("a:1",), {"/a": Path(__file__)})
    for name in ("one", "two"):
        write_archive(image, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_containerd_has_both_runtimes() -> None:
    """runc, and NVIDIA's runtime in front of it; both take CDI specs from one place."""
    config = tomllib.loads(files.containerd_toml("/bin/nvidia", "pause:1"))
    cri = config["plugins"]["io.containerd.cri.v1.runtime"]
    names = {
        name: each["options"]["BinaryName"]
        for name, each in cri["containerd"]["runtimes"].items()
    }
    nvidia = tomllib.loads(files.nvidia_toml())["nvidia-container-runtime"]
    assert names == {"runc": files.RUNC, "nvidia": "/bin/nvidia"}
    assert cri["restrict_oom_score_adj"] is True
    assert cri["cdi_spec_dirs"] == nvidia["modes"]["cdi"]["spec-dirs"]
    assert nvidia["mode"] == "cdi"


def test_kubeadm_documents() -> None:
    """The names of kubeadm's own kinds, and a node without taints."""
    text = files.init_documents("cp", "10.99.0.2", "v1.2.3", "10.96.0.0/16")
    init, cluster, kubelet = yaml.safe_load_all(text)
    join = yaml.safe_load(files.join_document("w", "10.99.0.3", "10.99.0.2", "a.b"))
    assert init["nodeRegistration"]["taints"] == []
    assert cluster["kubernetesVersion"] == "v1.2.3"
    assert kubelet["failCgroupV1"] is False
    (folder,) = {str(Path(path).parent) for path in files.patches()}
    assert init["patches"]["directory"] == folder
    assert join["discovery"]["bootstrapToken"]["apiServerEndpoint"] == "10.99.0.2:6443"
    assert join["nodeRegistration"]["imagePullPolicy"] == "Never"


def test_scheduler_manifest_is_edited_not_replaced() -> None:
    """Ours comes on top of what is there, and a second edit replaces the first."""
    once = scheduler_pod.edited(MANIFEST, "/c/one.yaml", leader_elect=False)
    twice = scheduler_pod.edited(once, "/c/two.yaml", leader_elect=True)
    spec = yaml.safe_load(twice)["spec"]
    (container,) = spec["containers"]
    assert container["command"] == [
        *("kube-scheduler", "--kubeconfig=/a"),
        *("--config=/c/two.yaml", "--leader-elect=true"),
    ]
    for named in (container["volumeMounts"], spec["volumes"]):
        assert [each["name"] for each in named] == ["kubeconfig", "scheduler-config"]


def test_scheduler_configuration_is_named_by_its_content() -> None:
    """Another content makes for another pod, the files beside it included."""
    names = {
        scheduler_pod.config_files(config, extra)[0]
        for config, extra in (("a", {}), ("b", {}), ("a", {"ca.crt": "x"}))
    }
    _, texts = scheduler_pod.config_files("a", {"ca.crt": "x"})
    assert len(names) == 3
    assert texts[f"{scheduler_pod.FOLDER}/ca.crt"] == "x"


def test_no_two_clusters_share_an_address() -> None:
    """Nodes' and pods' networks, the links' names and the groups' are one's own."""
    everyone = [Addresses(number) for number in network.INSTANCES]
    pods = [each.pods(node) for each in everyone for node in network.NODES_EACH]
    assert len(set(pods)) == len(pods)
    assert len({each.network for each in everyone}) == len(everyone)
    assert not instances.cgroup_prefix(10).startswith(instances.cgroup_prefix(1))


def test_what_keeps_a_cluster_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason and a cure, which become the words of the skipped tests."""
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    assert machine.why_not() == (
        "only root may make namespaces and control groups",
        "run it as root",
    )


def blob(archive: tarfile.TarFile, name: str) -> dict:
    file = archive.extractfile(name)
    assert file is not None
    return json.load(file)


def by_digest(described: dict) -> str:
    return f"blobs/{described['digest'].replace(':', '/')}"
