"""What we ship, as it is shipped: tests run with those rights and that stanza."""

from pathlib import Path

import yaml

from tests.testbed.rest import Json

FOLDER = Path(__file__).parents[2] / "manifests"


def shipped(name: str) -> Json:
    """Read a manifest of one document."""
    manifest: Json = yaml.safe_load((FOLDER / name).read_text())
    return manifest
