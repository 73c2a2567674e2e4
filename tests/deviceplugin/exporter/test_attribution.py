"""Whose a cgroup is: every layout that runtimes, drivers and versions make."""

import pytest

from deviceplugin.exporter.owners import NO_POD, Owner, owner_of, pods_above

UID = "0f8e4d2a-7b1c-4c6e-9a35-5d2b8f1e6c70"
ESCAPED = UID.replace("-", "_")
OTHER = "77777777-7b1c-4c6e-9a35-5d2b8f1e6c70"
HASH = "9f6a2b1c3d4e5f60718293a4b5c6d7e8"
CONTAINER = "4b1d" * 16
NODE = "c0ffee01" * 8
INNER = "12ab34cd" * 8
OURS = Owner(UID, CONTAINER)

V1_CGROUPFS = f"""\
11:pids:/kubepods/burstable/pod{UID}/{CONTAINER}
10:cpuset:/kubepods/burstable/pod{UID}/{CONTAINER}
1:name=systemd:/kubepods/burstable/pod{UID}/{CONTAINER}
"""
V1_SYSTEMD = f"""\
12:devices:/kubepods.slice/kubepods-burstable.slice/\
kubepods-burstable-pod{ESCAPED}.slice/docker-{CONTAINER}.scope
1:name=systemd:/kubepods.slice/kubepods-burstable.slice/\
kubepods-burstable-pod{ESCAPED}.slice/docker-{CONTAINER}.scope
"""
ONLY_SOME = f"""\
9:name=systemd:/
8:pids:/system.slice/containerd.service
4:memory:/kubepods/besteffort/pod{UID}/{CONTAINER}
0::/
"""
SLICE = f"kubepods-besteffort-pod{ESCAPED}.slice"
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}"

LAYOUTS = {
    "v1, cgroupfs, docker": V1_CGROUPFS,
    "v1, systemd, docker": V1_SYSTEMD,
    "v1, some hierarchies only": ONLY_SOME,
    "v1, guaranteed": f"3:cpu,cpuacct:/kubepods/pod{UID}/{CONTAINER}",
    "v1, root of a node's own": f"3:pids:/node-7/kubepods/pod{UID}/{CONTAINER}",
    "v2, cgroupfs, containerd": f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}",
    "v2, systemd, containerd": f"0::{BURSTABLE}.slice/cri-containerd-{CONTAINER}.scope",
    "v2, systemd, CRI-O": f"0::{BURSTABLE}.slice/crio-{CONTAINER}.scope",
    "v2, CRI-O, child": f"0::{BURSTABLE}.slice/crio-{CONTAINER}.scope/container",
    "v2, nested child": f"0::/kubepods/pod{UID}/{CONTAINER}/init.scope/app",
    "containerd without its own": f"11:pids:/system.slice/containerd.service/{SLICE}"
    f":cri-containerd:{CONTAINER}",
    "containerd, bare": f"0::/{SLICE}:cri-containerd:{CONTAINER}",
    "kind, v2": "0::/kubelet.slice/kubelet-kubepods.slice/"
    "kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{CONTAINER}.scope",
    "kind, v1": f"5:memory:/docker/{NODE}/kubelet/kubepods/pod{UID}/{CONTAINER}",
    "k3d": f"0::/docker/{NODE}/kubepods/burstable/pod{UID}/{CONTAINER}",
    "from another cgroup namespace": f"0::/../../pod{UID}/{CONTAINER}",
    "from beside the pod, systemd": f"0::/../../kubepods-pod{ESCAPED}.slice"
    f"/cri-containerd-{CONTAINER}.scope",
    "docker within the container": f"0::/kubepods/pod{UID}/{CONTAINER}/docker/{INNER}",
    "ended": f"0::/kubepods/burstable/pod{UID}/{CONTAINER} (deleted)",
}

