"""The plugin for krew: what its ``ValidatePlugin`` wants, and the archive it names."""

import re
import tarfile
from pathlib import Path

import yaml

from release.archives import sha256
from release.krew import MANIFEST, write_plugin


def test_the_manifest_names_its_archive(tmp_path: Path) -> None:
    """By address and sum; what krew links is in it, and may be executed."""
    program = tmp_path / "gpusharectl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    out = tmp_path / "out"
    out.mkdir()
    write_plugin(program, "1.2.3", "https://example.org/v1.2.3", 86400, out)
    manifest = yaml.safe_load((out / MANIFEST).read_text())
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["kind"] == "Plugin"
    assert manifest["metadata"]["name"] == Path(MANIFEST).stem == "vcuda"
    spec = manifest["spec"]
    assert spec["version"] == "v1.2.3"
    assert re.fullmatch(r"[^\n]{10,80}", spec["shortDescription"])
    (platform,) = spec["platforms"]
    address, _, name = platform["uri"].rpartition("/")
    assert address == "https://example.org/v1.2.3"
    assert platform["sha256"] == sha256(out / name)
    assert platform["selector"] == {"matchLabels": {"os": "linux", "arch": "amd64"}}
    with tarfile.open(out / name) as archive:
        (member,) = archive.getmembers()
    assert member.name == platform["bin"] == "kubectl-vcuda"
    assert member.mode == 0o755
