"""Programs that do not use the card do not notice the library; some escape it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.isolation.build import compile_program
from tests.isolation.container import SHARE_MIB, Container
from tests.machine import needs
from tests.testbed.binaries import cache_folder
from tests.testbed.toolchain import BinariesUnavailableError, find_go, go_environment

CARD_MIB = 16384
GO = """package main
{linking}
func main() {{
	said := make(chan string)
	go func() {{ said <- "fine" }}()
	os.Stdout.WriteString(<-said + "\\n")
}}
"""
FORKS = "import os; pid = os.fork(); pid and os.waitpid(pid, 0); pid and print('fine')"
SPAWNS = (
    "import subprocess; print(subprocess.check_output(['echo', 'fine'], text=True)[:4])"
)
THREADS = (
    "import threading, os; "
    "all_ = [threading.Thread(target=lambda: os.system('true')) for _ in range(8)]; "
    "[t.start() for t in all_]; [t.join() for t in all_]; print('fine')"
)


@pytest.mark.parametrize(
    "words",
    [
        ["bash", "-c", "echo fine | cat"],
        ["bash", "-c", "exec bash -c 'echo $(echo fine)'"],
        ["bash", "-c", "exec 2>&-; echo fine"],
        [sys.executable, "-c", "print('fine')"],
        [sys.executable, "-c", FORKS],
        [sys.executable, "-c", SPAWNS],
        [sys.executable, "-c", THREADS],
    ],
    ids=["pipe", "exec", "no stderr", "python", "fork", "spawn", "threads"],
)
def test_other_programs_do_not_notice_it(
    container: Container, words: Sequence[str]
) -> None:
    """Also where its files are missing."""
    container.limits.unlink()
    container.region.unlink()
    assert container.ran(words) == ("fine\n", "")


WRAPS_MALLOC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>
static void *(*next)(size_t);
void *malloc(size_t size) {
    if (!next)
        next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    return next(size);
}
__attribute__((destructor)) static void end(void) {
    if (next && next != malloc && write(1, "wrapped\n", 8) != 8)
        _exit(1);
}
"""


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_other_preloaded_libraries_find_the_next_function(
    container: Container, tmp_path: Path, first: str
) -> None:
    """``RTLD_NEXT`` means what comes after the library that asks, not after ours."""
    (tmp_path / "wrap.c").write_text(WRAPS_MALLOC)
    flags = ("-shared", "-fPIC")
    compile_program(tmp_path / "wrap.so", str(tmp_path / "wrap.c"), *flags)
    both = [container.environment["LD_PRELOAD"], str(tmp_path / "wrap.so")]
    preload = " ".join(both if first == "ours" else reversed(both))
    words = [sys.executable, "-c", "print('fine')"]
    assert container.ran(words, LD_PRELOAD=preload) == ("fine\nwrapped\n", "")


@pytest.fixture(scope="module")
def go() -> Path:
    try:
        return find_go((1, 21), cache_folder(os.environ))
    except BinariesUnavailableError as error:
        needs(False, error.reason, error.cure)
        raise


@pytest.mark.parametrize("linking", ["dynamic", "static"])
def test_go_does_not_notice_it(
    container: Container, go: Path, tmp_path: Path, linking: str
) -> None:
    """Its runtime makes system calls and threads by itself, with cgo and without."""
    dynamic = linking == "dynamic"
    wanted = 'import "C"\nimport "os"' if dynamic else 'import "os"'
    (tmp_path / "main.go").write_text(GO.format(linking=wanted))
    told = {**go_environment(go), "CGO_ENABLED": "1" if dynamic else "0"}
    words = [go, "build", "-o", tmp_path / "program", tmp_path / "main.go"]
    subprocess.run(words, env=told, cwd=tmp_path, check=True)
    assert container.ran([str(tmp_path / "program")]) == ("fine\n", "")


def test_a_static_program_is_not_held(container: Container, tmp_path: Path) -> None:
    """As docs/isolation.md says: nothing can be preloaded into it."""
    both = ("-DLINKED", str(Path(__file__).with_name("standin.c")), "-static")
    compile_program(tmp_path / "static", "hog.c", *both)
    said, _ = container.ran([str(tmp_path / "static"), "64"])
    assert said.splitlines()[-1] == f"held {CARD_MIB} MiB, refused with 2"
    said, _ = container.ran([str(container.folder / "hog"), "64"])
    assert said.splitlines()[-1] == f"held {SHARE_MIB} MiB, refused with 2"
