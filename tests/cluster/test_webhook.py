"""The webhook on a real cluster, as the installer brings it: seed 004 runs unchanged.

The tests of this file go on from one another, as an administrator's day does.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.cluster.fresh import Before, Fresh
from tests.cluster.manifests import container, pod
from tests.cluster.seen import ALLOCATION, allocation
from tests.cluster.site import SYSTEM
from tests.controlplane.bitfusionpods import (
    BY_MEMORY,
    BY_PERCENT,
    CLIENT,
    DEPLOYMENT,
    GPU,
    IMAGE,
    MODE,
    NAMESPACE,
    QUOTA,
    STATUS,
    share,
)
from tests.nvml.driver import stub_card
from tests.testbed.kubeadm.appimage import app_image_name, app_version
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

NAME = "gpushare-webhook"
OURS = ("-n", SYSTEM, "-l", f"app.kubernetes.io/name={NAME}")
USER = f"system:serviceaccount:{SYSTEM}:{NAME}"
WRONG = pod("wrong", container("main", 4, 150))
DENIED = 'admission webhook "pods.vcuda.baidu.com" denied the request: '


def replicas(host: Fresh) -> int:
    status = host.get("deployment", NAME, "-n", SYSTEM)["status"]
    return int(status.get("availableReplicas", 0))


def denied(host: Fresh) -> str:
    asked = ("create", "--dry-run=server", "-f", "-")
    done = host.cluster.try_kubectl(*asked, stdin=json.dumps(WRONG))
    assert done.returncode != 0, done.stdout
    return done.stderr


def asked_all_the_time(host: Fresh, stop: Event) -> Sequence[str]:
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    said = []
    while not stop.wait(0.05):
        said.append(str(host.cluster.rest.post(path, WRONG)[1].get("message")))
    return said


def images(host: Fresh) -> set[str]:
    found = host.get("pods", *OURS)["items"]
    return {one["spec"]["containers"][0]["image"] for one in found}


def all_ready(host: Fresh) -> bool:
    listed = host.cluster.try_kubectl("get", "pods", "-n", SYSTEM, "-o", "json")
    if listed.returncode != 0:
        return False
    pods: list[Json] = json.loads(listed.stdout)["items"]
    return bool(pods) and all(
        {"type": "Ready", "status": "True"}.items() <= ready_of(one).items()
        for one in pods
    )


def ready_of(one: Json) -> dict[str, str]:
    conditions = one["status"].get("conditions", [])
    found = [each for each in conditions if each["type"] == "Ready"]
    return found[0] if found else {}


TWO_T4 = [stub_card(n, memory_mib=15360, model="Tesla T4") for n in range(2)]
"""Of the seed's size, 16000 MB and a little: 60 units each."""
CARD_MIB = "15259"
"""16000 MB: with a MiB less, 8000M would be more than half of a card."""
PROGRAM = """\
import subprocess, sys, time
print("arguments:", *sys.argv[1:], flush=True)
print(subprocess.check_output(["nvidia-smi", "-L"], text=True), flush=True)
time.sleep(1_000_000)
"""
"""It says what it was given and what it sees, in place of its training."""
SCRIPT = "scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py"
SAID = (
    "arguments: --local_parameter_device=gpu --batch_size=32 --model=inception3",
    "GPU 0: Tesla T4",
)


def put_benchmark(host: Fresh, image: str) -> None:
    """Lay the benchmark into the node's /home, and let our image have the seed's name.

    Ours has Python and bash, and nothing that would train a model.
    """
    node = host.cluster.nodes["cp"]
    layers = [host.folder / "home", host.folder / "home.work"]
    for each in layers:
        each.mkdir()
    options = "lowerdir=/home,upperdir={},workdir={}".format(*layers)
    node.must("mount", "-t", "overlay", "overlay", "-o", options, "/home")
    node.write(f"/home/benchmarks/{SCRIPT}", PROGRAM)
    node.must("ctr", "-n", "k8s.io", "images", "tag", app_image_name(), image)


def make_namespace(host: Fresh) -> None:
    """Make the seed's namespace, and wait for what controllers put into it."""
    host.kubectl("create", "namespace", NAMESPACE)
    for one in ("serviceaccount/default", "configmap/kube-root-ca.crt"):
        asked = ("get", one, "-n", NAMESPACE)
        wait_until(
            lambda asked=asked: host.cluster.try_kubectl(*asked).returncode == 0, one
        )


def logs(host: Fresh, name: str) -> str:
    """Wait until a pod of the seed has said its piece, and give it."""
    return wait_until(
        lambda: host.cluster.try_kubectl("logs", name, "-n", NAMESPACE).stdout,
        f"words of {name}",
        120,
        accept=lambda text: all(line in text for line in SAID),
    )


