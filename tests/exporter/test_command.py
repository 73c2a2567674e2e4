"""``python -m exporter`` as a DaemonSet starts it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.addresses import find_free_address
from gpushare.domain.model import CardUUID, Placement, Share
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Kind
from gpushare.kube.codec import read_pod_record
from gpushare.settings import Address
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.cluster import Child, fetch_from
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import AT, node_json, pod_json
from tests.deviceplugin.node_fixture import NODE
from tests.exporter.tegra_tree import orin
from tests.nvml.build import STATE_VARIABLE, the_stub
from tests.nvml.driver import StubDriver, stub_card
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.processes

EXPORT = ("exporter",)
BEFORE = ("deviceplugin", "export")
"""In manifests from before the exporter was a package of its own."""
WITHIN_S = 60


class Node:
    """What an exporter on a node is started with, and how it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listen, self.agent = find_free_address(), find_free_address()
        self.log = folder / "log"
        self.settings = {
            "NODE_NAME": str(NODE),
            "PODS": "off",
            "SIMULATED_CARDS": "2x7611MiB",
            "LISTEN": str(self.listen),
            "COLLECT_LISTEN": str(self.agent),
            "KUBELET_DIR": str(folder / "kubelet"),
            "LOOK_EVERY_S": "0.1",
            "LOG_FORMAT": "text",
        }

    @contextmanager
    def running(
        self, *flags: str, words: tuple[str, ...] = EXPORT, **other: str | None
    ) -> Iterator[Child]:
        asked = {**self.settings, **other}
        given = {name: value for name, value in asked.items() if value is not None}
        child = Child("exporter", (*words, *flags), given, self.log)
        try:
            yield child
        finally:
            child.end()

    def page(self, path: str = "/metrics", at: Address | None = None) -> str:
        return (fetch_from(at or self.listen, path) or b"").decode()

    def wait_for(
        self, words: str, path: str = "/metrics", at: Address | None = None
    ) -> str:
        """Give the page with these words: a busy machine may be late with any page."""
        return wait_until(
            lambda: self.page(path, at),
            f"{words} in {path}",
            WITHIN_S,
            accept=lambda seen: words in seen,
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def status_of(child: Child) -> int:
    return child._process.wait(WITHIN_S)


@pytest.mark.parametrize("words", [EXPORT, BEFORE])
def test_it_answers_and_ends(node: Node, words: tuple[str, ...]) -> None:
    """What a flag switches off is not on the page; the environment's unit is beaten."""
    flags = ("--disable-faults", "--enable-pcie", "--collect-unit", "bytes")
    with node.running(*flags, words=words) as child:
        node.wait_for('DCGM_FI_DEV_FB_TOTAL{DCGM_FI_DRIVER_VERSION=""')
        assert 'group="faults"' not in node.wait_for('group="pcie"')
        node.wait_for('"failed_cards": {}', "/healthz")
        body = json.loads(node.wait_for("{", "/v1/collect", node.agent))[NODE]
        told = [body[key] for key in ("deviceNum", "totalMemory", "usedMemory")]
        assert told == [2, 15222 << 20, 0]
        assert not node.page("/metrics", node.agent)
        child.tell_to_end()
        assert status_of(child) == 0
    assert "Traceback" not in node.log.read_text()


def test_all_complaints_come_at_once(node: Node) -> None:
    inventory = node.folder / "inventory.yaml"
    inventory.write_text("cards:\n- uuid: npu-0\n  memory_mib: much\n")
    bad = {
        "NODE_NAME": None,
        "PODS": None,
        "WATCHDOG": "bark",
        "SIMULATED_CARDS": "4x24",
        "INVENTORY": str(inventory),
        "KUBECONFIG": str(node.folder / "nowhere"),
        "FIELD_FILE": "x",
    }
    anywhere = ("127.0.0.1", 0)
    with (
        socket.create_server(anywhere) as first,
        socket.create_server(anywhere) as other,
    ):
        for name, taken in (("LISTEN", first), ("COLLECT_LISTEN", other)):
            bad[name] = str(Address(*taken.getsockname()))
        with node.running("--enable-pcie", "--disable-pcie", **bad) as child:
            assert status_of(child) == 1
    lines = node.log.read_text().splitlines()
    for name in bad.keys() - {"PODS"}:
        assert [line for line in lines if line.startswith(f"GPUSHARE_{name}")], name
    assert "--enable-pcie and --disable-pcie: give one of them" in lines
    assert len(lines) == 9


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    """A stub driver for the child, found by the loader as a real one is."""
    stub = the_stub()
    made = StubDriver(tmp_path, (stub_card(0, used_mib=100),))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub.library.parent))
    monkeypatch.setenv(STATE_VARIABLE, str(made.path))
    return made


def test_it_reads_the_driver_s_cards(node: Node, driver: StubDriver) -> None:
    """The edge agent is answered before: one failure spoils its whole round.

    Each page is waited for.
    """
    driver.unload()
    with node.running(SIMULATED_CARDS=None, HOST_ROOT=str(node.folder)):
        node.wait_for('"deviceNum": 0', "/v1/collect")
        node.wait_for('vcuda_exporter_trouble{NodeName="n",about="cards"} 1.0')
        driver.load()
        node.wait_for(f'UUID="{driver.cards[0].uuid}"')
        node.wait_for('driver="550.54.15"')
        driver.values("*", gpu_util=23)
        wait_until(
            lambda: "GPU_UTIL{" in (page := node.page()) and "} 23.0" in page, "23"
        )
        # A Jetson's files, under the host's root.
        orin(node.folder)
        node.wait_for('UUID="TEGRA-17000000.gpu"')
        node.wait_for('"totalMemory": 62840', "/v1/collect")


def test_pods_are_followed(node: Node) -> None:
    cluster = Embedded()
    cluster.create(Kind.NODES, node_json(NODE))
    uuid = "GPU-9f12f917-0000-0000-0000-000000000000"
    spec = node.folder / "cards.yaml"
    spec.write_text(f"cards:\n- {{uuid: {uuid}, memory_mib: 8192}}\n")
    made = cluster.create(Kind.PODS, pod_json("web", units=4, cores=50, node=NODE))
    record = read_pod_record(made)
    (claim,) = record.request.claims  # type: ignore[union-attr]
    share = Share(CardUUID(uuid), claim.amount, claim.containers)
    note = encode_placement(Placement(record.pod, NODE, (share,)), AT)
    cluster.annotate(Kind.PODS, "default", "web", {names.PLACEMENT: note})
    with ApiServerOnLoopback(cluster) as server:
        config = str(server.kubeconfig(node.folder / "config"))
        how = {"PODS": None, "KUBECONFIG": config, "SIMULATED_CARDS": str(spec)}
        with node.running(**how) as child:
            allotted = "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED{"
            page = node.wait_for(allotted)
            (line,) = [line for line in page.splitlines() if allotted in line]
            assert 'PodName="web"' in line
            assert f'UUID="{uuid}"' in line
            assert line.endswith(" 1024.0")
            child.tell_to_end()
            assert status_of(child) == 0
    assert "Traceback" not in node.log.read_text()
