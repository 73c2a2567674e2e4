"""The owners of processes by cgroups, and the pods of a node as owners."""

import pytest

from exporter.owners.owner_pods import (
    CONFIG_HASH,
    CONFIG_MIRROR,
    NO_POD,
    Holding,
    Owner,
    OwnerPods,
    owner_of,
    pods_above,
    read_owner_pod,
)
from exporter.run import WatchedPods
from gpushare.domain.model import Amount
from gpushare.kube.cluster import Json
from tests.builders import container_json, event, page, pod_json
from tests.deviceplugin.node_fixture import NODE
from tests.exporter.exporter_data import A, cid, held, owner, owner_pods, with_ids

NEW = Owner("uid-a", cid("new"))
"""A container of pod ``a`` of which the API server has not told the id."""
HASHED = "0123456789abcdef0123456789abcdef"


def names_of(watched: WatchedPods) -> list[str]:
    current = watched.current()
    assert current is not None
    return [owner_pod.name[1] for owner_pod in current.all]


def found_name(pods: OwnerPods, of: Owner) -> str | None:
    found = pods.of_process(of)
    return found.name[1] if found else None


def containers_of(pod: Json) -> list[str]:
    return [holding.container for holding in read_owner_pod(pod).holdings()]


def test_the_pods_of_the_node_are_followed() -> None:
    """Before the first list it is not even known that there are none."""
    watched = WatchedPods()
    watched.apply(event("ADDED", held("early")))
    assert watched.current() is None
    watched.replace(iter([page()]))
    assert names_of(watched) == []
    watched.replace(iter([page(held("b")), page(held("a"))]))
    assert names_of(watched) == ["a", "b"]
    watched.replace(iter([page(held("c"))]))
    first = watched.current()
    assert watched.current() is first
    watched.apply(event("ADDED", held("d")))
    watched.apply(event("ADDED", held("e")))
    assert watched.current() is not first
    watched.apply(event("DELETED", held("c")))
    assert names_of(watched) == ["d", "e"]
    for name, phase in (("d", "Succeeded"), ("e", "Failed")):
        ended = held(name)
        ended["status"]["phase"] = phase
        watched.apply(event("MODIFIED", ended))
        assert name not in names_of(watched)


def test_a_pod_that_is_not_understood_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, watched = held("b"), WatchedPods()
    broken["spec"] = {"containers": 5}
    watched.replace(iter([page(broken, held("a"))]))
    assert names_of(watched) == ["a"]
    assert caplog.messages == ["pod not understood"]


def test_a_process_is_found_by_its_pod() -> None:
    uid = "0A6CB8DB-1234-4bb8-8d9d-8dc7fd6cddf7"
    pods = owner_pods(with_ids(pod_json("a", uid=uid, units=1, node=NODE)), held("b"))
    for text in (uid, uid.lower(), uid.lower().replace("-", "_")):
        assert found_name(pods, Owner(text, cid("a/main"))) == "a"
    assert pods.of_process(Owner("uid-nobody", cid("a/main"))) is None
    assert pods.of_process(NO_POD) is None


def test_containers_of_all_kinds_have_names() -> None:
    init, main = [container_json("first", 1)], [container_json("main", 1)]
    pod = with_ids(pod_json("a", containers=main, init=init, node=NODE))
    pod["status"]["ephemeralContainerStatuses"] = [
        {"name": "debug", "containerID": f"cri-o://{cid('debug')}"}
    ]
    pod["status"]["containerStatuses"][0]["containerID"] = f"docker://{cid('x')}"
    found = read_owner_pod(pod)
    ids = [cid("x"), cid("a/first"), cid("debug")]
    names_ = [found.container_of(Owner("", container_id)) for container_id in ids]
    assert names_ == ["main", "first", "debug"]


