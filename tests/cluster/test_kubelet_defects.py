"""Defects of kubelet (contracts 2.7) and its lost checkpoint, on the real one."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.allocation.device_chooser import DeviceQuestion
from deviceplugin.cards.devices import Cards
from deviceplugin.serve import PluginParts, assemble_plugin, start_plugin
from deviceplugin.settings import DevicePluginSettings
from gpushare.cards.simulated import SimulatedCards, parse_spec
from gpushare.domain.model import NodeName
from gpushare.kube.apiserver.api import ApiServer
from gpushare.kubelet.node_pods import KubeletSilentError, PodResources
from tests.cluster.gpus import PLUGIN
from tests.cluster.manifests import SEED_COMMAND, container, pod
from tests.cluster.site import Site
from tests.deviceplugin.node_fixture import ids_of
from tests.gpusharectl.fake_plugin import FakePlugin
from tests.nvml.driver import stub_card
from tests.testbed.kubernetes import chosen, numbers
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

KUBELET = "/var/lib/kubelet"
STATIC = "/etc/kubernetes/manifests/static.yaml"
SLOW = "example.com/slow"
CARDS = [stub_card(0), stub_card(1)]


def allocatable(site: Site, resource: str) -> int:
    status = site.get("node", "cp")["status"]
    return int(status.get("allocatable", {}).get(resource, 0))


def asks_slow(name: str, count: int) -> Any:
    body = container("main", script="sleep 600")
    body["resources"]["limits"] = {SLOW: str(count)}
    return pod(name, body)


def end_slowly(site: Site, name: str) -> None:
    """Delete a pod whose program does not heed it, so that kubelet waits its grace."""
    site.kubectl("delete", "pod", name, "--grace-period=3", "--wait=false")


def list_after_the_end(site: Site, kubelet: PodResources, name: str) -> None:
    """What makes kubelet forget: a pod ends, and then somebody lists."""
    wait_until(lambda: not site.phase(name), f"the end of {name}")
    kubelet.list(5)


@pytest.fixture
def naive(site: Site) -> Iterator[FakePlugin]:
    """A plugin that takes four seconds over Allocate, and believes kubelet."""
    folder = site.cluster.nodes["cp"].path(KUBELET) / "device-plugins"
    plugin = FakePlugin(folder, SLOW)
    plugin.options.pre_start_required = False
    with plugin.served():
        plugin.register()
        plugin.offer(*(f"s{number:02}" for number in range(20)))
        wait_until(lambda: allocatable(site, SLOW) == 20, "20 slow devices")
        yield plugin


def test_ids_in_flight_are_forgotten(site: Site, naive: FakePlugin) -> None:
    """A pod ends and somebody lists while Allocate runs: kubelet offers ids in use."""
    kubelet = PodResources(
        site.cluster.nodes["cp"].path(KUBELET) / "pod-resources" / "kubelet.sock"
    )
    site.create(asks_slow("first", 3))
    site.wait_running("first")
    end_slowly(site, "first")

    def take_long(call: str) -> None:
        if call == "allocate":
            list_after_the_end(site, kubelet, "first")

    naive.during = take_long
    site.create(asks_slow("second", 5))
    site.wait_running("second")
    naive.during = lambda call: None
    site.create(asks_slow("third", 5))
    wait_until(lambda: len(offered(naive)) == 3, "the third's turn")
    taken = [ids for call, ids in naive.calls if call == "allocate"][1]
    again = set(offered(naive)[-1]) & set(taken)
    assert again == set(taken), "kubelet has mended it: our guard is still right"
    kubelet.close()


def offered(plugin: FakePlugin) -> list[list[str]]:
    return [list(a.available_deviceIDs) for call, a in plugin.calls if call == "prefer"]


class Ours:
    """Our own plugin over the real kubelet, with its parts within a test's reach."""

    def __init__(self, site: Site, folder: Path) -> None:
        kubelet = site.cluster.nodes["cp"].path(KUBELET)
        self.settings = DevicePluginSettings(
            NodeName("cp"),
            kubelet_dir=kubelet,
            state_dir=folder,
            inject="env",
            look_every_s=0.5,
        )
        self.cluster = ApiServer.connect(str(site.kubeconfig(PLUGIN)))
        cards = parse_spec("2x7611MiB", "cp")
        assert isinstance(cards, tuple)
        self.source = SimulatedCards(cards)

    def wait_refused(self) -> None:
        """Wait for the next start that is refused."""
        before = self._refused()
        wait_until(lambda: self._refused() > before, "a retry")

    def _refused(self) -> float:
        return sum(
            one.value
            for family in self.registry.collect()
            for one in family.samples
            if one.name == "vcuda_plugin_refused_total"
            and one.labels["call"] == "PreStartContainer"
        )

    @contextmanager
    def serving(self) -> Iterator[PluginParts]:
        stop = Event()
        self.registry = CollectorRegistry()
        made = assemble_plugin(self.settings, self.source, self.cluster, self.registry)
        threads: list[Thread] = start_plugin(made, self.settings, stop)
        try:
            yield made
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)


