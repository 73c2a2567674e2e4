"""What CDI specifications say of cards: their names and their hooks."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from deviceplugin.allocation.cdi import (
    HOOK,
    LimitSpecifications,
    lost_files,
    specified,
)
from gpushare.kube.cluster import Json
from gpushare.kubelet.pods import card_key
from tests.deviceplugin.allocation.test_injection import ONE, TWO, spec_of
from tests.deviceplugin.node_fixture import UUIDS


def test_specifications_are_json_or_yaml_of_our_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(spec_of(ONE)))
    (tmp_path / "a.json").write_text(json.dumps(spec_of(TWO)))
    (tmp_path / "b.json").write_text(json.dumps(spec_of("x", kind="nvidia.com/mig")))
    for name in ("c.txt", "c.yml"):
        (tmp_path / name).write_text(json.dumps(spec_of("x")))
    os.mkfifo(tmp_path / "d.json")
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
        ("a.json", "[" * 200_000),
        ("a.yaml", "[" * 5_000),
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
    args = [{"hookName": "createRuntime", "args": ["cdi-hook", hook]} for hook in hooks]
    made["devices"][0]["containerEdits"] = {"hooks": args}
    return made


def test_a_device_in_two_folders_has_the_hooks_of_both(tmp_path: Path) -> None:
    folders = [tmp_path / "etc", tmp_path / "run"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "a.json").write_text(json.dumps(hooked(ONE, "limits", "chmod")))
    assert specified(folders)[ONE] == {"cdi-hook", "limits", "chmod"}
    (folders[1] / "b.json").write_text(json.dumps(hooked(ONE, "chmod")))
    assert specified(folders)[ONE] == {"cdi-hook", "chmod"}


def test_a_device_twice_in_one_folder_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A runtime takes neither, also if another folder has it: no container starts."""
    folders = [tmp_path / "etc", tmp_path / "run"]
    for folder, name in ((0, "a.yaml"), (1, "a.json"), (1, "b.json")):
        folders[folder].mkdir(exist_ok=True)
        (folders[folder] / name).write_text(json.dumps(spec_of(ONE)))
    assert specified(folders) == {}
    [record] = caplog.records
    assert str(folders[1] / "b.json") in record.files  # type: ignore[attr-defined]


def editing(name: str, **edits: Json) -> str:
    made = spec_of(name)
    made["devices"][0]["containerEdits"] = {key: [edit] for key, edit in edits.items()}
    return json.dumps(made)


def test_the_last_folder_decides_whether_files_are_lost(tmp_path: Path) -> None:
    """Runtimes take its specification: an old one in ``/etc/cdi`` stops nothing."""
    etc, run = tmp_path / "etc", tmp_path / "run"
    etc.mkdir()
    run.mkdir()
    lost = editing(ONE, mounts={"hostPath": "/usr/lib/libcuda.so.550"})
    (etc / "nvidia.json").write_text(lost)
    assert lost_files([etc, run], tmp_path) == {
        ONE: f"{etc}/nvidia.json names /usr/lib/libcuda.so.550, which does not exist"
    }
    (run / "nvidia.json").write_text(json.dumps(spec_of(ONE)))
    assert not lost_files([etc, run], tmp_path)
    assert list(lost_files([run, etc], tmp_path)) == [ONE]


@pytest.mark.parametrize(
    ("key", "edit", "counts"),
    [
        ("mounts", {"hostPath": "/x"}, True),
        ("mounts", {"hostPath": "/x", "type": "bind"}, True),
        ("mounts", {"hostPath": "tmpfs", "type": "tmpfs"}, False),
        ("mounts", {"hostPath": "/circle"}, True),
        ("deviceNodes", {"path": "/dev/x"}, True),
        ("deviceNodes", {"path": "/usr", "hostPath": "/dev/x"}, True),
        ("deviceNodes", {"path": "/dev/x", "hostPath": "/usr"}, False),
        ("deviceNodes", {"path": "/dev/x", "type": "c", "minor": 1}, True),
        ("deviceNodes", {"path": "/dev/x", "type": "c", "major": 195}, False),
        ("hooks", {"hookName": "createContainer", "path": "/x"}, True),
        ("hooks", {"hookName": "startContainer", "path": "/x"}, False),
    ],
)
def test_what_must_exist(tmp_path: Path, key: str, edit: Json, counts: bool) -> None:
    """A runtime makes a node of a known number, and runs a hook in the container."""
    (tmp_path / "usr").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "a.json").write_text(editing(ONE, **{key: edit}))
    assert bool(lost_files([tmp_path], tmp_path)) is counts


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("status", [0, 3])
def test_nvidias_hook_reads_our_variables_alone(
    tmp_path: Path, separators: tuple[str, str], status: int
) -> None:
    """An image's own would come before those that CDI sets, and the hook takes them."""
    program = tmp_path / "hook"
    script = f'cat > {tmp_path}/state\necho "$@" > {tmp_path}/args\nexit {status}\n'
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    args = ["nvidia-cdi-hook", HOOK, "--gpu-id", UUIDS[0]]
    hook = {"hookName": "createRuntime", "path": str(program), "args": args}
    devices = [{"name": UUIDS[0], "containerEdits": {"hooks": [hook]}}]
    nvidias = {"kind": "nvidia.com/gpu", "devices": devices}
    (tmp_path / "nvidia.json").write_text(json.dumps(nvidias))
    limits = LimitSpecifications(tmp_path, (tmp_path,))
    limits.put("x.y", 1024, card_key(UUIDS[0]), tmp_path / "bundle")
    file = tmp_path / "vcuda.baidu.com-limit_x.y.json"
    [device] = json.loads(file.read_text())["devices"]
    [ours] = device["containerEdits"]["hooks"]
    state = {"pid": 5, "bundle": "/run/x", "annotations": {"a": '"bundle":"/run/x"'}}
    done = subprocess.run(
        ours["args"],
        executable=ours["path"],
        input=json.dumps(state, separators=separators),
        env=dict(variable.split("=") for variable in ours["env"]),
        text=True,
        check=False,
    )
    assert (done.returncode, ours["hookName"]) == (status, "createRuntime")
    assert (tmp_path / "args").read_text() == f"{HOOK} --gpu-id {UUIDS[0]}\n"
    said = json.loads((tmp_path / "state").read_text())
    assert said == state | {"bundle": str(tmp_path / "bundle")}
    config = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert config["process"]["env"] == [
        "NVIDIA_GPU_MEMORY_REQUEST=0",
        "NVIDIA_GPU_MEMORY_LIMIT=1024",
    ]


def test_a_specification_that_was_written_anew_is_read_again(tmp_path: Path) -> None:
    """As after an update of NVIDIA's toolkit; one that is lost has no hook any more."""
    limits = LimitSpecifications(tmp_path, (tmp_path / "missing", tmp_path))
    nvidias, key = tmp_path / "nvidia.json", card_key(UUIDS[0])

    def hook_now() -> str | None:
        edits = limits.edits(1024, key, tmp_path / "bundle")
        [args] = [hook["args"] for hook in edits.get("hooks", ())] or [None]
        return args and args[4]

    assert hook_now() is None
    for place in ("/usr/bin/hook", "/opt/bin/hook"):
        hook = {"hookName": "createRuntime", "path": place, "args": ["x", HOOK]}
        devices = [{"name": UUIDS[0], "containerEdits": {"hooks": [hook]}}]
        nvidias.write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": devices}))
        limits.put("x.y", 1024, key, tmp_path / "bundle")
        assert hook_now() == place
    nvidias.unlink()
    assert hook_now() is None
