"""What is installed: setup.cfg says what will do, requirements/ what is taken."""

import re
import tomllib
from configparser import RawConfigParser
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gpushare import __version__

ROOT = Path(__file__).parents[1]
LOCKED = ("build", "runtime", "executable", "dev")
PIN = re.compile(
    r"(?m)^([\w.-]+)(?:\[[\w,-]+\])?==([^ ;\\]+)[^\n]*\\\n((?: +--hash=[^\n]*\n)+)"
)
CURE = "run make lock"
PACKAGES = ("gpushare", "gpusharectl", "bench")
"""By name: while another test packs an sdist, a copy of all lies beside them."""
SHOWN = ("*.md", "docs/**/*.md", *(f"{name}/**/*.py" for name in PACKAGES))
INSTALLED = re.compile(r"(?:pip|pipx|uv tool) install (?:-[\w-]+ )*['\"]?([^\s'\"`]+)")


def pins(name: str) -> dict[str, str]:
    text = (ROOT / f"requirements/{name}.txt").read_text()
    return {found[1]: found[2] for found in PIN.finditer(text)}


def asked() -> list[tuple[str, Requirement]]:
    """List what is asked for, each with the file that must have it."""
    setup = RawConfigParser()
    setup.read(ROOT / "setup.cfg")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = {
        "build": project["build-system"]["requires"],
        "runtime": setup["options"]["install_requires"].splitlines(),
        "dev": setup["options.extras_require"]["dev"].splitlines(),
    }
    return [
        (name, Requirement(line))
        for name, found in lines.items()
        for line in found
        if line and not line.startswith("#")
    ]


@pytest.mark.parametrize(("name", "wanted"), asked(), ids=str)
def test_what_is_asked_is_pinned(name: str, wanted: Requirement) -> None:
    """A version that setup.cfg or pyproject.toml allows."""
    found = pins(name).get(re.sub(r"[-_.]+", "-", wanted.name).lower())
    assert found is not None, CURE
    assert wanted.specifier.contains(found), CURE


@pytest.mark.parametrize("name", LOCKED)
def test_each_line_is_a_pin_with_its_hashes(name: str) -> None:
    """So pip takes no file that was not seen; no registry is ours to name."""
    text = (ROOT / f"requirements/{name}.txt").read_text()
    rest = PIN.sub("", text).splitlines()
    assert [line for line in rest if not line.startswith("#")] == []
    assert "://" not in text
    assert pins(name)


def test_extras_are_pinned_by_name() -> None:
    """Else an older pip takes the newest `name[extra]`, and then refuses it."""
    lines = (ROOT / "requirements/dev.txt").read_text().splitlines()
    locked = pins("dev")
    wanted = [
        one
        for each in distributions()
        if re.sub(r"[-_.]+", "-", each.name).lower() in locked
        for one in map(Requirement, each.requires or [])
        if one.extras and (one.marker is None or one.marker.evaluate({"extra": ""}))
    ]
    assert wanted
    for one in wanted:
        names = ",".join(sorted(one.extras))
        assert any(line.startswith(f"{one.name}[{names}]==") for line in lines), CURE


def test_tests_run_on_what_the_image_has() -> None:
    """Each version of the image, and of what builds it, is the one of the tests."""
    assert (pins("runtime") | pins("build")).items() <= pins("dev").items(), CURE


@pytest.mark.parametrize("name", ["ruff", "mypy"])
def test_linters_are_exact(name: str) -> None:
    """With all rules on, a release can find what the last one did not."""
    (wanted,) = [one for _, one in asked() if one.name == name]
    assert [one.operator for one in wanted.specifier] == ["=="]


def test_only_the_checkout_is_installed() -> None:
    """Or a release's wheel: nothing is published, so a name is of others' packages."""
    wheel = f"gpushare_vcuda-{__version__}-py3-none-any.whl"
    for page in (path for shown in SHOWN for path in ROOT.glob(shown)):
        for found in INSTALLED.finditer(page.read_text()):
            here = (".", ".[bench]", wheel)
            assert found[1] in here, f"{page}: {found[0]}"


def test_generated_code_has_the_version_it_demands() -> None:
    """The floor is the one that kubelet's messages check on import."""
    floors = {one.name: one.specifier for name, one in asked() if name == "runtime"}
    for path in (ROOT / "gpushare/kube/proto").glob("*_pb2.py"):
        versions = re.findall(r"Protobuf Python Version: (\S+)", path.read_text())
        assert {f">={one}" for one in versions} <= set(map(str, floors["protobuf"]))
