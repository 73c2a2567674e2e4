"""The stub's parts: its library's symbols, nvidia-smi, and the CDI specification."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.machine import needs
from tests.nvml.build import STATE_VARIABLE, Stub, the_stub
from tests.nvml.driver import Marks, StubDriver, cdi_spec, stub_card, stub_driver

P4 = stub_card(0)
TITAN = stub_card(1, model="TITAN RTX")
SIZES = {
    "Memory": 24,
    "Memory_v2": 40,
    "Utilization": 8,
    "ProcessInfo_v2": 24,
    "ProcessUtilizationSample": 32,
    "ProcessesUtilizationInfo_v1": 24,
    "ProcessUtilizationInfo_v1": 40,
    "FieldValue": 40,
    "EventData": 32,
    "Temperature_v1": 12,
    "GpmMetric": 40,
    "GridLicensableFeatures_v4": 860,
}
NOT_ON_MIDDLE = {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"}
NOT_ON_OLD = {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMigMode"}


@pytest.fixture
def stub() -> Stub:
    return the_stub()


@pytest.fixture
def driver(tmp_path: Path) -> StubDriver:
    folder = tmp_path / "state"
    folder.mkdir()
    return StubDriver(folder, [P4, TITAN])


def smi(program: str | Path, *words: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [program, *words], env=environment, check=False, capture_output=True, text=True
    )
    return done.returncode, done.stdout


def exported(library: Path) -> set[str]:
    told = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {line.split()[-1] for line in told.splitlines()}


def test_older_drivers_lack_functions(stub: Stub) -> None:
    """And have all the others; nothing but NVML's own is exported."""
    new, middle, old = (
        exported(library)
        for library in (stub.library, stub.middle_library, stub.old_library)
    )
    assert new - middle > NOT_ON_MIDDLE
    assert middle - old > NOT_ON_OLD
    assert old < middle < new
    assert all(name.startswith("nvml") for name in new)


def test_a_lost_card_ends_every_wait(stub: Stub, tmp_path: Path) -> None:
    """Of the set that it is in, also after it was found; a set of others waits on."""
    with stub_driver(stub, tmp_path, [P4, TITAN]) as driver:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(place) for place in range(2)]
        both, other = pynvml.nvmlEventSetCreate(), pynvml.nvmlEventSetCreate()
        for handle, faults in (
            (handles[0], both),
            (handles[1], both),
            (handles[1], other),
        ):
            kind = pynvml.nvmlEventTypeXidCriticalError
            pynvml.nvmlDeviceRegisterEvents(handle, kind, faults)
        driver.lose(P4.uuid)
        driver.xid(TITAN.uuid, 48)
        assert pynvml.nvmlEventSetWait(both, 0).eventData == 48
        for _ in range(2):
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                pynvml.nvmlEventSetWait(both, 0)
            driver.find(P4.uuid)
            driver.xid(TITAN.uuid, 63)
        assert pynvml.nvmlEventSetWait(other, 0).eventData == 48
        pynvml.nvmlShutdown()


def test_layouts_have_nvmls_sizes(stub: Stub, tmp_path: Path) -> None:
    """A structure of another version is refused, as the driver refuses it."""
    with stub_driver(stub, tmp_path, [P4]):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        wrong = pynvml.c_nvmlTemperature_v1_t(version=0x200000C)
        code = pynvml.nvmlLib.nvmlDeviceGetTemperatureV(handle, ctypes.byref(wrong))
        assert code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        for name, size in SIZES.items():
            assert ctypes.sizeof(getattr(pynvml, f"c_nvml{name}_t")) == size
        pynvml.nvmlShutdown()


def test_a_variable_shows_no_card(stub: Stub, driver: StubDriver) -> None:
    """Only what was injected does; a user could set any variable."""
    visible = {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0"}
    state = {STATE_VARIABLE: str(driver.path)}
    needs(not Path("/dev/nvidia0").exists(), "a machine without cards", "use another")
    assert smi(stub.smi, "-L", **state, **visible) == (6, "No devices were found\n")


def edits(spec: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    devices = {device["name"]: device["containerEdits"] for device in spec["devices"]}
    return [spec["containerEdits"], *(devices[name] for name in names)]


def container(root: Path, spec: dict[str, Any], *names: str) -> Path:
    """A folder that holds what a container runtime would mount for these devices."""
    for edit in edits(spec, *names):
        for mount in edit.get("mounts", []):
            target = root / mount["containerPath"].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            host = Path(mount["hostPath"])
            if host.is_dir():
                shutil.copytree(host, target)
            else:
                shutil.copy(host, target)
        for node in edit.get("deviceNodes", []):
            target = root / node["path"].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            made = Path(node["hostPath"]).stat()
            os.mknod(target, made.st_mode, made.st_rdev)
    return root


def needs_root() -> None:
    needs(os.geteuid() == 0, "root, for chroot and mknod", "run as root")


@pytest.mark.parametrize("marks", ["markers", "nodes"])
def test_a_container_sees_its_cards_alone(
    stub: Stub, driver: StubDriver, tmp_path: Path, marks: Marks
) -> None:
    """Numbered from 0, whatever the node calls them."""
    needs_root()
    spec = cdi_spec(stub, driver.path, [P4, TITAN], tmp_path / "shown", marks)
    titan = f"GPU 0: TITAN RTX (UUID: {TITAN.uuid})\n"
    both = f"GPU 0: Tesla P4 (UUID: {P4.uuid})\n{titan.replace('0', '1', 1)}"
    for number, (names, wanted) in enumerate(
        [
            ([], (6, "No devices were found\n")),
            ([TITAN.uuid], (0, titan)),
            ([TITAN.uuid, P4.uuid], (0, both)),
            (["all"], (0, both)),
        ]
    ):
        root = container(tmp_path / f"container{number}", spec, *names)
        found = smi("chroot", str(root), "/usr/bin/nvidia-smi", "-L", PATH="/usr/sbin")
        assert found == wanted