def held(host: Fresh, name: str) -> dict[str, tuple[int, int]]:
    """Cores and units that a pod of the seed was told to have, by card."""
    asked = ("exec", name, "-n", NAMESPACE, "--", "cat", ALLOCATION)
    told = allocation(host.kubectl(*asked))
    (one,) = host.get("pod", name, "-n", NAMESPACE)["spec"]["containers"]
    assert host.visible(name, one["name"], NAMESPACE) == list(told)
    return {card: (cores, units) for card, (cores, units, _) in told.items()}


def running_of(host: Fresh, app: str) -> int:
    found = host.pods_of(app, NAMESPACE)
    return len([one for one in found if one["status"]["phase"] == "Running"])


INSTALL = ("install", "--nodes", "cp", "--yes")
WITH = ("--with-webhook", "--bitfusion-card-mib", CARD_MIB)


@pytest.fixture(scope="module")
def host(bare: Fresh) -> Fresh:
    put_benchmark(bare, IMAGE)
    make_namespace(bare)
    return bare.begin(TWO_T4)


def test_installed_with_the_rest(host: Fresh, before: Before) -> None:
    """Both replicas answer, and the same again changes nothing."""
    told = host.must(*INSTALL, *WITH)
    assert "Done in" in told
    assert host.services()[NAME] == "Running"
    assert replicas(host) == 2
    assert DENIED in denied(host)
    versions = host.versions()
    assert "none changed" in host.must(*INSTALL)
    assert host.versions() == versions


def test_the_seeds_line_really_runs(host: Fresh) -> None:
    """Unchanged YAML: one word with blanks, which no runtime could start as it is.

    Half a card by percent and half by memory are one card together.
    """
    host.kubectl("create", "-f", "-", stdin=BY_PERCENT)
    second = BY_MEMORY.replace("name: bf-pkgs\n  #", "name: bf-mem\n  #")
    host.kubectl("create", "-f", "-", stdin=second)
    for name in ("bf-pkgs", "bf-mem"):
        logs(host, name)
        found = host.get("pod", name, "-n", NAMESPACE)
        command = found["spec"]["containers"][0]["command"]
        assert command[:2] == ["/bin/bash", "-c"]
        assert found["metadata"]["annotations"][STATUS] == "injected"
    ((card, amount),) = held(host, "bf-pkgs").items()
    assert amount == (50, 29)
    assert held(host, "bf-mem") == {card: (50, 30)}


def test_the_seeds_deployment(host: Fresh) -> None:
    """Two pods of 30 percent each, on what is left: the other card."""
    host.kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    wait_until(
        lambda: running_of(host, "bfdeploy"), "two pods", 120, accept=lambda x: x == 2
    )
    names = [one["metadata"]["name"] for one in host.pods_of("bfdeploy", NAMESPACE)]
    for name in names:
        logs(host, name)
    first, second = (held(host, name) for name in names)
    assert first == second
    assert list(first.values()) == [(30, 17)]
    host.kubectl("delete", "deployment", "bfdeploy", "-n", NAMESPACE)
    host.kubectl("delete", "pods", "--all", "-n", NAMESPACE, "--grace-period=1")


def test_injection_has_a_bitfusion_to_call(host: Fresh) -> None:
    """Scripts that call it go on, in an image that has no bash; each sees its card."""
    line = "bitfusion run -n 1 -p 0.5 -- nvidia-smi -L && sleep 1000000"
    one = container(script=line)
    one["resources"] = {"limits": {key: str(n) for key, n in share().items()}}
    made = pod("injected", one)
    made["metadata"]["annotations"] = {MODE: "injection", **CLIENT}
    host.create(made)
    host.wait_running("injected")
    (uuid,) = host.visible("injected")
    said = wait_until(
        lambda: host.kubectl("logs", "injected"),
        "its words",
        accept=lambda t: uuid in t,
    )
    assert [card.uuid for card in TWO_T4 if card.uuid in said] == [uuid]
    inside = ("exec", "injected", "--")
    listed = host.kubectl(*inside, "bitfusion", "list_gpus")
    assert listed == host.smi("injected")
    for word in ("health", "version"):
        host.kubectl(*inside, "bitfusion", word)
    host.clear()


