"""What CDI specifications say of cards: their names and their hooks."""

import json
from pathlib import Path

import pytest
import yaml

from deviceplugin.allocation.cdi import specified
from gpushare.kube.cluster import Json
from tests.deviceplugin.allocation.test_injection import ONE, TWO, spec_of


def test_specifications_are_json_or_yaml_of_our_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.yml").write_text(yaml.safe_dump(spec_of(ONE)))
    (tmp_path / "a.json").write_text(json.dumps(spec_of(TWO)))
    (tmp_path / "b.json").write_text(json.dumps(spec_of("x", kind="nvidia.com/mig")))
    (tmp_path / "c.txt").write_text(json.dumps(spec_of("x")))
    assert specified([tmp_path]) == {ONE: frozenset(), TWO: frozenset()}
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", "{}"),
        ("a.yaml", "a: [1"),
        ("a.yaml", "{kind: nvidia.com/gpu, devices: [1]}"),
        ("a.yaml", "{kind: nvidia.com/gpu, devices: 5}"),
        ("a.json", "\udcff"),
    ],
)
def test_a_broken_specification(
    name: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "good.json").write_text(json.dumps(spec_of(TWO)))
    assert specified([tmp_path]) == {TWO: frozenset()}
    [record] = caplog.records
    assert record.file == str(tmp_path / name)  # type: ignore[attr-defined]


def hooked(name: str, *hooks: str) -> Json:
    made = spec_of(name)
    args = [{"hookName": "createRuntime", "args": ["cdi-hook", one]} for one in hooks]
    made["devices"][0]["containerEdits"] = {"hooks": args}
    return made


def test_a_device_in_two_specifications_has_the_hooks_of_both(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(hooked(ONE, "limits", "chmod")))
    assert specified([tmp_path])[ONE] == {"cdi-hook", "limits", "chmod"}
    (tmp_path / "b.json").write_text(json.dumps(hooked(ONE, "chmod")))
    assert specified([tmp_path])[ONE] == {"cdi-hook", "chmod"}
