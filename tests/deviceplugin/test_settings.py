"""The device plugin's settings, and what an operator hears of bad ones."""

from dataclasses import fields

import pytest

from deviceplugin.settings import DevicePluginSettings, former_settings
from gpushare.domain.model import NodeName

GOOD = {
    "GPUSHARE_NODE_NAME": "n1",
    "GPUSHARE_KUBECONFIG": "/etc/config",
    "GPUSHARE_KUBELET_DIR": "/k",
    "GPUSHARE_STATE_DIR": "/s",
    "GPUSHARE_HOST_ROOT": "/host",
    "GPUSHARE_INJECT": "cdi",
    "GPUSHARE_CDI_DIRS": "/a, /b",
    "GPUSHARE_RESERVE_MIB": "300",
    "GPUSHARE_ISOLATION": "driver",
    "GPUSHARE_ISOLATION_CONTEXT_MIB": "400",
    "GPUSHARE_SIMULATED_CARDS": "4x24GiB",
    "GPUSHARE_INVENTORY": "/inventory.yaml",
    "GPUSHARE_BITFUSION_QUOTA": "on",
    "GPUSHARE_DRA": "on",
    "GPUSHARE_STARTUP_TAINT": "on",
    "GPUSHARE_DRA_ORDER": "fullest",
    "GPUSHARE_LOOK_EVERY_S": "0.5",
    "GPUSHARE_HARMLESS_XIDS": "62, 63",
    "GPUSHARE_LISTEN": "[::1]:1234",
    "GPUSHARE_LOG_LEVEL": "DEBUG",
    "GPUSHARE_LOG_FORMAT": "text",
}
ANY_TEXT = {
    "GPUSHARE_NODE_NAME",
    "GPUSHARE_KUBECONFIG",
    "GPUSHARE_SIMULATED_CARDS",
    "GPUSHARE_INVENTORY",
}
"""What is wrong with these is found by whoever uses them."""


def complaints(**environ: str) -> list[str]:
    given = {"NODE_NAME": "n1"} | environ
    _, found = DevicePluginSettings.read({f"GPUSHARE_{k}": v for k, v in given.items()})
    return found


def test_each_setting_is_read() -> None:
    """One variable for each field, and no field without."""
    settings, found = DevicePluginSettings.read(GOOD)
    assert found == []
    default = DevicePluginSettings(NodeName("other"))
    texts = {}
    for field in fields(DevicePluginSettings):
        value = getattr(settings, field.name)
        assert value != getattr(default, field.name)
        several = isinstance(value, tuple)
        text = ", ".join(map(str, value)) if several else str(value)
        name = "NODE_NAME" if field.name == "node" else field.name.upper()
        texts[f"GPUSHARE_{name}"] = "on" if value is True else text
    assert texts == GOOD


def test_all_but_the_nodes_name_have_defaults() -> None:
    empty = dict.fromkeys(GOOD, "") | {"GPUSHARE_NODE_NAME": "n1"}
    assert DevicePluginSettings.read(empty) == (
        DevicePluginSettings(NodeName("n1")),
        [],
    )
    [complaint] = DevicePluginSettings.read({})[1]
    assert complaint.startswith("GPUSHARE_NODE_NAME: is not set; ")
    assert "spec.nodeName" in complaint


def test_all_complaints_come_at_once() -> None:
    """Each names its variable, once, and the default stands in meanwhile."""
    bad = dict.fromkeys(GOOD.keys() - ANY_TEXT, "nonsense")
    settings, found = DevicePluginSettings.read(bad)
    named = [complaint.partition(":")[0] for complaint in found]
    assert sorted(named) == sorted([*bad, "GPUSHARE_NODE_NAME"])
    told = [complaint for complaint in found if "NODE_NAME" not in complaint]
    assert all("'nonsense' is not valid; " in complaint for complaint in told)
    assert settings == DevicePluginSettings(NodeName(""))


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("KUBELET_DIR", "var/lib", "give a path that begins with /"),
        ("CDI_DIRS", "/a,b", "give paths, separated by commas"),
        ("CDI_DIRS", "/a,", "give paths, separated by commas"),
        ("INJECT", "CDI", "use one of auto, cdi, env, nodes"),
        ("ISOLATION_CONTEXT_MIB", "0", "give a whole number from 1 to 1048576"),
        ("RESERVE_MIB", "1048577", "give a whole number from 0 to 1048576"),
        ("LOOK_EVERY_S", "0.05", "give a number of seconds from 0.1 to 300"),
        ("HARMLESS_XIDS", "13,", "give numbers, separated by commas"),
        ("HARMLESS_XIDS", "-1", "give numbers, separated by commas"),
        ("HARMLESS_XIDS", "10000", "give numbers, separated by commas"),
        ("HARMLESS_XIDS", "9" * 5000, "give numbers, separated by commas"),
        ("HARMLESS_XIDS", "\N{SUPERSCRIPT TWO}", "give numbers, separated by commas"),
    ],
)
def test_a_complaint_says_what_would_do(name: str, value: str, fix: str) -> None:
    (complaint,) = complaints(**{name: value})
    assert complaint == f"GPUSHARE_{name}: {value!r} is not valid; {fix}"


def test_settings_of_the_version_before_do_nothing() -> None:
    """A DaemonSet may set them: no complaint, also not as misspelt ones."""
    former = {"GPUSHARE_ISOLATION_OVERHEAD_MIB": "x", "GPUSHARE_ISOLATION_PODS": ""}
    given = {"GPUSHARE_NODE_NAME": "n1"} | former
    default = DevicePluginSettings(NodeName("n1"))
    assert DevicePluginSettings.read(given) == (default, [])
    assert former_settings(given) == list(former)


def test_a_misspelt_name_is_complained_of() -> None:
    [complaint] = complaints(INJECTION="x")
    assert "did you mean GPUSHARE_INJECT?" in complaint
