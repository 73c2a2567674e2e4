"""One command makes a cluster share its cards, and one makes it what it was before.

What ``gpusharectl install`` makes is all there is here: our own image, in containers.
The tests of this file go on from one another, as an administrator's day does.
"""

import json

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpushare.kube.apiserver.api import ApiObjects
from gpusharectl.installer.manifests import load_manifests
from gpusharectl.installer.nodes.facts import find_node, read_nodes
from gpusharectl.installer.nodes.pods import check_pod
from tests.cluster.dra_on import CLAIMS, TEMPLATES, allocate
from tests.cluster.exporter import ACCOUNT as EXPORTER
from tests.cluster.exporter import process_of
from tests.cluster.fresh import PART, Before, Fresh, printed
from tests.cluster.gpus import PLUGIN
from tests.cluster.manifests import TWO_CARD_APPS as APPS
from tests.cluster.manifests import TWO_P4, container, deployment, pod
from tests.cluster.seen import inside, refused_with, within_capacity
from tests.cluster.site import EDGE, EXTENDER, SYSTEM
from tests.cluster.test_dra import by_claim, devices
from tests.testbed.audit import Call
from tests.testbed.kubeadm.appimage import app_version
from tests.testbed.manifests import rights
from tests.testbed.waiting import wait_until

NAME = "app.kubernetes.io/name=gpushare-exporter"
PROMISED = "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"
USED = "DCGM_CUSTOM_PROCESS_MEM_USED"


def page(site: Fresh, path: str = "metrics") -> str:
    """Read a page of the exporter's only pod, through the API server."""
    (pod,) = site.get("pods", "-n", SYSTEM, "-l", NAME)["items"]
    name = pod["metadata"]["name"]
    proxy = f"/api/v1/namespaces/{SYSTEM}/pods/{name}:9400/proxy"
    return site.kubectl("get", "--raw", f"{proxy}/{path}")


def samples(site: Fresh, name: str) -> list[Sample]:
    return [
        sample
        for family in text_string_to_metric_families(page(site))
        for sample in family.samples
        if sample.name == name
    ]


def by_pod(site: Fresh, name: str, namespace: str) -> dict[str, float]:
    return {
        sample.labels["PodName"]: sample.value
        for sample in samples(site, name)
        if sample.labels.get("NamespaceName") == namespace
    }


def disagreements(site: Fresh) -> dict[str, float]:
    """Give how many placements differ from what came of them, and from kubelet's."""
    found = samples(site, "vcuda_placement_disagreements")
    return {sample.labels["what"]: sample.value for sample in found}


MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG = "/etc/kubernetes/vcuda/scheduler.yaml"
NOTES = "vcuda/state.json"
FREE = "baidu.com/vcuda-node-name"
FULL = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory."
IMAGES = ("-o", "jsonpath={.items[*].spec.containers[*].image}")
ON_A_BAD_DAY = {("get", "pods")}
"""To read a pod back when the answer to its binding was lost, or none is known yet."""
MOUNTS_BELOW_HOST = """
import json
rows = [line.split() for line in open("/proc/self/mountinfo")]
below = {row[4]: row[5].split(",") for row in rows if f"{row[4]}/".startswith("/host/")}
writable = [path for path, options in below.items() if "ro" not in options]
with open("/dev/termination-log", "w") as file:
    json.dump({"mounts": len(below), "writable": writable[:9]}, file)
"""
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
}


@pytest.fixture(scope="module")
def host(bare: Fresh) -> Fresh:
    return bare.begin(TWO_P4)


def test_a_dry_run_touches_nothing(host: Fresh, before: Before) -> None:
    """It shows each object and each file change."""
    shown = host.must("install", "--nodes", "cp", "--dry-run")
    assert "gpushare-device-plugin" in shown
    assert f"+++ {MANIFEST}" in shown
    assert "baidu.com/vcuda" in shown
    assert (host.tree(), host.everything()) == before


def test_a_node_is_checked_before(host: Fresh, before: Before) -> None:
    """By a pod that sees what the device plugin would see, and leaves nothing."""
    ran = host.ctl("check-node", "cp", "-o", "json")
    assert ran.returncode == 0, printed(ran)
    (node,) = json.loads(ran.stdout)["nodes"]
    checks = {one["check"]: one for one in node["checks"]}
    assert {about: one["ok"] for about, one in checks.items()} == dict.fromkeys(
        [
            *("node", "kubelet", "plugins", "image"),
            *("driver", "NVML", "cards", "injection"),
        ],
        True,
    )
    assert checks["cards"]["text"] == "2 Tesla P4 of 7611 MiB: 58 units"
    assert (host.tree(), host.everything()) == before