def test_ids_of_another_pod_are_refused(site: Site, tmp_path: Path) -> None:
    """Whatever kubelet forgot: Allocate of what another pod holds fails, in words."""
    gpus = site.gpus["cp"]
    gpus.set_cards(CARDS)
    gpus.stop()
    ours = Ours(site, tmp_path)
    with ours.serving() as made:
        wait_until(lambda: site.allocatable("cp") == (200, 58), "58 units")
        real = made.parts.device_chooser.allocate
        kubelet = made.reporter.occupancy.resources
        prefer = made.parts.device_chooser.prefer
        site.create(pod("first", container("main", 2, 1, script=SEED_COMMAND)))
        site.wait_running("first")
        end_slowly(site, "first")

        def slow(cards: Cards, resource: str, ids: Sequence[str]) -> Any:
            answer = real(cards, resource, ids)
            list_after_the_end(site, kubelet, "first")
            return answer

        made.parts.device_chooser.allocate = slow  # type: ignore[method-assign]
        site.create(pod("second", container("main", 5, 1)))
        site.wait_running("second")
        held = kubelet.list(5).held_by(("default", "second"))["main"]
        made.parts.device_chooser.allocate = real  # type: ignore[method-assign]

        offers: list[set[str]] = []

        def doubled(asked: DeviceQuestion) -> list[str]:
            """Take what kubelet offers of the second's, which we never would."""
            chosen = prefer(asked)
            offers.append(set(asked.available) & held[asked.resource])
            mine = sorted(offers[-1])
            return (mine + [one for one in chosen if one not in mine])[: asked.size]

        made.parts.device_chooser.prefer = doubled  # type: ignore[method-assign]
        site.create(pod("third", container("main", 5, 1)))
        wait_until(lambda: site.phase("third") == "Failed", "the refusal")
        assert any(offers), "kubelet has mended it: then this test may go"
        message = site.get("pod", "third")["status"]["message"]
        assert "default/second holds" in message
        made.parts.device_chooser.prefer = prefer  # type: ignore[method-assign]
        site.create(pod("fourth", container("main", 5, 1)))
        site.wait_running("fourth")
    gpus.start()


def test_a_pod_that_may_not_start_is_not_reported(site: Site, tmp_path: Path) -> None:
    """kubelet chose a card that its list forbids; it waits, however often it tries."""
    gpus = site.gpus["cp"]
    gpus.set_cards(CARDS)
    gpus.stop()
    ours = Ours(site, tmp_path)
    with ours.serving() as made:
        wait_until(lambda: site.allocatable("cp") == (200, 58), "58 units")
        first, second = (card.uuid for card in made.parts.offer.cards.all)
        published = {first, second}
        wait_until(
            lambda: {one["uuid"] for one in site.cards("cp")} == published, "cards", 30
        )
        prefer = made.parts.device_chooser.prefer

        def otherwise(asked: DeviceQuestion) -> list[str]:
            prefer(asked)
            return ids_of(second, asked.available)[: asked.size]

        made.parts.device_chooser.prefer = otherwise  # type: ignore[method-assign]
        limited = pod("limited", container("main", 20, 1))
        limited["metadata"]["annotations"] = {"baidu.com/vcuda-uuids": first}
        site.create(limited)
        wait_until(lambda: "excluded by" in site.why_waiting("limited"), "it")
        made.reporter.catch_up()
        # kubelet tries again after ten seconds.
        ours.wait_refused()
        made.reporter.catch_up()
        assert site.phase("limited") == "Pending"
        annotations = site.get("pod", "limited")["metadata"]["annotations"]
        assert "baidu.com/vcuda-actual" not in annotations
    gpus.start()


