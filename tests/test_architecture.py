"""The law of the floors, and other rules that hold for the tree as a whole."""

import ast
import subprocess
import sys
import tarfile
from configparser import RawConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("gpushare", "extender", "deviceplugin", "gpusharectl")
GENERATED = ("_pb2", "_pb2_grpc")
DRAWERS = {"utils", "common", "misc", "manager", "handler", "info", "data", "helper"}


def sources() -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [path for path in found if not path.stem.endswith(GENERATED)]


def test_import_contracts_hold() -> None:
    """setup.cfg says who may import whom; import-linter agrees."""
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_drawers() -> None:
    """A room is named after what is in it."""
    assert not [path for path in sources() if path.stem in DRAWERS]


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_happens_on_import(path: Path) -> None:
    """A module's top level defines; it starts nothing and reads no environment.

    gunicorn's configuration is the exception: reading it is its import.
    """
    if path.name == "gunicorn_conf.py":
        return
    for node in ast.parse(path.read_text()).body:
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        loops = isinstance(node, ast.For | ast.While | ast.With)
        assert not is_call, f"{path}:{node.lineno} calls something"
        assert not loops, f"{path}:{node.lineno} does something"


def test_every_package_ships() -> None:
    """setup.cfg names every package that there is."""
    setup = RawConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = setup["options"]["packages"].split()
    for path in sources():
        if path.name == "__init__.py":
            assert ".".join(path.parent.relative_to(ROOT).parts) in named


def test_an_sdist_has_every_file(tmp_path: Path) -> None:
    """So it builds the image and runs these tests; MANIFEST.in says which go in."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is an sdist itself: there is nothing to hold it against")
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    there = {name for name in listed.splitlines() if (ROOT / name).exists()}
    # With an egg-info of its own: the checkout's would bring in what once was there.
    own = {"--global-option": ["--quiet", "egg_info", "--egg-base", str(tmp_path)]}
    program = (
        "from setuptools.build_meta import build_sdist; "
        f"build_sdist({str(tmp_path)!r}, {own!r})"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    assert there - packed == set()
