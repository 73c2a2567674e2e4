"""What a container sees of its cards, held against its placement."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from gpushare.kube.proto.deviceplugin_pb2 import Mount
from gpusharectl.demo.devices import ContainerConfig
from gpusharectl.demo.story import (
    NotAsExpectedError,
    card_lines,
    check_container,
    step_lines,
)
from tests.builders import card, placement, pod_json
from tests.gpusharectl import golden

ENVS = {
    "NVIDIA_VISIBLE_DEVICES": "GPU-0",
    "VCUDA_CARDS": "GPU-0",
    "VCUDA_MEMORY_LIMIT_MIB": "1024",
    "VCUDA_CORES": "1",
}
CARD = {"uuid": "GPU-0", "units": 4, "cores": 1, "memory_mib": 1024}
FILE = {
    "v": 1,
    "pod": "default/pod",
    "uid": "uid-pod",
    "container": "main",
    "cards": [CARD],
}


def look(
    folder: Path, envs: Mapping[str, str] = ENVS, file: Any = FILE, **more: Any
) -> None:
    if file is not None:
        (folder / "allocation.json").write_text(json.dumps(file))
    mount = Mount(container_path="/etc/vcuda", host_path=str(folder))
    given = {"main": ContainerConfig(envs, more.pop("mounts", {"/etc/vcuda": mount}))}
    pod = pod_json(units=4, cores=1)
    check_container(pod, placement(units=4, cores=1), more.pop("given", given))


def test_what_is_expected(tmp_path: Path) -> None:
    look(tmp_path)


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("value", ["7", None])
def test_wrong_variables(tmp_path: Path, name: str, value: str | None) -> None:
    envs = {key: told for key, told in ENVS.items() if key != name}
    if value is not None:
        envs[name] = value
    with pytest.raises(NotAsExpectedError, match=f"its variables should say.*{name}"):
        look(tmp_path, envs)


@pytest.mark.parametrize(
    "wrong",
    [
        {"uid": "another"},
        {"pod": "default/another"},
        {"container": "another"},
        {"cards": []},
        {"cards": [CARD | {"uuid": "GPU-1"}]},
        {"cards": [CARD, CARD | {"uuid": "GPU-1"}]},
        {"cards": [CARD | {"units": 5}]},
        {"cards": [CARD | {"memory_mib": 1}]},
        {"cards": [CARD | {"cores": 0}]},
    ],
)
def test_a_wrong_file(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(NotAsExpectedError, match=r"default/pod: allocation\.json"):
        look(tmp_path, file=FILE | wrong)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotAsExpectedError, match="No such file"):
        look(tmp_path, file=None)
    with pytest.raises(NotAsExpectedError, match="nothing is mounted on /etc/vcuda"):
        look(tmp_path, mounts={})


def test_not_started(tmp_path: Path) -> None:
    with pytest.raises(NotAsExpectedError, match="main was never started"):
        look(tmp_path, given={})


APPS = {"app-1": 50, "app-2": 40, "app-3a": 1}
GONE = "Terminating: it holds its units until it is gone"


@pytest.mark.parametrize(
    ("width", "lines"),
    [(60, 4), (79, 3), (80, 2), (120, 2)],
)
def test_a_narrow_screen_breaks_no_name(width: int, lines: int) -> None:
    """What does not fit stands below, so that bars and names stay whole."""

    def draw(console: Console) -> None:
        drawn = card_lines(width, card(0, 94), APPS)
        told = step_lines(width, Text(f"{'  delete app-3a':30}"), Text(GONE))
        for part in (*drawn, *told):
            console.print(part)

    found = golden.drawn(draw, width=width)
    assert all(len(line) <= width for line in found.splitlines())
    assert len(found.splitlines()) == lines
    assert GONE in found
    assert all(f" {name} {units}" in found for name, units in APPS.items())


def test_nothing_is_named_below_an_empty_card() -> None:
    (line,) = card_lines(60, card(1, 29), {})
    assert str(line) == f"    card 1 {'·' * 24}  0/29"
