"""The exporter's settings, and what an operator hears of bad ones."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from exporter.selection import Flags
from exporter.settings import CommandLine, ExporterSettings
from gpushare.domain.model import NodeName
from gpushare.settings import Address

SETTINGS = {
    "NODE_NAME": ("n1", NodeName("n1")),
    "KUBECONFIG": ("/etc/config", "/etc/config"),
    "LISTEN": ("[::1]:1234", Address("[::1]", 1234)),
    "COLLECT_LISTEN": ("127.0.0.1:1235", Address("127.0.0.1", 1235)),
    "FIELDS_FILE": ("/etc/fields.csv", Path("/etc/fields.csv")),
    "HOST_ROOT": ("/host", Path("/host")),
    "KUBELET_DIR": ("/k", Path("/k")),
    "STATE_DIR": ("/s", Path("/s")),
    "INVENTORY": ("/inventory.yaml", Path("/inventory.yaml")),
    "SIMULATED_CARDS": ("4x24GiB", "4x24GiB"),
    "PODS": ("off", False),
    "COLLECT_UNIT": ("bytes", "bytes"),
    "WATCHDOG": ("off", "off"),
    "WATCHDOG_AFTER_S": ("5", 5.0),
    "WATCHDOG_CONTEXT_MIB": ("300", 300),
    "COMPUTE": ("share", "share"),
    "HOSTNAME_LABEL": ("Hostname", "Hostname"),
    "LOOK_EVERY_S": ("0.5", 0.5),
    "LOG_LEVEL": ("DEBUG", "DEBUG"),
    "LOG_FORMAT": ("text", "text"),
}
"""By variable: what is written, and what must be read."""
GOOD = {f"GPUSHARE_{name}": text for name, (text, _) in SETTINGS.items()}
FIELDS = {name.lower(): value for name, (_, value) in SETTINGS.items()}
READ = ExporterSettings(FIELDS.pop("node_name"), **FIELDS)  # type: ignore[arg-type]
ANY_TEXT = {"NODE_NAME", "KUBECONFIG", "FIELDS_FILE", "INVENTORY", "SIMULATED_CARDS"}
"""What is wrong with these is found by whoever uses them."""
DEFAULT = ExporterSettings(NodeName("n1"))


NEEDS_PODS = "GPUSHARE_COMPUTE: share needs pods; leave out GPUSHARE_PODS=off"
"""What is wrong with these settings together."""


def complaints(**environ: str) -> list[str]:
    given = {"NODE_NAME": "n1"} | environ
    return ExporterSettings.read({f"GPUSHARE_{k}": v for k, v in given.items()})[1]


def test_each_setting_is_read() -> None:
    assert ExporterSettings.read(GOOD) == (READ, [NEEDS_PODS])
    for field in fields(ExporterSettings):
        if field.name not in {"node", "flags"}:
            assert getattr(READ, field.name) != getattr(DEFAULT, field.name)
    empty = dict.fromkeys(GOOD, "") | {"GPUSHARE_NODE_NAME": "n1"}
    assert ExporterSettings.read(empty) == (DEFAULT, [])


def test_the_node_s_name() -> None:
    """Seed 000 has another variable for it; ours wins."""
    seed = {"KUBE_NODE_NAME": "docker-desktop"}
    assert ExporterSettings.read(seed)[0].node == "docker-desktop"
    both = seed | {"GPUSHARE_NODE_NAME": "n1"}
    assert ExporterSettings.read(both)[0].node == "n1"
    (complaint,) = ExporterSettings.read({})[1]
    assert complaint.startswith("GPUSHARE_NODE_NAME: is not set, nor is KUBE_NODE_NAME")
    assert "spec.nodeName" in complaint


@pytest.mark.parametrize(
    ("listen", "agent", "clash"),
    [
        ("127.0.0.1:9400", "127.0.0.1:9400", True),
        ("0.0.0.0:9400", "127.0.0.1:9400", True),
        ("127.0.0.1:9400", "[::]:9400", True),
        ("127.0.0.1:9400", "127.0.0.2:9400", False),
        ("127.0.0.1:9400", "127.0.0.1:9401", False),
        ("127.0.0.1:9400", "off", False),
    ],
)
def test_two_listeners_cannot_share_an_address(
    listen: str, agent: str, clash: bool
) -> None:
    """The agent's port is in the range of Kubernetes' own ports, so it may be off."""
    found = complaints(LISTEN=listen, COLLECT_LISTEN=agent)
    words = f"{agent} is taken by GPUSHARE_LISTEN ({listen}); give another port"
    assert found == [f"GPUSHARE_COLLECT_LISTEN: {words}"] * clash


def test_flags_beat_the_environment() -> None:
    """A variable that is beaten is no stranger; a group cannot be both on and off."""
    flags = Flags(frozenset({"pcie", "memory"}), frozenset({"nvlink", "memory"}))
    settings, found = ExporterSettings.read(GOOD, CommandLine(flags, "mib", "report"))
    both = "--enable-memory and --disable-memory: give one of them"
    assert found == [NEEDS_PODS, both]
    assert settings == replace(READ, flags=flags, collect_unit="mib", watchdog="report")


def test_all_complaints_come_at_once() -> None:
    bad = {f"GPUSHARE_{name}": "nonsense" for name in SETTINGS.keys() - ANY_TEXT}
    settings, found = ExporterSettings.read(bad)
    named = [complaint.partition(":")[0] for complaint in found]
    assert sorted(named) == sorted([*bad, "GPUSHARE_NODE_NAME"])
    told = [complaint for complaint in found if "NODE_NAME" not in complaint]
    assert all("'nonsense' is not valid; " in complaint for complaint in told)
    assert settings == ExporterSettings(NodeName(""))


def test_nobody_can_be_evicted_without_pods() -> None:
    """Whoever asks for it must hear that nothing would happen."""
    (complaint,) = complaints(WATCHDOG="evict", PODS="off")
    assert complaint.startswith("GPUSHARE_WATCHDOG: evict needs pods; ")
    assert not complaints(WATCHDOG="evict")
    assert complaints(PODS="off", FIELD_FILE="x") == [
        "GPUSHARE_FIELD_FILE is not a setting; did you mean GPUSHARE_FIELDS_FILE?"
    ]


def test_nobody_is_held_to_cores_without_what_measures() -> None:
    assert not complaints(COMPUTE="share")
    assert complaints(COMPUTE="share", PODS="off") == [NEEDS_PODS]
    given = CommandLine(Flags(off=frozenset({"processes"})))
    environ = {"GPUSHARE_NODE_NAME": "n1", "GPUSHARE_COMPUTE": "share"}
    (complaint,) = ExporterSettings.read(environ, given)[1]
    assert complaint == "GPUSHARE_COMPUTE: share needs --disable-processes left out"
