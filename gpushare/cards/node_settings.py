"""The settings of the processes of a node, and the cards that these name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.cards.inventory import InventoryCards, read_inventory
from gpushare.cards.simulated import SimulatedCards, parse_spec
from gpushare.cards.source import CardSource
from gpushare.domain.model import NodeName
from gpushare.logs import LOG_FORMATS, LOG_LEVELS, LogFormat
from gpushare.settings import Reading


@dataclass(frozen=True)
class NodeSettings:
    """The settings that the processes of a node share, and their defaults."""

    node: NodeName
    """This node's name in the API server; a DaemonSet gives ``spec.nodeName``."""
    kubeconfig: str | None = None
    """Path; the pod's own service account if none is given."""
    kubelet_dir: Path = Path("/var/lib/kubelet")
    """Where kubelet has ``device-plugins`` and ``pod-resources``."""
    state_dir: Path = Path("/var/lib/vcuda")
    """What the device plugin keeps, and what containers have mounted: the same path in
    the plugin's container and on the host."""
    host_root: Path = Path("/")
    """Where the host's ``/proc`` and ``/sys`` are found."""
    simulated_cards: str | None = None
    """``4x24GiB`` or a YAML file: simulated cards instead of the driver's."""
    inventory: Path | None = None
    """A YAML file of cards that the driver does not know."""
    look_every_s: float = 5.0
    """How often the cards are read, and new ones looked for."""
    log_level: str = "INFO"
    log_format: LogFormat = "json"

    @classmethod
    def read_shared(cls, env: Reading, bare_node_name: str = "") -> Mapping[str, Any]:
        """Read them, by field; ``bare_node_name`` is for a node that is not named."""
        of = NodeSettings
        return {
            "node": NodeName(env.text("NODE_NAME") or bare_node_name),
            "kubeconfig": env.text("KUBECONFIG"),
            "kubelet_dir": env.folder("KUBELET_DIR", of.kubelet_dir),
            "state_dir": env.folder("STATE_DIR", of.state_dir),
            "host_root": env.folder("HOST_ROOT", of.host_root),
            "simulated_cards": env.text("SIMULATED_CARDS"),
            "inventory": env.file("INVENTORY"),
            "look_every_s": env.seconds(
                "LOOK_EVERY_S", of.look_every_s, least=0.1, most=300
            ),
            "log_level": env.one_of("LOG_LEVEL", LOG_LEVELS, of.log_level),
            "log_format": env.one_of("LOG_FORMAT", LOG_FORMATS, of.log_format),
        }


def simulated_source(settings: NodeSettings, complaints: list[str]) -> list[CardSource]:
    """Return the simulated cards that replace the driver's, if any are set."""
    spec = settings.simulated_cards
    made_up = () if spec is None else parse_spec(spec, settings.node)
    if isinstance(made_up, list):
        complaints += [f"GPUSHARE_SIMULATED_CARDS: {problem}" for problem in made_up]
    elif made_up:
        return [SimulatedCards(made_up)]
    return []


def inventory_source(settings: NodeSettings, complaints: list[str]) -> list[CardSource]:
    """Return the cards of an inventory file, if one is set."""
    file = settings.inventory
    listed = [] if file is None else read_inventory(file)
    if isinstance(listed, tuple):
        return [InventoryCards(listed)]
    complaints += [f"GPUSHARE_INVENTORY: {problem}" for problem in listed]
    return []
