"""The plugin ``kubectl vcuda`` for krew: its archive, and the manifest that names it.

The rules are those of ``ValidatePlugin`` in krew's ``internal/index/validation``.
"""

from pathlib import Path
from string import Template

from release.archives import sha256, write_tar

_TEMPLATE = Path(__file__).with_name("krew.yaml")
MANIFEST = "vcuda.yaml"
"""krew wants the name of the plugin as the name of the file."""
PROGRAM = "kubectl-vcuda"


def write_plugin(
    executable: Path, version: str, url: str, epoch: int, folder: Path
) -> None:
    """Write archive and manifest; ``url`` is the folder from which krew will fetch."""
    archive = folder / f"{PROGRAM}-{version}-linux-amd64.tar.gz"
    write_tar(archive, {PROGRAM: executable}, epoch)
    filled = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        version=version, url=url, archive=archive.name, sha256=sha256(archive)
    )
    (folder / MANIFEST).write_text(filled, encoding="utf-8")