def test_overlapping_registration(site: Site) -> None:
    """Of two registrations, the end of the older one takes the newer one's devices.

    From 1.37 on it does not: the newer one stays, and its next list counts.
    """
    folder = site.cluster.nodes["cp"].path(KUBELET) / "device-plugins"
    older, newer = FakePlugin(folder, SLOW), FakePlugin(folder, SLOW)
    newer.endpoint = "newer.sock"
    with newer.served():
        with older.served():
            older.register()
            older.offer("s00", "s01")
            wait_until(lambda: allocatable(site, SLOW) == 2, "two devices")
            newer.register()
            newer.offer("s00", "s01", "s02")
            wait_until(lambda: allocatable(site, SLOW) == 3, "three devices")
        if numbers(chosen(os.environ)) >= (1, 37):
            newer.offer("s00", "s01", "s02", "s03")
            wait_until(lambda: allocatable(site, SLOW) == 4, "four devices")
            assert not newer.gone.is_set()
            return
        wait_until(newer.gone.is_set, "kubelet to drop the newer one")
        wait_until(lambda: allocatable(site, SLOW) == 0, "no device")


def test_ours_never_overlap(site: Site) -> None:
    """A second device plugin waits for the end of the first, and then takes over."""
    gpus = site.gpus["cp"]
    gpus.set_cards(CARDS)
    first = gpus.process
    assert first is not None
    before = gpus.log.count("INFO    registered")
    gpus.settings["LISTEN"] = "0.0.0.0:39996"
    gpus.start(wait=False)
    wait_until(lambda: "another device plugin runs" in gpus.log, "it to wait")
    assert gpus.log.count("INFO    registered") == before
    first.kill()
    wait_until(
        lambda: gpus.log.count("INFO    registered") == before + 2, "a take-over", 60
    )
    gpus.wait_offered()
    site.create(pod("a", container("main", 4, 1)))
    site.wait_running("a")


@pytest.mark.parametrize("checkpoint", [None, "{"], ids=["lost", "corrupt"])
def test_a_pod_that_runs_without_devices(site: Site, checkpoint: str | None) -> None:
    """kubelet forgot what it holds; pods of its size get cards of their own."""
    gpus, node = site.gpus["cp"], site.cluster.nodes["cp"]
    gpus.set_cards(CARDS)
    site.create(pod("old", container("main", 15, 1)))
    site.wait_running("old")
    taken = site.visible("old")
    before = gpus.log.count("registered  resource=")
    node.kill_kubelet()
    file = node.path(KUBELET) / "device-plugins" / "kubelet_internal_checkpoint"
    file.unlink() if checkpoint is None else file.write_text(checkpoint)
    node.start_kubelet()
    site.cluster.wait_node_ready("cp")
    wait_until(
        lambda: gpus.log.count("registered  resource=") >= before + 2, "both again", 60
    )
    gpus.wait_offered()
    kubelet = PodResources(node.path(KUBELET) / "pod-resources" / "kubelet.sock")
    wait_until(
        lambda: kubelet.list(5).pods.get(("default", "old")) == {"main": {}},
        "the old pod without devices",
    )
    kubelet.close()

    with static_pod(site, pod("static", container("main", 15, 1))):
        assert site.visible("static-cp") not in ([], taken)
    site.create(pod("new", container("main", 15, 1)))
    site.wait_running("new")
    assert site.visible("new") not in ([], taken)
    found = site.get("pod", "new")["metadata"]["annotations"]
    assert "baidu.com/vcuda-actual" not in found
    assert site.visible("old") == taken


@contextmanager
def static_pod(site: Site, body: Json) -> Iterator[None]:
    """Let kubelet run a pod of a file of its own."""
    node = site.cluster.nodes["cp"]
    body["metadata"]["namespace"] = "default"
    name = f"{body['metadata']['name']}-cp"
    node.write(STATIC, json.dumps(body))
    try:
        site.wait_running(name)
        yield
    finally:
        node.path(STATIC).unlink()
        wait_until(lambda: not site.phase(name), "its end")


def test_channel_to_a_dead_kubelet_is_no_trouble(site: Site) -> None:
    """kubelet's sockets come and go; a client of ours finds the new one."""
    gpus, node = site.gpus["cp"], site.cluster.nodes["cp"]
    gpus.set_cards(CARDS)
    before = gpus.log.count("registered  resource=")
    kubelet = PodResources(node.path(KUBELET) / "pod-resources" / "kubelet.sock")
    kubelet.list(5)
    node.restart_kubelet()
    site.cluster.wait_node_ready("cp")

    def answers() -> bool:
        try:
            kubelet.list(2)
        except KubeletSilentError:
            return False
        return True

    wait_until(answers, "kubelet to answer")
    kubelet.close()
    # What ended pods held is not free to those that kubelet finds as it starts: the
    # next test's pods have to come later.
    wait_until(
        lambda: gpus.log.count("registered  resource=") >= before + 2, "both again", 60
    )
    gpus.wait_offered()
    site.create(pod("later", container("main", 1, 1)))
    site.wait_running("later")
