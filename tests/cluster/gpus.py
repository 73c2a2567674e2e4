"""A node's cards: a stub driver, and the device plugin that runs over it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.nvml.build import STATE_VARIABLE, Stub
from tests.nvml.driver import StubCard, StubDriver, StubInstance, cdi_spec
from tests.testbed.kubeadm.node import Node
from tests.testbed.process import Process
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    # Not when it runs, because a site is made of these.
    from tests.cluster.site import Site

ROOT = Path(__file__).parents[2]
PLUGIN = "gpushare-device-plugin"


@dataclass
class Gpus:
    """A node's stub driver and the device plugin that runs over it."""

    site: "Site"
    node: Node
    driver: StubDriver
    stub: Stub
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    image: Path | None = None
    """What lies in ``/usr/lib`` for the plugin alone, as its image would have it."""
    process: Process | None = None
    _logged: int = 0
    """Characters of the log that earlier processes have written."""

    def start(self, *, wait: bool = True) -> None:
        environment = {
            "PYTHONPATH": str(ROOT),
            "LD_LIBRARY_PATH": str(self.stub.library.parent),
            STATE_VARIABLE: str(self.driver.path),
            "GPUSHARE_NODE_NAME": self.node.name,
            "GPUSHARE_KUBECONFIG": str(self.site.kubeconfig(PLUGIN)),
            "GPUSHARE_STATE_DIR": str(self.folder / "state"),
            "GPUSHARE_CDI_DIRS": "/etc/cdi",
            "GPUSHARE_LOOK_EVERY_S": "0.5",
            "GPUSHARE_LOG_FORMAT": "text",
            **{f"GPUSHARE_{key}": value for key, value in self.settings.items()},
        }
        command = [sys.executable, "-m", "deviceplugin", "serve"]
        if self.image is not None:
            laid = f"mount -t overlay -o lowerdir={self.image}:/usr/lib none /usr/lib"
            command = [
                "unshare",
                "-m",
                "sh",
                "-c",
                f'{laid} && exec "$@"',
                "sh",
                *command,
            ]
        self._logged = len(self.log) if self.process else 0
        self.process = self.node.launch("plugin", command, environment)
        if wait:
            self.wait_offered()

    def kill(self) -> None:
        """End the device plugin as a crash would."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()

    def set_cards(
        self, cards: Sequence[StubCard], instances: Sequence[StubInstance] = ()
    ) -> None:
        """Put these cards into the node, as if it had come with them.

        Those in MIG mode are cut into the instances.
        """
        alive = self.process is not None and self.process.running
        now = (self.driver.cards, self.driver.instances)
        if alive and (list(cards), list(instances)) == now:
            return
        self.stop_offering()
        self.driver.set_cards(cards)
        self.driver.set_instances(*instances)
        self.specify()
        self.start(wait=bool(cards))

    def specify(self) -> None:
        """Write the CDI specification of what the driver has now."""
        all_cards = [*self.driver.cards, *self.driver.instances]
        markers = self.folder / "markers"
        self.node.write_cdi(cdi_spec(self.stub, self.driver.path, all_cards, markers))

    def wait_offered(self) -> None:
        """Wait until kubelet has told the API server of all units.

        Of this very process's, because for a moment it tells of a dead one's still.
        """
        self._wait_registered()
        wait_until(
            lambda: self.site.allocatable(self.node.name) == self._own,
            f"{self._own} cores and units on {self.node.name}",
            60,
        )
        wait_until(self._published, "the cards' annotation")

    def _wait_registered(self) -> None:
        """Wait for this process's two lines; a failure shows what it has said."""
        wait_until(
            lambda: self.log[self._logged :],
            "both resources registered",
            60,
            accept=lambda log: log.count("registered  resource=") >= 2,
        )

    @property
    def _own(self) -> tuple[int, int]:
        units = sum(card.memory_mib // 256 for card in self._offered)
        return 100 * len(self._offered), units

    @property
    def _offered(self) -> list[StubCard | StubInstance]:
        full = [card for card in self.driver.cards if not card.mig]
        return [*full, *self.driver.instances]

    def _published(self) -> bool:
        found = self.site.cards(self.node.name)
        return [one["uuid"] for one in found] == [c.uuid for c in self._offered]

    def host_list(self) -> list[str]:
        """``nvidia-smi -L`` on the node itself, which shows all cards; its lines."""
        state = f"{STATE_VARIABLE}={self.driver.path}"
        asked = ("env", state, str(self.stub.smi), "-L", "--every")
        return self.node.must(*asked).splitlines()

    @contextmanager
    def reconfigured(self, **settings: str) -> Iterator[None]:
        """Run the device plugin otherwise; ``set_cards`` starts it as before."""
        before = self.settings
        self._restart({**before, **settings})
        try:
            yield
        finally:
            self.stop()
            self.settings = before

    def _restart(self, settings: dict[str, str]) -> None:
        self.stop_offering()
        self.settings = settings
        self.start(wait=False)
        self._wait_registered()
        cores, units = self._own
        wait_until(
            lambda: (
                (found := self.site.allocatable(self.node.name))[0] >= cores
                and found[1] >= units
            ),
            f"cores and units on {self.node.name}",
            60,
        )

    def stop_offering(self) -> None:
        self.stop()
        wait_until(
            lambda: self.site.allocatable(self.node.name) == (0, 0),
            f"nothing offered on {self.node.name}",
            60,
        )

    @property
    def log(self) -> str:
        assert self.process is not None
        return self.process.log.read_text(errors="replace")