OUTSIDE = {
    "nothing": "",
    "the root": "0::/\n",
    "a service": "0::/system.slice/sshd.service",
    "a session": "1:name=systemd:/user.slice/user-1000.slice/session-2.scope",
    "kubelet": "0::/system.slice/kubelet.service",
    "docker alone": f"0::/system.slice/docker-{CONTAINER}.scope",
    "a kind node's own": f"0::/docker/{NODE}/kubelet.slice/kubelet.service",
    "podman": f"0::/machine.slice/libpod-{CONTAINER}.scope",
    "podman's pod": f"0::/machine.slice/machine-libpod_pod_{CONTAINER}.slice",
    "all pods": "0::/kubepods.slice/kubepods-burstable.slice",
    "a longer run of digits": f"0::/kubepods/pod{UID}a/x",
    "a shorter run of digits": f"0::/kubepods/pod{UID[:-1]}/x",
    "a longer hash": f"0::/kubepods/pod{HASH}0/{CONTAINER}",
    "a person's folder": "0::/podium/pod-of-whales",
    "no cgroup file at all": "\x00\ufffd nonsense : pod",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_names_pod_and_container(layout: str) -> None:
    """By runtime, cgroup driver and version, nested or not."""
    assert owner_of(LAYOUTS[layout]) == OURS


@pytest.mark.parametrize(
    "path",
    [
        f"0::/kubepods/burstable/pod{HASH}/{CONTAINER}",
        f"0::/kubepods.slice/kubepods-pod{HASH}.slice/crio-{CONTAINER}.scope",
    ],
)
def test_a_static_pod_is_named_by_its_config_hash(path: str) -> None:
    """As its annotation has it: without dashes."""
    assert owner_of(path) == Owner(HASH, CONTAINER)


@pytest.mark.parametrize("layout", OUTSIDE)
def test_what_is_outside_kubernetes_has_no_owner(layout: str) -> None:
    """A container of docker's own has an id, and is no pod's for that."""
    assert owner_of(OUTSIDE[layout]) == NO_POD


def test_a_pod_s_own_cgroup_has_no_container() -> None:
    """Nor is the node's own container taken for one."""
    assert owner_of(f"0::/docker/{NODE}/kubepods/pod{UID}") == Owner(UID)


@pytest.mark.parametrize("digits", ["4b1d" * 15 + "4b1", "4b1d" * 16 + "0"])
def test_a_container_s_id_has_64_digits(digits: str) -> None:
    """One more, or one less, is some other number."""
    assert owner_of(f"0::/kubepods/pod{UID}/{digits}") == Owner(UID)


def test_kubernetes_within_kubernetes_names_the_inner_pod() -> None:
    """By our own path, which is in a pod of the cluster whose node this is."""
    outer = f"/kubepods/pod{HASH}/{INNER}/docker/{NODE}"
    own = f"9:cpu:/\n4:pids:{outer}/kubepods/besteffort/pod{OTHER}/{INNER}\n"
    assert pods_above(own) == 1
    process = f"9:cpu:/\n4:pids:{outer}/kubepods/pod{UID}/{CONTAINER}\n"
    assert owner_of(process, pods_above(own)) == OURS
    assert owner_of(f"4:pids:{outer}", pods_above(own)) == NO_POD


@pytest.mark.parametrize("own", ["", "0::/", f"0::/kubepods/pod{UID}/{CONTAINER}"])
def test_a_node_is_mostly_in_no_pod(own: str) -> None:
    """Whether its exporter runs in a pod or beside all, and sees its path or not."""
    assert pods_above(own) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_container_cannot_name_another_s_pod(layout: str) -> None:
    """By cgroups that it makes below its own, if those are writable in it."""
    lines = LAYOUTS[layout].replace(" (deleted)", "").splitlines()
    mine = f"/kubepods/burstable/pod{OTHER}/{INNER}"
    text = "\n".join(f"{line}{mine}" if "pod" in line else line for line in lines)
    assert owner_of(text) == OURS


def test_a_line_with_a_container_beats_one_without() -> None:
    """On v1 the hierarchies need not agree."""
    text = f"5:cpu:/kubepods/pod{UID}\n4:memory:/kubepods/pod{UID}/{CONTAINER}\n"
    assert owner_of(text) == OURS