def test_what_checks_a_node_can_write_nowhere_on_it(host: Fresh) -> None:
    """It is root's, and sees the host's whole tree with all that is mounted in it."""
    objects = ApiObjects.connect(str(host.cluster.kubeconfig))
    node = find_node(read_nodes(objects), "cp")
    plugin = next(
        one
        for one in load_manifests("kubeadm")
        if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", PLUGIN)
    )
    assert node is not None
    body = check_pod(objects, plugin, node)
    objects.close()
    container = body["spec"]["containers"][0]
    container["command"] = ["python", "-c", MOUNTS_BELOW_HOST]
    host.create(body, namespace=SYSTEM)
    name = body["metadata"]["name"]
    wait_until(lambda: host.phase(name, SYSTEM) == "Succeeded", "the pod to end", 120)
    (status,) = host.get("pod", name, "-n", SYSTEM)["status"]["containerStatuses"]
    host.kubectl("delete", "pod", name, "-n", SYSTEM, "--now")
    seen = json.loads(status["state"]["terminated"]["message"])
    assert seen["mounts"] > 1
    assert seen["writable"] == []


def test_from_nothing_to_both_services(host: Fresh, before: Before) -> None:
    """Both are Running in kube-system, from our own image, and the cards are there."""
    told = host.must("install", "--nodes", "cp", "--yes")
    assert host.services() == {
        "gpushare-extender": "Running",
        "gpushare-device-plugin": "Running",
    }
    assert host.allocatable("cp") == (200, 58)
    assert "2 cards, 58 units" in told
    assert "Done in" in told


def test_versions_side_by_side(host: Fresh) -> None:
    """Of one node: kubelet's, and one image with the id that kubelet reports."""
    versions = json.loads(host.must("version", "-o", "json"))
    (node,) = versions["nodes"]
    (extender,), (plugin,) = node["extender"], node["device-plugin"]
    assert (node["name"], node["kubelet"]) == ("cp", versions["kubernetes"])
    assert extender == plugin
    assert plugin["version"] == app_version() == versions["gpusharectl"]
    assert "sha256:" in plugin["id"]
    assert "One version everywhere" in host.must("version")


def test_the_seeds_exercise(host: Fresh) -> None:
    """On what the installer made: 4 and 20 share a card, the other 20 has the other."""
    host.create(*(deployment(*one) for one in APPS.items()), namespace=EDGE)
    wait_until(lambda: host.ready(*APPS, namespace=EDGE), "all three apps", 120)
    groups: dict[str, list[int]] = {}
    for name, units in APPS.items():
        (uuid,) = host.visible(host.pod_of(name, EDGE), namespace=EDGE)
        groups.setdefault(uuid, []).append(units)
    assert sorted(map(sorted, groups.values())) == [[4, 20], [20]]
    assert set(groups) == {card.uuid for card in TWO_P4}


def test_it_is_shown_and_explained(host: Fresh) -> None:
    """By the extender's own book, which is asked through the API server."""
    shown = host.must("inspect")
    assert "24/29" in shown
    assert "20/29" in shown
    assert "from pods and nodes" not in shown
    host.create(pod("big", container("main", 30, 1)))
    refused_with(host, "big", FULL)
    why = host.ctl("why", "big")
    assert why.returncode == 3
    assert "30 units" in printed(why)
    host.kubectl("delete", "pod", "big")


