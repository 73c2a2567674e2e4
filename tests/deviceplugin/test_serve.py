"""``python -m deviceplugin serve`` as a DaemonSet starts it."""

import resource
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pynvml
import pytest

from gpushare.addresses import find_free_address
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import NotFound
from gpushare.settings import Address
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.cluster import Child, fetch_from
from gpusharectl.demo.devices import Devices
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import node_json, pod_json
from tests.deviceplugin.node_fixture import NODE, C, M
from tests.nvml.build import STATE_VARIABLE, the_stub
from tests.nvml.driver import StubDriver, stub_card
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.processes

SERVE = ("deviceplugin", "serve")
ON_THE_PAGE = (
    f'vcuda_plugin_registered{{resource="{M}"}} 1.0',
    f'vcuda_plugin_registrations_total{{resource="{C}"}} 1.0',
    "# TYPE vcuda_plugin_card_sick gauge",
    "# TYPE vcuda_plugin_call_seconds histogram",
    "# TYPE vcuda_plugin_refused_total counter",
)
BOTH, Q = {M: 58, C: 200}, names.BITFUSION_GPU


class Node:
    """A folder of kubelet's, an API server, and what a plugin on it is started with."""

    def __init__(self, folder: Path, kubeconfig: Path, cluster: Embedded) -> None:
        self.folder, self.cluster = folder, cluster
        self.devices = Devices(folder / "k")
        self.listen = find_free_address()
        self.logs = 0
        self.settings = {
            "NODE_NAME": str(NODE),
            "KUBECONFIG": str(kubeconfig),
            "KUBELET_DIR": str(folder / "k"),
            "STATE_DIR": str(folder / "vcuda"),
            "HOST_ROOT": str(folder / "host"),
            "SIMULATED_CARDS": "2x7611MiB",
            "LISTEN": str(self.listen),
            "LOOK_EVERY_S": "0.1",
            "LOG_FORMAT": "text",
        }

    def start(self, *words: str, **other: str | None) -> Child:
        self.logs += 1
        asked = {**self.settings, **other}
        given = {name: value for name, value in asked.items() if value is not None}
        return Child("device plugin", (*SERVE, *words), given, self.log())

    def pod(self, name: str) -> Json:
        """Make a pod that leaves no room for another on its card."""
        body = pod_json(name, units=20, cores=1, node=NODE)
        return self.cluster.create(Kind.PODS, body)

    def log(self) -> Path:
        return self.folder / f"{self.logs}.log"

    def words(self) -> str:
        return self.log().read_text()

    def wait_registered(self, wanted: Mapping[str, int] = BOTH) -> None:
        wait_until(
            lambda: (self.devices.allocatable(), self.words()),
            "all resources",
            60,
            accept=lambda seen: seen[0] == wanted,
        )

    def page(self) -> str:
        return (fetch_from(self.listen, "/metrics") or b"").decode()

    def annotation(self) -> str:
        metadata = self.cluster.get(Kind.NODES, "", NODE)["metadata"]
        return str(metadata.get("annotations", {}).get(names.CARDS, ""))

    def sockets(self) -> set[str]:
        found = (self.folder / "k" / "device-plugins").iterdir()
        return {path.name for path in found} - {"kubelet.sock"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Embedded]]:
    cluster = Embedded()
    with ApiServerOnLoopback(cluster) as server:
        yield server.kubeconfig(tmp_path_factory.mktemp("api") / "config"), cluster


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory, api: tuple[Path, Embedded]) -> Node:
    folder = tmp_path_factory.mktemp("s")  # a socket's path must be short
    kubeconfig, cluster = api
    with suppress(NotFound):
        cluster.delete(Kind.NODES, "", NODE)
    cluster.create(Kind.NODES, node_json(NODE))
    (folder / "host").mkdir()
    return Node(folder, kubeconfig, cluster)


@contextmanager
def running(child: Child) -> Iterator[Child]:
    try:
        yield child
    finally:
        child.end()


def status_of(child: Child) -> int:
    return child._process.wait(60)


def test_it_serves_and_ends(node: Node) -> None:
    """Bitfusion's quota as the flag says, which wins over the variable."""
    child = node.start("--bitfusion-quota", BITFUSION_QUOTA="off")
    with node.devices as devices, running(child):
        node.wait_registered({**BOTH, Q: 200})
        assert len(node.sockets()) == 3
        # It hears that it is registered a moment after its devices are there.
        wait_until(
            node.page,
            f"{ON_THE_PAGE} on its page",
            accept=lambda page: all(words in page for words in ON_THE_PAGE),
        )
        wait_until(lambda: '"units":29' in node.annotation(), "the node's cards")
        child.tell_to_end()
        assert status_of(child) == 0
        assert node.sockets() == set()
        wait_until(lambda: devices.allocatable() == {M: 0, C: 0, Q: 0}, "its end")
        assert "Traceback" not in node.words()


@contextmanager
def crowd(node: Node, count: int) -> Iterator[None]:
    """So many who connect to its page, one after the other, and say nothing."""
    where = (node.listen.host, node.listen.port)
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(where, timeout=30))
        yield


def test_a_thousand_who_connect_and_say_nothing(node: Node) -> None:
    """As many as a process has descriptors: neither the page nor the cards go."""
    with node.devices as devices, running(node.start()) as child:
        limit_descriptors(child, 1024)
        node.wait_registered()
        with crowd(node, 1015):
            is_well(node, child, devices)
        assert "cannot accept" not in node.words()


