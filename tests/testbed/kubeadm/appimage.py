"""Our own image for the clusters, built by the Dockerfile that ships.

Its base is Debian's Python, because a registry is nowhere to be had. All that is built
lies in the cache. ``ensure_app_image`` gives an archive, as ``Cluster`` takes it. The
first call takes minutes, one with other sources seconds.
"""

import hashlib
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from tests.testbed.binaries import drop_all_but_newest, only_builder
from tests.testbed.kubeadm.buildah import Buildah
from tests.testbed.kubeadm.debian import ensure_debian
from tests.testbed.kubeadm.machine import install_packages, why_not
from tests.testbed.kubeadm.ociarchive import write_oci_archive
from tests.testbed.toolchain import BinariesUnavailableError

ROOT = Path(__file__).parents[3]
BASE = "localhost/base:1"
BASE_DOCKERFILE = """\
FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
BUILDERS = tuple(
    Path(__file__).with_name(name)
    for name in ("appimage.py", "buildah.py", "debian.py", "ociarchive.py")
)
VERSION = "gpushare/__init__.py"
PRELOAD = "isolation/preload"
LIBRARY = "build/libvcuda.so.1"
"""What ``make image`` compiles before it calls the builder."""


def app_version(root: Path = ROOT) -> str:
    """Give the version that the image is tagged with."""
    (found,) = re.findall(r'__version__ = "(.+)"', (root / VERSION).read_text())
    return str(found)


def app_image_name(root: Path = ROOT) -> str:
    """Give the full name, which is what kubelet makes of ``gpushare:VERSION``."""
    return f"docker.io/library/gpushare:{app_version(root)}"


def ensure_app_image(cache: Path, root: Path = ROOT) -> Path:
    """Give an archive of our image, built now where no such one is in the cache.

    Raises ``BinariesUnavailableError`` where this machine cannot build images at all.
    """
    if obstacle := why_not():
        raise BinariesUnavailableError(*obstacle)
    folder = cache / "appimage"
    with only_builder(folder):
        archive = folder / f"app-{fingerprint(root)}.tar"
        if not archive.exists():
            install_packages()
            _build(folder, root, archive)
        # Its time tells which ones have been of no use for longest.
        archive.touch()
        drop_all_but_newest(folder.glob("app-*.tar"))
    return archive


def fingerprint(root: Path = ROOT) -> str:
    """Digest all that is sent to the builder, and how it is built."""
    digest = hashlib.sha256()
    told = [*BUILDERS, root / "Dockerfile", root / ".dockerignore"]
    # What is compiled before is known by its sources.
    told += sorted((root / PRELOAD).glob("*"))
    for path in [*told, *sent(root)]:
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def sent(root: Path) -> list[Path]:
    """List the sources that ``.dockerignore`` lets through."""
    lines = (root / ".dockerignore").read_text().splitlines()
    found: list[Path] = []
    for named in (root / line[1:] for line in lines if line.startswith("!")):
        if named == root / LIBRARY:
            continue
        found += [named] if named.is_file() else _sources(named)
    return sorted(found)


def _sources(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts
    ]


def _build(folder: Path, root: Path, archive: Path) -> None:
    started = time.monotonic()
    rootfs = ensure_debian(folder)
    print(f"building {app_image_name(root)} by the Dockerfile", flush=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="unfinished-") as unfinished:
        work = Path(unfinished)
        buildah = Buildah.ready(folder / f"storage-{rootfs.stem}", work)
        if not buildah.has(BASE):
            _build_base(buildah, rootfs, work / "base")
        _compile_library(root)
        buildah.build(root, app_image_name(root), _arguments(root))
        layers = work / "layers"
        buildah.export(app_image_name(root), layers)
        write_oci_archive(layers, app_image_name(root), work / "app.tar")
        (work / "app.tar").rename(archive)
    print(f"built {archive} in {time.monotonic() - started:.0f} s", flush=True)


def _build_base(buildah: Buildah, rootfs: Path, context: Path) -> None:
    context.mkdir()
    (context / "rootfs.tar").hardlink_to(rootfs)
    (context / "Dockerfile").write_text(BASE_DOCKERFILE)
    buildah.build(context, BASE, {})


def _compile_library(root: Path) -> None:
    script = root / PRELOAD / "build.sh"
    subprocess.run(["sh", script, root / LIBRARY], check=True)


def _arguments(root: Path) -> dict[str, str]:
    arguments = {"BASE": BASE, "VERSION": app_version(root)}
    if index := os.environ.get("PIP_INDEX_URL"):
        arguments["PIP_INDEX_URL"] = index
    return arguments