def test_every_right_is_used_and_none_is_missing(host: Fresh) -> None:
    """What the accounts may do is what they did: the API server's log holds both.

    With a pod that names its node itself, one that is denied there, and one before
    which another has to go. The one denied asks less than kubelet counts as free, and
    more than any card has: else kubelet would deny it without asking us.
    """
    host.create({**URGENT, "value": 1000, "globalDefault": False})
    by_hand = pod("by-hand", container("main", 2, 1), nodeName="cp")
    told = host.cluster.try_kubectl("create", "-f", "-", stdin=json.dumps(by_hand))
    assert "spec.nodeName: a pod that asks for a part of a card" in told.stderr
    host.kubectl("label", "namespace", "default", f"{FREE}=allow")
    # The guard hears of the label a moment later.
    trial = ("create", "--dry-run=server", "-f", "-")
    wait_until(
        lambda: host.cluster.try_kubectl(*trial, stdin=json.dumps(by_hand)).returncode,
        "the label to count",
        accept=(0).__eq__,
    )
    host.create(by_hand)
    host.create(pod("too-much", container("main", 10, 1), nodeName="cp"))
    host.kubectl("label", "namespace", "default", f"{FREE}-")
    host.wait_running("by-hand")
    wait_until(lambda: host.phase("too-much") == "Failed", "the denial")
    host.create(pod("urgent", container("main", 25, 1), priorityClassName="urgent"))
    host.wait_running("urgent")
    for account in (EXTENDER, PLUGIN):
        granted = {
            (verb, resource)
            for rule in rights(account)
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        wait_until(
            lambda account=account, granted=granted: (
                granted - used(host, account) - ON_A_BAD_DAY
            ),
            f"all rights of {account} used",
            90,
            accept=lambda unused: not unused,
            every_s=0.5,
        )
        assert [one for one in calls(host, account) if one.status == 403] == []
    host.kubectl("delete", "pod", "by-hand", "too-much", "urgent")
    host.kubectl("delete", "priorityclass", "urgent")
    wait_until(lambda: host.ready(*APPS, namespace=EDGE), "all three apps", 120)


def calls(host: Fresh, account: str) -> list[Call]:
    return host.calls(f"system:serviceaccount:{SYSTEM}:{account}")


def used(host: Fresh, account: str) -> set[tuple[str, str]]:
    return {(call.verb, call.resource) for call in calls(host, account)}


def test_again_changes_nothing(host: Fresh) -> None:
    """Not an object, not a file, not a pod."""
    versions, files = host.versions(), host.tree()
    pods = [pod["metadata"]["uid"] for pod in host.get("pods", "-A")["items"]]
    told = host.must("install", "--nodes", "cp", "--yes")
    assert "none changed" in told
    assert host.versions() == versions
    assert host.tree() == files
    assert [one["metadata"]["uid"] for one in host.get("pods", "-A")["items"]] == pods


def test_an_upgrade_of_kubernetes_is_mended(host: Fresh, before: Before) -> None:
    """It brings a manifest without us: ``inspect`` says so, ``install`` mends it."""
    _, content = before[0]["manifests/kube-scheduler.yaml"]
    ours = host.tree()
    host.cluster.nodes["cp"].write(MANIFEST, content.decode())
    host.cluster.nodes["cp"].path(MANIFEST).chmod(0o600)
    assert "gpusharectl install" in host.must("inspect")
    host.must("install", "--nodes", "cp", "--yes")
    assert host.tree() == ours


def test_a_newer_version_of_ours(host: Fresh) -> None:
    """Extender and plugin are exchanged under running pods, who notice nothing.

    None starts anew, each keeps its card, and what is free is counted as before. The
    same without an image keeps the one that runs; the old one is asked for by name.
    """
    host.cluster.nodes["cp"].must(
        *("ctr", "-n", "k8s.io", "images", "tag", "--force"),
        f"docker.io/library/gpushare:{app_version()}",
        "docker.io/library/gpushare:next",
    )
    before = {name: running(host, name) for name in APPS}
    host.must("install", "--nodes", "cp", "--yes", "--image", "gpushare:next")
    images = host.kubectl("get", "pods", "-n", SYSTEM, "-l", PART, *IMAGES).split()
    assert images == ["gpushare:next", "gpushare:next"]
    assert {name: running(host, name) for name in APPS} == before
    assert within_capacity(host)
    # Of 29: 4 and 20 on one card, 20 on the other.
    host.create(pod("fits", container("main", 9, 1)))
    host.wait_running("fits")
    host.create(pod("late", container("main", 6, 1)))
    refused_with(host, "late", FULL)
    host.kubectl("delete", "pod", "fits", "late")
    told = host.must("install", "--nodes", "cp", "--yes")
    assert "the image stays gpushare:next" in told
    images = host.kubectl("get", "pods", "-n", SYSTEM, "-l", PART, *IMAGES).split()
    assert images == ["gpushare:next", "gpushare:next"]
    old = f"gpushare:{app_version()}"
    host.must("install", "--nodes", "cp", "--yes", "--image", old)


def running(host: Fresh, app: str) -> tuple[str, str, int, list[str]]:
    """Give a pod's name, its container's id and restarts, and the card that it sees."""
    (one,) = host.pods_of(app, EDGE)
    (status,) = one["status"]["containerStatuses"]
    name = one["metadata"]["name"]
    seen = host.visible(name, namespace=EDGE)
    return name, status["containerID"], status["restartCount"], seen


def test_the_policy_that_packs_and_back(host: Fresh) -> None:
    """Its word outweighs kube-scheduler's own; taken back, all files are as before.

    But for our own notes of what each file was when it was last written.
    """
    files, held = host.tree(), {name: running(host, name) for name in APPS}
    host.must("install", "--nodes", "cp", "--yes", "--policy", "frag")
    text = host.cluster.nodes["cp"].path(CONFIG).read_text()
    config = yaml.safe_load(text)
    assert [each["weight"] for each in config["extenders"]] == [100]
    assert config["percentageOfNodesToScore"] == 100
    names = [f"packed-{number}" for number in range(4)]
    host.create(*(pod(name, container("main", 1, 1)) for name in names))
    for name in names:
        host.wait_running(name)
    assert within_capacity(host)
    assert {name: running(host, name) for name in APPS} == held
    host.kubectl("delete", "pod", *names)
    host.must("install", "--nodes", "cp", "--yes", "--policy", "first-fit")
    ours = {NOTES: files[NOTES]}
    assert {**host.tree(), **ours} == files


def tier(host: Fresh) -> str:
    """The label that the device plugin gives its node."""
    labels = host.get("node", "cp")["metadata"]["labels"]
    return str(labels.get("baidu.com/vcuda-isolation"))


def test_isolation_and_back(host: Fresh) -> None:
    """One that no card can have, and one whose library comes with the image.

    Nothing weaker is offered in place of the first, and all say why. What runs goes on.
    """
    held = {name: running(host, name) for name in APPS}
    assert tier(host) == "none"
    ran = host.ctl("install", "--nodes", "cp", "--yes", "--isolation", "driver")
    assert ran.returncode == 1, printed(ran)
    assert "isolation tier none becomes driver" in printed(ran)
    assert "are sick: isolation tier driver: " in printed(ran)
    assert tier(host) == "driver"
    assert host.allocatable("cp") == (0, 0)
    assert "because isolation tier driver: " in host.must("inspect")
    host.must("install", "--nodes", "cp", "--yes", "--isolation", "preload")
    has_the_library(host)
    host.must("install", "--nodes", "cp", "--yes", "--isolation", "none")
    wait_until(lambda: host.allocatable("cp"), "cards", accept=(200, 58).__eq__)
    assert tier(host) == "none"
    assert {name: running(host, name) for name in APPS} == held


def has_the_library(host: Fresh) -> None:
    """A new pod's container has the image's own, and its limit."""
    wait_until(lambda: host.allocatable("cp"), "cards", accept=(200, 58).__eq__)
    assert tier(host) == "preload"
    host.create(pod("counted", container("main", 4, 1)))
    host.wait_running("counted")
    library = inside(host, "counted", "cat", "/etc/ld.so.preload").strip()
    read = ("sha256sum", library)
    plugin = host.get("pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={PLUGIN}")
    (name,) = (one["metadata"]["name"] for one in plugin["items"])
    theirs = host.kubectl("exec", "-n", SYSTEM, name, "--", *read)
    assert inside(host, "counted", *read) == theirs
    assert inside(host, "counted", "cat", "/etc/vcuda/limits").endswith(" 1024 256\n")
    host.kubectl("delete", "pod", "counted")


def test_cards_by_claims_too_and_back(host: Fresh) -> None:
    """A classic pod and a claim share a card; a later install keeps that.

    The API server asks the extender of its host, by the certificate there. While a
    claim is used the cards are not taken back.
    """
    told = host.must("install", "--nodes", "cp", "--yes", "--dra")
    assert "cp: cards are offered to claims too" in told
    by_claim(host, "by-claim", 5)
    host.wait_running("by-claim")
    (card,) = host.visible("by-claim")
    held = {tuple(host.visible(host.pod_of(one, EDGE), namespace=EDGE)) for one in APPS}
    assert (card,) in held
    status, answer = allocate(host, "too-much", card, 20)
    assert status >= 400
    assert f"card {card} of node cp has " in answer["message"]
    assert " units left, not 20" in answer["message"]
    by_claim(host, "nothing", 0)
    refused_with(host, "nothing", "denied the request: request card has 0 MiB")
    again = host.must("install", "--nodes", "cp", "--yes")
    assert "cards stay offered to ResourceClaims (DRA)" in again
    assert "none changed" in again

    files, versions = host.tree(), host.versions()
    for command in (("install", "--no-dra", "--nodes", "cp"), ("uninstall",)):
        refused = host.ctl(*command, "--yes")
        assert refused.returncode == 3
        assert "on cp, used by by-claim" in printed(refused)
    assert (host.tree(), host.versions()) == (files, versions)
    host.kubectl("delete", "pod", "by-claim", "nothing")
    without_claims(host)
    host.must("install", "--nodes", "cp", "--yes", "--no-dra")
    assert devices(host) == []
    kinds = ("deviceclasses", "validatingwebhookconfigurations")
    assert [host.get(kind)["items"] for kind in kinds] == [[], []]


def without_claims(host: Fresh) -> None:
    """Delete the claims of pods that have ended; kube-controller-manager lets them go.

    Until then they count as used.
    """
    rest = host.cluster.rest
    for left in (CLAIMS, TEMPLATES):
        rest.must("DELETE", left)
    wait_until(lambda: not rest.must("GET", CLAIMS)["items"], "no claims")


def test_with_monitoring(host: Fresh) -> None:
    """The exporter says what each pod was promised, and what its processes use.

    It sees them with no more than its manifest gives it; and the same again is nothing.
    From here on DRA is on as well, for the uninstall.
    """
    asked = ("install", "--nodes", "cp", "--yes", "--with-monitoring", "--dra")
    assert "Prometheus Operator is not installed" in host.must(*asked)
    assert host.services()["gpushare-exporter"] == "Running"
    promised = {host.pod_of(name, EDGE): APPS[name] * 256 for name in APPS}
    wait_until(
        lambda: by_pod(host, PROMISED, EDGE), "promises", 60, accept=promised.__eq__
    )
    first, *_ = (one for app in APPS for one in host.pods_of(app, EDGE))
    name = first["metadata"]["name"]
    (uuid,) = host.visible(name, namespace=EDGE)
    process = process_of(host.cluster.nodes["cp"], first)
    host.drivers["cp"].process(uuid, process, mib=512)
    used = {**dict.fromkeys(promised, 0), name: 512}
    wait_until(lambda: by_pod(host, USED, EDGE), "use", accept=used.__eq__)
    top = json.loads(host.must("top", "-o", "json"))
    shown = [one for one in top["pods"] if one["namespace"] == EDGE]
    assert {one["name"]: one["used_mib"] for one in shown} == used
    agreed = {"actual": 0, "kubelet": 0}
    wait_until(lambda: disagreements(host), "agreement", 90, accept=agreed.__eq__)
    assert json.loads(page(host, "healthz"))["troubles"] == {}
    assert {one.status for one in calls(host, EXPORTER)} <= {200, 201}
    versions = host.versions()
    assert "none changed" in host.must(*asked)
    assert host.versions() == versions


def test_cards_in_use_are_not_taken_away(host: Fresh) -> None:
    """Those who hold some are named, and nothing is changed."""
    files, versions = host.tree(), host.versions()
    refused = host.ctl("uninstall", "--yes")
    assert refused.returncode == 3
    assert EDGE in printed(refused)
    assert "--force" in printed(refused)
    assert (host.tree(), host.versions()) == (files, versions)


def test_all_is_as_it_was(host: Fresh, before: Before) -> None:
    """/etc/kubernetes byte for byte, and not an object, label or annotation more."""
    host.clear()
    host.must("uninstall", "--yes")
    files, objects = before
    assert host.tree() == files
    assert host.services() == {}
    assert host.everything_but(before) == objects
    node = host.cluster.nodes["cp"]
    for gone in ("/var/lib/vcuda", "/var/lib/kubelet/plugins/vcuda.baidu.com"):
        assert not node.path(gone).exists()


def test_a_second_scheduler_instead(host: Fresh, before: Before) -> None:
    """For a cluster whose control plane is somebody else's; pods choose it by name."""
    refused = host.ctl("install", "--second-scheduler", "--nodes", "cp", "--yes")
    assert refused.returncode == 3
    cure = "label node cp baidu.com/vcuda-scheduler"
    assert f"kubectl {cure}=true" in " ".join(printed(refused).split())
    host.kubectl(*f"{cure}=true".split())
    told = host.must("install", "--second-scheduler", "--nodes", "cp", "--yes")
    assert "Done in" in told
    host.create(pod("chosen", container("main", 4, 1), schedulerName="vcuda-scheduler"))
    host.wait_running("chosen")
    (uuid,) = host.visible("chosen")
    assert uuid == TWO_P4[0].uuid
    assert host.tree() == before[0]
    refused = host.ctl("install", "--nodes", "cp", "--yes")
    assert refused.returncode == 3
    assert "without knowing of" in printed(refused)
    host.clear()
    host.must("uninstall", "--yes")
    host.kubectl(*f"{cure}-".split())
    assert host.everything() == before[1]
