"""An image's parts, as buildah exports them, as one archive with a name."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.testbed.kubeadm.images import INDEX, MANIFEST
from tests.testbed.rest import Json


def write_oci_archive(parts: Path, name: str, path: Path) -> None:
    """Write what ``ctr images import`` takes; ``parts`` is a folder of ``dir:``."""
    manifest = (parts / "manifest.json").read_bytes()
    with tarfile.open(path, "w") as archive:
        _add(
            archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
        )
        _add(archive, "index.json", json.dumps(_index(name, manifest)).encode())
        _add(archive, _blob(_digest(manifest)), manifest)
        for part in _described(json.loads(manifest)):
            digest = str(part["digest"])
            archive.add(parts / digest.partition(":")[2], _blob(digest))


def read_manifest(path: Path) -> Json:
    """Read back what an archive's image is made of."""
    with tarfile.open(path) as archive:
        index = _read(archive, "index.json")
        found: Json = _read(archive, _blob(index["manifests"][0]["digest"]))
    return found


def _described(manifest: Json) -> list[Json]:
    """Give the configuration and each layer once, although two may be alike."""
    parts = [manifest["config"], *manifest["layers"]]
    return list({part["digest"]: part for part in parts}.values())


def _index(name: str, manifest: bytes) -> Json:
    described = {
        "mediaType": MANIFEST,
        "digest": _digest(manifest),
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": name},
    }
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(archive: tarfile.TarFile, name: str, text: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text)
    archive.addfile(entry, io.BytesIO(text))


def _read(archive: tarfile.TarFile, name: str) -> Json:
    file = archive.extractfile(name)
    assert file is not None
    found: Json = json.loads(file.read())
    return found
