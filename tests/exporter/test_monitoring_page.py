"""docs/monitoring.md says what the code does: every metric, group and setting."""

import re
from functools import cache
from pathlib import Path

import pytest

from exporter import catalog as own
from exporter.catalog import OwnField
from exporter.settings import ExporterSettings
from exporter.telemetry.fields import FIELDS, GROUPS, Field, FieldGroup

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "monitoring.md"
_ROW = re.compile(r"^\| `(?P<name>\w+)` \|(?P<cells>.*)\|$", re.MULTILINE)
_METRIC = re.compile(r"\b(?:DCGM_(?:FI|CUSTOM)|vcuda)_\w+")
_UNIT = re.compile(r"\(([^()]*)\)\.$")
FOREIGN = {"DCGM_FI_DRIVER_VERSION"}
"""A label, which bears a field's name in dcgm-exporter."""


@cache
def sections(page: Path = PAGE) -> dict[str, str]:
    """The text under each heading, by the heading."""
    parts = re.split(
        r"^#{2,3} (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str, page: Path = PAGE) -> dict[str, list[str]]:
    """The cells of each row that begins with a name, by the name."""
    return {
        found["name"]: [cell.strip() for cell in found["cells"].split("|")]
        for found in _ROW.finditer(sections(page)[section])
    }


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_group_has_its_row(group: FieldGroup) -> None:
    on, every, what = rows("Groups")[group.name]
    assert on == ("on" if group.by_default else "off")
    assert every == f"{group.every_s:g} s"
    assert what.startswith(group.what)
    assert group.slow in what


@pytest.mark.parametrize("metric", FIELDS, ids=lambda metric: metric.name)
def test_every_metric_of_a_card_has_its_row(metric: Field) -> None:
    unit, meaning, absent = rows(metric.group)[metric.name]
    found = _UNIT.search(metric.help)
    assert found is not None
    assert unit == found[1]
    assert meaning.endswith("; counter") == (metric.kind == "counter")
    assert absent or sections()[metric.group].startswith("\nAbsent, ")


_SECTION = {
    "card": "Our metrics of cards",
    "container": "Metrics of containers",
    "node": "Metrics of the node and of the exporter",
}


@pytest.mark.parametrize("metric", own.OWN, ids=lambda metric: metric.name)
def test_every_metric_of_ours_has_its_row(metric: OwnField) -> None:
    labels, meaning, _ = rows(_SECTION[metric.about])[metric.name]
    assert tuple(re.findall(r"`(\w+)`", labels)) == metric.labels
    assert meaning


def test_nothing_is_described_that_is_not_there() -> None:
    known = {metric.name for metric in (*FIELDS, *own.OWN)} | FOREIGN
    named = set(_METRIC.findall(PAGE.read_text(encoding="utf-8")))
    assert {metric for metric in named if not metric.endswith("_")} <= known


def test_every_setting_has_its_row() -> None:
    """Here, or on the device plugin's page if this one says so."""
    shared = rows("Settings", DOCS / "deviceplugin.md")
    as_there = sections()["Settings"].partition("| variable")[0]
    table = {
        name: ["", *shared[name]] for name in re.findall(r"`(GPUSHARE_\w+)`", as_there)
    } | rows("Settings")
    settings, _ = ExporterSettings.read({"GPUSHARE_NODE_NAME": "n"})
    names = {name.upper() for name in settings.__dataclass_fields__} - {"FLAGS"}
    names = (names - {"NODE"}) | {"NODE_NAME"}
    assert {name.removeprefix("GPUSHARE_") for name in table} == names
    for name in names - {"NODE_NAME", "KUBECONFIG", "PODS"}:
        default = getattr(settings, name.lower())
        shown = table[f"GPUSHARE_{name}"][1].strip("`")
        wanted = "none" if default is None else default
        wanted = f"{wanted:g}" if isinstance(wanted, float) else str(wanted)
        assert shown == wanted, name
