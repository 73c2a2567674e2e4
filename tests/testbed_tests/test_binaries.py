"""Where binaries are kept, how they are named, and which Go builds them."""

from pathlib import Path

import pytest

from tests.testbed.binaries import CONTROL_PLANE, MODULE, build_flags, cache_folder
from tests.testbed.toolchain import wanted_go


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"GPUSHARE_TESTBED_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/gpushare-testbed")),
        ({}, Path.home() / ".cache" / "gpushare-testbed"),
    ],
    ids=["ours", "xdg", "home"],
)
def test_cache_folder(environment: dict[str, str], folder: Path) -> None:
    """Our own variable wins, then the desktop standard's, then the home folder."""
    assert cache_folder(environment) == folder


def test_every_tool_stands_in_go_mod() -> None:
    """go.mod's tool block is what makes a package buildable."""
    go_mod = (MODULE / "go.mod").read_text()
    assert all(f"\t{tool.package}\n" in go_mod for tool in CONTROL_PLANE)
    assert CONTROL_PLANE[0].built_as == "server"


def test_version_comes_from_go_mod() -> None:
    """One number, typed once."""
    go_mod = "go 1.26.0\nrequire (\n\tk8s.io/kubernetes v1.2.3\n)\n"
    assert wanted_go(go_mod) == (1, 26, 0)
    assert build_flags(go_mod)[-1].endswith("gitVersion=v1.2.3")
