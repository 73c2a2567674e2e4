"""The image that ships, as a pod that may do as little as ours may."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.manifests import container, pod
from tests.cluster.seen import fails_inside, inside
from tests.cluster.site import Site
from tests.isolation.build import build_library
from tests.testbed.kubeadm.appimage import app_version
from tests.testbed.kubeadm.ociarchive import read_manifest
from tests.testbed.rest import Json

ROOT = Path(__file__).parents[2]
NAME = "image"
NOBODY = "65532"
MOST = 165_000_000
"""Bytes that the image may add to its base, as a node unpacks them."""
COMPILERS = ("gcc", "cc", "g++", "clang", "tcc", "ld", "as", "make")
AS_LITTLE = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def idle(whole_site: Site, app_image: str) -> Iterator[Site]:
    """A pod of the image that waits to be asked; it writes nowhere."""
    whole_site.create(restricted(NAME, app_image, "sleep infinity"))
    whole_site.wait_running(NAME)
    yield whole_site
    whole_site.clear()


def restricted(name: str, image: str, script: str) -> Json:
    asked = container(script=script, image=image, securityContext=AS_LITTLE)
    return pod(name, asked)


def python(site: Site, program: str) -> str:
    return inside(site, NAME, "python", "-c", program).strip()


def test_commands(idle: Site) -> None:
    """Each command of docs/architecture.md, "Processes", is there and starts."""
    said = f"gpusharectl, version {app_version()}"
    for command in ("gpusharectl", "kubectl-vcuda"):
        assert inside(idle, NAME, command, "--version").strip() == said
    modules = "extender.main, deviceplugin.command, gpusharectl.commands"
    assert python(idle, f"import {modules}; print('all')") == "all"
    assert "serve" in inside(idle, NAME, "python", "-m", "deviceplugin", "--help")
    assert "gunicorn" in inside(idle, NAME, "gunicorn", "--version")


def test_extender_comes_as_far_as_the_api_server(idle: Site) -> None:
    """gunicorn finds the settings and the application; no account was given here."""
    command = ("gunicorn", "--config", "python:extender.gunicorn_conf")
    words = fails_inside(
        idle, NAME, *command, "--check-config", "extender.main:build()"
    )
    assert "cannot connect to the API server with the pod's service account" in words


def test_nobody_in_particular(idle: Site) -> None:
    """Not root, and kubelet can see so by the number; nothing is writable."""
    assert inside(idle, NAME, "id", "-u").strip() == NOBODY
    assert inside(idle, NAME, "id", "-g").strip() == NOBODY
    for path in ("/file", "/tmp/file", "/opt/gpushare/file"):
        words = fails_inside(idle, NAME, "touch", path)
        assert "Read-only file system" in words


def test_commands_leave_nothing_in_memory(idle: Site) -> None:
    """/dev/shm, the one place where a pod of ours can write, stays empty."""
    inside(idle, NAME, "gpusharectl", "--help")
    assert inside(idle, NAME, "ls", "-A", "/dev/shm") == ""


def test_nothing_to_build_with(idle: Site) -> None:
    """No compiler, and no pip beside our own code; that code is compiled already."""
    found = python(
        idle, f"import shutil; print([n for n in {COMPILERS} if shutil.which(n)])"
    )
    assert found == "[]"
    words = fails_inside(idle, NAME, "python", "-m", "pip", "--version")
    assert "No module named pip" in words
    seen = python(idle, "import os, extender.main as m; print(m.__cached__)")
    inside(idle, NAME, "test", "-f", seen)


def test_every_file_of_ours_is_in_it(idle: Site) -> None:
    """What the checkout has as packages and manifests came along, each file."""
    packages = ("deviceplugin", "exporter", "extender", "gpushare", "gpusharectl")
    packages += ("manifests", "webhook")
    wanted = {
        str(path.relative_to(ROOT))
        for package in packages
        for pattern in ("*.py", "*.yaml")
        for path in (ROOT / package).rglob(pattern)
    }
    listing = (
        "import gpushare, pathlib; r = pathlib.Path(gpushare.__file__).parents[1]; "
        f"print(*[p.relative_to(r) for d in {packages} for p in (r / d).rglob('*')])"
    )
    assert wanted - set(python(idle, listing).split()) == set()


def test_the_preload_library_is_in_it(idle: Site, tmp_path: Path) -> None:
    """The same bytes as compiled here; anybody may read it, and programs load it."""
    library = tmp_path / "libvcuda.so.1"
    build_library(library)
    path = "/usr/lib/vcuda/libvcuda.so.1"
    wanted = hashlib.sha256(library.read_bytes()).hexdigest()
    assert inside(idle, NAME, "sha256sum", path).split()[0] == wanted
    assert inside(idle, NAME, "stat", "-c", "%a %U", path).strip() == "644 root"
    told = ("env", f"LD_PRELOAD={path}", "python", "-c", "print('fine')")
    assert inside(idle, NAME, *told) == "fine\n"


def test_what_is_installed_is_what_was_locked(idle: Site) -> None:
    """Each version of requirements/runtime.txt, whole, without the asyncio client."""
    program = (
        "import importlib.metadata as m; "
        "print(*[f'{d.name}=={d.version}' for d in m.distributions() "
        "if all(f.locate().exists() for f in d.files if f.suffix != '.pyc' "
        "and f.parts[:2] != ('kubernetes', 'aio'))])"
    )
    found = {line.lower().replace("_", "-") for line in python(idle, program).split()}
    text = (ROOT / "requirements/runtime.txt").read_text()
    locked = set(re.findall(r"(?m)^[\w.-]+==[^ ;\\]+", text))
    assert found == locked | {f"gpushare-vcuda=={app_version()}"}


def test_size(app_archive: Path) -> None:
    """The layers above the base's one, not compressed."""
    _base, *ours = read_manifest(app_archive)["layers"]
    assert all(layer["mediaType"].endswith(".tar") for layer in ours)
    assert 0 < sum(layer["size"] for layer in ours) < MOST
