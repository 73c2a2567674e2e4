"""Fixtures of these tests: what is compiled, and a container that has just started."""

from pathlib import Path

import pytest

from tests.isolation.build import (
    DRIVER,
    HERE,
    LIBRARY,
    build_driver,
    build_hog,
    build_launcher,
    build_library,
    compile_program,
    needs_compiler,
    places_in,
)
from tests.isolation.container import Container


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled, in one folder."""
    needs_compiler()
    folder = tmp_path_factory.mktemp("preload")
    points = ("-DVCUDA_POINTS", str(HERE / "points.c"))
    build_library(folder / LIBRARY, *places_in(folder), *points)
    build_driver(folder)
    build_hog(folder)
    compile_program(folder / "probe", "probe.c")
    build_launcher(folder)
    linked = ("-DLINKED", f"./{DRIVER}", f"-Wl,-rpath,{folder}")
    compile_program(folder / "linked", "probe.c", *linked)
    return folder


@pytest.fixture
def container(built: Path) -> Container:
    """A container that has just started; the region as the device plugin makes it."""
    found = Container(built)
    found.begin()
    return found
