"""Container images without a registry: one-layer OCI archives, written by Python."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.rest import Json

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
# Not compressed, because it is read again at once, on the same disk.
LAYER = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# kubeadm's static pods are started by names without a path.
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """An image of single files: ``files`` says which file lies where inside."""

    names: tuple[str, ...]
    files: Mapping[str, Path]
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ("tmp",)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


def write_archive(image: Image, path: Path) -> None:
    """Write the image so that ``ctr images import`` takes it, under all its names."""
    layer = _layer(image)
    config = _json(_config(image, layer))
    manifest = _json(_manifest(config, layer))
    index = _json(_index(image.names, manifest))
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", index)
        for blob in (manifest, config, layer):
            _add(archive, f"blobs/sha256/{_sha256(blob)}", blob)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in _folders(image):
            entry = _entry(folder, 0o1777 if folder == "tmp" else 0o755)
            entry.type = tarfile.DIRTYPE
            layer.addfile(entry)
        for inside, source in sorted(image.files.items()):
            _add(layer, inside.lstrip("/"), source.read_bytes(), 0o755)
        for inside, target in sorted(image.links.items()):
            entry = _entry(inside.lstrip("/"), 0o777)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            layer.addfile(entry)
    return buffer.getvalue()


def _folders(image: Image) -> Sequence[str]:
    """Give every folder that is needed, each after those that hold it."""
    leaves = [*image.folders]
    leaves += [
        str(Path(inside.lstrip("/")).parent) for inside in (*image.files, *image.links)
    ]
    wanted = {leaf for leaf in leaves if leaf != "."}
    for leaf in list(wanted):
        wanted |= {str(above) for above in Path(leaf).parents if str(above) != "."}
    return sorted(wanted)


def _config(image: Image, layer: bytes) -> Json:
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Env": [PATH, *image.env],
            "Entrypoint": list(image.entrypoint),
            "Cmd": list(image.command),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha256(layer)}"]},
    }


def _manifest(config: bytes, layer: bytes) -> Json:
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _described(CONFIG, config),
        "layers": [_described(LAYER, layer)],
    }


def _index(names: Sequence[str], manifest: bytes) -> Json:
    described = [
        {
            **_described(MANIFEST, manifest),
            "annotations": {"io.containerd.image.name": name},
        }
        for name in names
    ]
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": described}


def _described(kind: str, blob: bytes) -> Json:
    return {"mediaType": kind, "digest": f"sha256:{_sha256(blob)}", "size": len(blob)}


def _add(archive: tarfile.TarFile, name: str, text: bytes, mode: int = 0o644) -> None:
    entry = _entry(name, mode)
    entry.size = len(text)
    archive.addfile(entry, io.BytesIO(text))


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    """Give an entry that is the same whoever writes it and whenever."""
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    return entry


def _json(content: Json) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _sha256(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