def test_an_id_that_was_not_told_yet() -> None:
    """It is the one container's that asks and has none, or was restarted."""
    two = {"x": (1, 0), "y": (1, 0)}
    init, main = [container_json("first", 1)], [container_json("main", 1)]
    restarted = held("a", containers=two)
    first, other = restarted["spec"]["containers"]
    restarted["spec"] |= {"initContainers": [first], "containers": [other]}
    with_ids(restarted)["status"]["initContainerStatuses"][0]["state"] = {
        "terminated": {}
    }
    for pod, name in (
        (held("a", running=False), "main"),
        (held("a", containers=two, running=False), ""),
        (pod_json("a", containers=main, init=init, node=NODE), ""),
        (held("a"), "main"),
        (held("a", containers=two), ""),
        (restarted, "y"),
        (with_ids(pod_json("a", node=NODE)), "main"),
    ):
        assert read_owner_pod(pod).container_of(NEW) == name


def test_a_static_pod_goes_by_its_hash() -> None:
    """Its cgroup has kubelet's name for it, and the API server knows another."""
    pod = held("a")
    pod["metadata"]["annotations"] |= {CONFIG_HASH: HASHED, CONFIG_MIRROR: HASHED}
    pods = owner_pods(pod)
    found = pods.of_process(Owner(HASHED, cid("a/main")))
    assert found is not None
    assert (found.uid, found.static) == ("uid-a", True)
    assert pods.find("uid-a") is found


@pytest.mark.parametrize("liar", ["0-first", "z-last"])
@pytest.mark.parametrize("mirror", [{CONFIG_MIRROR: "uid-a"}, {}])
def test_a_false_mirror_claims_nobodys_processes(
    liar: str, mirror: dict[str, str]
) -> None:
    """Whoever may annotate a pod could else take another's, and be spared for it."""
    pod = held(liar)
    pod["metadata"]["annotations"] |= {CONFIG_HASH: "uid-a", **mirror}
    pods = owner_pods(held("a"), pod)
    assert [found_name(pods, owner(name)) for name in ("a", liar)] == ["a", liar]


def test_what_containers_hold() -> None:
    """Each its part of the share, before it runs; one alone all of a whole card."""
    pod = held("a", containers={"x": (4, 10), "y": (2, 0)}, running=False)
    assert list(read_owner_pod(pod).holdings()) == [
        Holding(A, "x", Amount(10, 4), exclusive=False),
        Holding(A, "y", Amount(0, 2), exclusive=False),
    ]
    alone = held("a", containers={"x": (0, 100)}, charged=(29, 100))
    assert list(read_owner_pod(alone).holdings()) == [
        Holding(A, "x", Amount(100, 29), exclusive=True)
    ]
    two = held("a", containers={"x": (4, 60), "y": (2, 40)}, charged=(29, 100))
    assert list(read_owner_pod(two).holdings()) == [
        Holding(A, "x", Amount(60, 4), exclusive=True),
        Holding(A, "y", Amount(40, 2), exclusive=True),
    ]


def test_an_init_container_holds_only_while_it_runs() -> None:
    """What it had, later ones have again; a sidecar stays."""
    pod = held("a", containers={"first": (8, 0), "side": (1, 0), "main": (4, 0)})
    first, side, main = pod["spec"]["containers"]
    side["restartPolicy"] = "Always"
    pod["spec"] |= {"initContainers": [first, side], "containers": [main]}
    assert containers_of(with_ids(pod)) == ["first", "side", "main"]
    pod["status"]["initContainerStatuses"][0]["state"] = {"terminated": {}}
    assert containers_of(pod) == ["side", "main"]


UID = "0f8e4d2a-7b1c-4c6e-9a35-5d2b8f1e6c70"
ESCAPED = UID.replace("-", "_")
OTHER = "77777777-7b1c-4c6e-9a35-5d2b8f1e6c70"
HASH = "9f6a2b1c3d4e5f60718293a4b5c6d7e8"
CONTAINER = "4b1d" * 16
NODE_CGROUP = "c0ffee01" * 8
INNER = "12ab34cd" * 8
OURS = Owner(UID, CONTAINER)