def test_no_descriptor_left(node: Node) -> None:
    """Whoever opens something tries again later; no thread ends."""
    with node.devices as devices, running(node.start()) as child:
        node.wait_registered()
        limit_descriptors(child, open_descriptors(child) + 4)
        with crowd(node, 20):
            for said in ("cannot accept", "reporting later"):
                wait_until(node.words, said, accept=lambda words: said in words)  # noqa: B023
            limit_descriptors(child, 1024)
            is_well(node, child, devices)


def is_well(node: Node, child: Child, devices: Devices) -> None:
    """See that the page answers, and that all threads are at work."""
    wait_until(node.page, "its page", accept=lambda page: "vcuda" in page)
    node.cluster.patch(
        Kind.NODES, "", NODE, {"metadata": {"annotations": {names.CARDS: None}}}
    )
    wait_until(lambda: '"units":29' in node.annotation(), "the node's cards")
    assert devices.allocatable() == BOTH
    assert child.runs()
    assert "Traceback" not in node.words()


def limit_descriptors(child: Child, most: int) -> None:
    _, hard = resource.prlimit(child._process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(child._process.pid, resource.RLIMIT_NOFILE, (most, hard))


def open_descriptors(child: Child) -> int:
    return len(list(Path(f"/proc/{child._process.pid}/fd").iterdir()))


def test_a_killed_one_begins_where_it_ended(node: Node) -> None:
    """The same ids with the same health, and nobody's devices for anybody else."""
    held, more = node.pod("held"), node.pod("more")
    with node.devices as devices:
        with running(node.start()) as child:
            node.wait_registered()
            before = {kind: devices._registry.healthy(kind) for kind in (M, C)}
            given = devices.admit(held)
            child._process.kill()
            status_of(child)
            wait_until(lambda: devices.allocatable() == {M: 0, C: 0}, "its end")
        with running(node.start()):
            node.wait_registered()
            assert {kind: devices._registry.healthy(kind) for kind in (M, C)} == before
            again = devices.admit(more)
            assert visible(again) != visible(given)
            devices.start(held["metadata"]["uid"], "main")


def visible(given: object) -> str:
    assert isinstance(given, Mapping), given
    return str(given["main"].envs["VCUDA_CARDS"])


def test_all_complaints_come_at_once(node: Node) -> None:
    inventory = node.folder / "inventory.yaml"
    inventory.write_text("cards:\n- uuid: npu-0\n  memory_mib: much\n")
    with socket.create_server((node.listen.host, 0)) as taken:
        port = taken.getsockname()[1]
        child = node.start(
            NODE_NAME=None,
            INJECT="by magic",
            SIMULATED_CARDS="4x24",
            INVENTORY=str(inventory),
            KUBECONFIG=str(node.folder / "nowhere"),
            LISTEN=str(Address(node.listen.host, port)),
            RESERVE_MB="100",
        )
        assert status_of(child) == 1
    lines = node.words().splitlines()
    named = ["NODE_NAME", "INJECT", "RESERVE_MB", "SIMULATED_CARDS", "INVENTORY"]
    for name in [*named, "KUBECONFIG", "LISTEN"]:
        assert [line for line in lines if line.startswith(f"GPUSHARE_{name}")], name
    assert len(lines) == 7
    [taken] = [line for line in lines if line.startswith("GPUSHARE_LISTEN")]
    assert f"cannot listen on {node.listen.host}:{port} (" in taken
    assert "in use" in taken
    assert not (node.folder / "vcuda").exists()


def test_without_a_driver_it_stays_and_waits(node: Node) -> None:
    with node.devices as devices, running(node.start(SIMULATED_CARDS=None)) as child:
        said = "no cards to share yet"
        wait_until(lambda: said in node.words(), "a word about it", timeout_s=60)
        wait_until(node.page, "its page")
        assert node.words().count(said) == 1
        assert devices.capacity() == {}
        assert child.runs()
        child.tell_to_end()
        assert status_of(child) == 0


def test_it_tells_how_the_driver_s_cards_are_joined(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The score of two NVLinks and one PCIe switch is awaited in the annotation."""
    stub, driver = the_stub(), StubDriver(node.folder, (stub_card(0), stub_card(1)))
    driver.join(0, 1, pynvml.NVML_TOPOLOGY_SINGLE, links=2)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub.library.parent))
    monkeypatch.setenv(STATE_VARIABLE, str(driver.path))
    with node.devices, running(node.start(SIMULATED_CARDS=None)):
        wait_until(
            node.annotation, "links", 60, accept=lambda text: '"links":250' in text
        )


def test_a_second_one_waits(node: Node) -> None:
    """Until the first has ended, whatever the state folder; a rollout may overlap."""
    with node.devices, running(node.start()) as first:
        node.wait_registered()
        other = str(node.folder / "other")
        with running(node.start(LISTEN=str(find_free_address()), STATE_DIR=other)):
            assert "registered" not in node.words()
            first._process.send_signal(signal.SIGKILL)
            status_of(first)
            registered = " registered "
            wait_until(lambda: node.words().count(registered) == 2, "both of them")
            node.wait_registered()