def test_quotas_in_bitfusions_own_name(host: Fresh) -> None:
    """With the option the node has it to give, and the seed's 50 of 100 is shown."""
    told = host.must(*INSTALL, "--bitfusion-quota")
    assert "Done in" in told
    wait_until(
        lambda: host.get("node", "cp")["status"]["allocatable"].get(GPU),
        "a hundred for each card",
        60,
        accept="200".__eq__,
    )
    host.kubectl("apply", "-f", "-", stdin=QUOTA)
    host.kubectl("create", "-f", "-", stdin=BY_PERCENT)
    (one,) = host.get("pod", "bf-pkgs", "-n", NAMESPACE)["spec"]["containers"]
    assert one["resources"]["limits"][GPU] == "50"
    logs(host, "bf-pkgs")
    row = [f"requests.{GPU}", "50", "100"]
    described = ("describe", "quota", "bitfusion-quota", "-n", NAMESPACE)
    wait_until(
        lambda: host.kubectl(*described).split()[-3:], "50 of 100", accept=row.__eq__
    )
    host.kubectl("delete", "quota,pods", "--all", "-n", NAMESPACE, "--grace-period=1")


def test_every_right_is_used_and_none_is_missing(host: Fresh) -> None:
    """It looks at nodes, and at nothing else."""
    asked = {(call.verb, call.resource) for call in host.calls(USER)}
    wanted = {("list", "nodes"), ("watch", "nodes")}
    wait_until(
        lambda: {(call.verb, call.resource) for call in host.calls(USER)},
        "both rights used",
        120,
        accept=wanted.__le__,
        every_s=0.5,
    )
    assert {one for one in asked if "nodes" not in one[1]} == set()
    assert [call for call in host.calls(USER) if call.status == 403] == []


def test_a_newer_version_without_a_gap(host: Fresh) -> None:
    """Pods are made all the time meanwhile; each of them is reviewed."""
    node = host.cluster.nodes["cp"]
    image = f"docker.io/library/gpushare:{app_version()}"
    newer = "docker.io/library/gpushare:next"
    node.must("ctr", "-n", "k8s.io", "images", "tag", "--force", image, newer)
    stop = Event()
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(asked_all_the_time, host, stop) for _ in range(2)]
        try:
            host.must(*INSTALL, "--image", "gpushare:next")
        finally:
            stop.set()
        words = [word for each in busy for word in each.result()]
    assert len(words) > 10
    assert [word for word in words if DENIED not in word] == []
    # The old ones are listed until they have ended.
    wait_until(lambda: images(host), "new pods", accept={"gpushare:next"}.__eq__)


def test_its_pods_are_gone_and_kubelet_starts_anew(host: Fresh) -> None:
    """Everything comes up by itself, its pods too."""
    node = host.cluster.nodes["cp"]
    host.kubectl("delete", "pods", *OURS, "--force", "--grace-period=0")
    node.restart_kubelet()
    wait_until(lambda: all_ready(host), "all of kube-system", 180)
    wait_until(lambda: replicas(host), "webhook", 180, accept=lambda n: n == 2)
    wait_until(lambda: DENIED in denied(host), "reviews")


def test_a_cold_start_without_it(host: Fresh) -> None:
    """From a power cut, with no webhook to be had: only pods with cards must wait."""
    host.kubectl("scale", "deployment", NAME, "-n", SYSTEM, "--replicas=0")
    wait_until(lambda: not host.get("pods", *OURS)["items"], "no webhook", 120)
    host.cluster.reboot("cp")
    wait_until(lambda: all_ready(host), "all of kube-system", 240)
    wait_until(lambda: host.allocatable("cp") == (200, 120), "cards", 120)
    host.create(pod("plain", container()))
    host.wait_running("plain")
    assert 'failed calling webhook "pods.vcuda.baidu.com"' in denied(host)
    host.kubectl("scale", "deployment", NAME, "-n", SYSTEM, "--replicas=2")
    wait_until(lambda: replicas(host), "webhook", 180, accept=lambda n: n == 2)
    wait_until(lambda: DENIED in denied(host), "reviews")
    host.create(pod("late", container("main", 4, 1)))
    host.wait_running("late")
    host.clear()


def test_all_is_as_it_was(host: Fresh, before: Before) -> None:
    """Its configurations went first, so that nobody ever waited for the gone."""
    host.clear()
    mark = host.cluster.audit.mark()
    host.must("uninstall", "--yes")
    gone = [
        call.resource
        for call in host.cluster.audit.calls(mark)
        if call.verb == "delete" and call.name == NAME and call.status == 200
    ]
    hooks = [each for each in gone if each.endswith("webhookconfigurations")]
    assert len(hooks) == 2
    assert gone.index("deployments") > max(gone.index(each) for each in hooks)
    files, objects = before
    assert host.tree() == files
    assert host.services() == {}
    assert host.everything_but(before) == objects
