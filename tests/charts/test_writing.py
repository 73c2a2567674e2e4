"""The chart's files agree with each other and with what they are made of."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.template import Document, finished, steps_of
from charts.writing import ROOT, find_outdated, render_templates, write_templates
from gpushare import __version__
from gpushare.domain.policies import POLICIES
from gpushare.yaml_edit import NotEditable, YamlText
from gpusharectl.installer.options import ISOLATION_CHOICES
from gpusharectl.installer.preflight import OLDEST
from tests.testbed.helm import CHART

texts = cache(render_templates)
BY_HAND = {"_gpushare.tpl", "checks.yaml", "NOTES.txt", "tests/card.yaml"}
NOT_OURS = {".global", ".enabled"}
"""Helm passes them to charts that another one depends on."""


def test_generated_is_committed() -> None:
    """Else ``python -m charts`` was forgotten after a change of ``manifests/``."""
    for path, text in texts().items():
        assert (ROOT / path).read_text() == text, path


def test_every_other_template_is_written_by_hand() -> None:
    """So none is left of a manifest that is gone."""
    folder = CHART / "templates"
    there = {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }
    made = {str((ROOT / path).relative_to(folder)) for path in texts()}
    assert there - made == BY_HAND


def test_writing_changes_what_differs_and_nothing_else(tmp_path: Path) -> None:
    """A second time there is nothing to write; what is spoilt differs again."""
    assert set(write_templates(tmp_path)) == set(texts())
    assert write_templates(tmp_path) == []
    path = next(iter(texts()))
    (tmp_path / path).write_text("spoilt")
    assert list(find_outdated(tmp_path)) == [path]


def chart(name: str) -> Any:
    return yaml.safe_load((CHART / name).read_text())


def test_the_chart_has_gpushares_version() -> None:
    """So its default image is that of the same checkout."""
    about = chart("Chart.yaml")
    assert about["version"] == about["appVersion"] == __version__
    assert about["kubeVersion"] == f">={OLDEST[0]}.{OLDEST[1]}.0-0"


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all values; a list or an empty mapping is one value."""
    if not isinstance(value, dict) or not value:
        yield path
        return
    for key, inner in value.items():
        yield from leaves(inner, f"{path}.{key}")


def test_every_value_is_used_and_every_used_value_is_there() -> None:
    """In the templates, by the whole path or by the part that a block stands for."""
    templates = (CHART / "templates").rglob("*")
    text = "\n".join(path.read_text() for path in templates if path.is_file())
    used = set(re.findall(r"\.Values((?:\.\w+)+)", text))
    # checks.yaml and _gpushare.tpl read these by a variable.
    used |= {f".webhook.certificate{one}" for one in (".source", ".caBundle")}
    used.discard(".webhook.certificate")
    assert used == set(leaves(chart("values.yaml")))


def properties(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    inner = schema.get("properties")
    if not inner or "requests" in inner:
        yield path
        return
    assert schema["additionalProperties"] is False, path
    for key, each in inner.items():
        if f"{path}.{key}" not in NOT_OURS:
            yield from properties(each, f"{path}.{key}")


def test_the_schema_knows_every_value_and_its_choices() -> None:
    """A value that is spelt wrong is refused, and so is a policy that there is not."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(properties(schema)) == set(leaves(chart("values.yaml")))
    parts = schema["properties"]
    policies = parts["extender"]["properties"]["policy"]["enum"]
    assert policies == ["", *POLICIES]
    tiers = parts["devicePlugin"]["properties"]["isolation"]["enum"]
    assert tiers == ["", *ISOLATION_CHOICES]


def not_required(values: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """The groups, and the values with a default of their own, that may be absent."""
    for key, value in values.items():
        inner = schema["properties"][key]
        group = "properties" in inner and "requests" not in inner["properties"]
        if (value or group) and key not in schema.get("required", ()):
            yield f"{path}.{key}"
        if group:
            yield from not_required(value, inner, f"{path}.{key}")


def test_what_no_template_can_do_without_is_required() -> None:
    """Helm drops a value that is null, and --reuse-values has none that is new.

    Without its kind of scheduler the chart would have no extender.
    """
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert list(not_required(chart("values.yaml"), schema, "")) == []


LIST = """\
# Kept.
kind: List
items:
- name: a  # first
  port: 1
# Of the end.
"""


def edited(*steps: str) -> str:
    file = YamlText(LIST)
    Document(file, file.documents[0]).patch(steps_of("\n".join(steps)), ".Values.on")
    return finished(file)


def test_a_patch_becomes_a_condition_at_its_place() -> None:
    """All else stays as it was; steps at the same place have one condition."""
    item = "- {op: add, path: /items/-, value: {name: b}}"
    assert edited(item, item) == LIST.replace(
        "  port: 1\n",
        "  port: 1\n{{- if .Values.on }}\n- {name: b}\n- {name: b}\n{{- end }}\n",
    )
    assert edited("- {op: replace, path: /items/0/port, value: 2}") == LIST.replace(
        "port: 1", "port: {{ if .Values.on }}2{{ else }}1{{ end }}"
    )
    first = edited("- {op: add, path: /items/0, value: {name: b}}")
    assert first.index("{name: b}") < first.index("- name: a")


@pytest.mark.parametrize(
    "step",
    [
        "- {op: add, path: /items/1/ports, value: 2}",
        "- {op: add, path: /items/3, value: 2}",
        "- {op: remove, path: /items/0, value: 2}",
        "- {op: replace, path: /items, value: 2}",
    ],
)
def test_a_patch_without_a_place_is_an_error(step: str) -> None:
    """Nothing of a component is lost in silence."""
    with pytest.raises(NotEditable):
        edited(step)