SLICE = f"kubepods-besteffort-pod{ESCAPED}.slice"
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}"
GROUPFS = f"/kubepods/burstable/pod{UID}/{CONTAINER}"
SCOPE = f"{BURSTABLE}.slice/docker-{CONTAINER}.scope"

LAYOUTS = {
    "v1, cgroupfs, docker": f"11:pids:{GROUPFS}\n1:name=systemd:{GROUPFS}\n",
    "v1, systemd, docker": f"12:devices:{SCOPE}\n1:name=systemd:{SCOPE}\n",
    "v1, some hierarchies only": "9:name=systemd:/\n"
    f"8:pids:/system.slice/containerd.service\n4:memory:{GROUPFS}\n0::/\n",
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
    "kind, v1": f"5:memory:/docker/{NODE_CGROUP}/kubelet/kubepods/pod{UID}/{CONTAINER}",
    "k3d": f"0::/docker/{NODE_CGROUP}/kubepods/burstable/pod{UID}/{CONTAINER}",
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
    "a kind node's own": f"0::/docker/{NODE_CGROUP}/kubelet.slice/kubelet.service",
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
    """A container cannot name another's pod by cgroups that it makes below its own."""
    assert owner_of(LAYOUTS[layout]) == OURS
    lines = LAYOUTS[layout].replace(" (deleted)", "").splitlines()
    mine = f"/kubepods/burstable/pod{OTHER}/{INNER}"
    text = "\n".join(f"{line}{mine}" if "pod" in line else line for line in lines)
    assert owner_of(text) == OURS


@pytest.mark.parametrize("layout", OUTSIDE)
def test_what_is_outside_kubernetes_has_no_owner(layout: str) -> None:
    """A container of docker's own has an id, and is no pod's for that."""
    assert owner_of(OUTSIDE[layout]) == NO_POD


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (f"0::/kubepods/burstable/pod{HASH}/{CONTAINER}", Owner(HASH, CONTAINER)),
        (
            f"0::/kubepods.slice/kubepods-pod{HASH}.slice/crio-{CONTAINER}.scope",
            Owner(HASH, CONTAINER),
        ),
        (f"0::/docker/{NODE_CGROUP}/kubepods/pod{UID}", Owner(UID)),
        (f"0::/kubepods/pod{UID}/{CONTAINER[:-1]}", Owner(UID)),
        (f"0::/kubepods/pod{UID}/{CONTAINER}0", Owner(UID)),
        (f"5:cpu:/kubepods/pod{UID}\n4:memory:/kubepods/pod{UID}/{CONTAINER}\n", OURS),
    ],
    ids=[
        "static",
        "static slice",
        "pod's own",
        "63 digits",
        "65 digits",
        "hierarchies",
    ],
)
def test_special_cgroups(path: str, wanted: Owner) -> None:
    """A static pod goes by its config hash. On v1 the hierarchies need not agree."""
    assert owner_of(path) == wanted


def test_kubernetes_within_kubernetes_names_the_inner_pod() -> None:
    """By our own path, which is in a pod of the cluster whose node this is."""
    outer = f"/kubepods/pod{HASH}/{INNER}/docker/{NODE_CGROUP}"
    own = f"9:cpu:/\n4:pids:{outer}/kubepods/besteffort/pod{OTHER}/{INNER}\n"
    assert pods_above(own) == 1
    process = f"9:cpu:/\n4:pids:{outer}/kubepods/pod{UID}/{CONTAINER}\n"
    assert owner_of(process, pods_above(own)) == OURS
    assert owner_of(f"4:pids:{outer}", pods_above(own)) == NO_POD
    for own in ("", "0::/", f"0::/kubepods/pod{UID}/{CONTAINER}"):
        assert pods_above(own) == 0
