"""The example of docs/bie.md, put together by the real kubectl as a reader would."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from deviceplugin.cards.inventory import read_inventory
from deviceplugin.exporter.settings import ExporterSettings
from tests.testbed.binaries import Binaries
from tests.testbed.manifests import FOLDER

pytestmark = pytest.mark.controlplane

DOCUMENT = FOLDER.parent / "docs" / "bie.md"


def examples() -> dict[str, str]:
    """The document's YAML, by the file name in the comment at its top."""
    blocks = re.findall(
        r"```yaml\n(# (\S+\.yaml).*?)```", DOCUMENT.read_text(), re.DOTALL
    )
    return {name: text for text, name in blocks}


def test_ones_own_accelerators(binaries: Binaries, tmp_path: Path) -> None:
    """The list of cards is where the exporter is told to look for it."""
    manifests = Path("../" * len(tmp_path.resolve().parts[1:])) / FOLDER.relative_to(
        "/"
    )
    for name, text in examples().items():
        (tmp_path / name).write_text(text.replace("manifests/", f"{manifests}/"))
    made = subprocess.check_output(
        [binaries.path("kubectl"), "kustomize", str(tmp_path)], text=True
    )
    found = {body["kind"]: body for body in yaml.safe_load_all(made)}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environment = {one["name"]: one.get("value", "edge-1") for one in container["env"]}
    settings, complaints = ExporterSettings.read(environment)
    assert complaints == []
    assert settings.inventory is not None
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in spec["volumes"]}
    source = volumes[mounts[str(settings.inventory.parent)]]["configMap"]["name"]
    assert source == found["ConfigMap"]["metadata"]["name"]
    assert list(found["ConfigMap"]["data"]) == [settings.inventory.name]
    cards = read_inventory(tmp_path / "inventory.yaml")
    assert isinstance(cards, tuple), cards
    used = Path(cards[0].used_mib_file or "")
    host = volumes["readings"]["hostPath"]["path"]
    # The same path inside, as the file says it.
    assert mounts[host] == "readings"
    assert used.is_relative_to(host)
