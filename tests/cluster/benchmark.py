"""Seed 004's benchmark where it lies on a node, and an image that can run its line."""

from tests.cluster.fresh import Fresh
from tests.cluster.seen import ALLOCATION, allocation
from tests.controlplane.bitfusionpods import NAMESPACE
from tests.nvml.driver import stub_card
from tests.testbed.kubeadm.appimage import app_image_name
from tests.testbed.waiting import wait_until

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
