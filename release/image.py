"""The image of a release, as an archive that ``ctr images import`` takes."""

import json
import os
import platform
import shutil
from pathlib import Path
from urllib.parse import quote

from release.archives import files_in, write_tar
from release.commit import Tree
from release.sbom import Package, read_image, write_bill

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_EMULATION = Path("/proc/sys/fs/binfmt_misc")


def cannot_build(architecture: str) -> str:
    """Return why this machine builds no image for an architecture; empty if it does."""
    if not (machine := _MACHINES.get(architecture)):
        return f"unknown; there are {' and '.join(_MACHINES)}"
    if not shutil.which("buildah"):
        return "missing: buildah; cure: apt-get install buildah"
    if platform.machine() == machine:
        return ""
    if architecture == "amd64":
        return "the preload library is compiled on x86-64 only; cure: build it there"
    if (_EMULATION / f"qemu-{machine}").exists():
        return ""
    return f"missing: emulation of {machine}; cure: apt-get install qemu-user-static"


def build_image(tree: Tree, version: str, architecture: str, folder: Path) -> None:
    """Write the archive of an image and its bill of materials.

    Nothing is taken from layers that were built before. Raises ``StepFailedError``.
    """
    # A name of its own: gpushare:VERSION may be an image of other sources, and another
    # release may be built at the same time.
    name = f"localhost/gpushare-release:{tree.folder.parent.name}-{architecture}"
    flags = os.environ.get("BUILD_FLAGS", "")
    flags += f" --no-cache --platform=linux/{architecture}"
    tree.run("make", "image", f"IMAGE={name}", f"BUILD_FLAGS={flags}")
    layout = tree.folder.with_name(f"image-{architecture}")
    # The name that containerd gives to gpushare:VERSION.
    full = f"docker.io/library/gpushare:{version}"
    try:
        tree.run("buildah", "push", "--quiet", name, f"oci:{layout}:{full}")
    finally:
        tree.run("buildah", "rmi", name)
    stem = f"gpushare-image-{version}-{architecture}"
    write_tar(folder / f"{stem}.tar", files_in(layout), tree.commit.epoch)
    digest, layers = _manifest(layout)
    purl = f"pkg:oci/gpushare@{quote(digest)}?arch={architecture}&tag={version}"
    about, parts = Package(purl, "gpushare", version), read_image(layers)
    write_bill(folder / f"{stem}.cdx.json", about, parts, tree.commit)
    shutil.rmtree(layout)


def _manifest(layout: Path) -> tuple[str, list[Path]]:
    """Return the digest and the layers of an image that is a folder of the OCI's."""

    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    index = json.loads((layout / "index.json").read_text(encoding="utf-8"))
    digest = index["manifests"][0]["digest"]
    manifest = json.loads(blob(digest).read_text(encoding="utf-8"))
    return digest, [blob(layer["digest"]) for layer in manifest["layers"]]
