"""A container with a share of the card: the library preloaded over the stand-in."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.isolation.build import LIBRARY

SHARE_MIB = 1024
OUT_OF_MEMORY, OPERATING_SYSTEM = 2, 304
UUID = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
LIMITS = f"vcuda-limits 1\ncard {UUID} {SHARE_MIB}\n"
FILL = ("fill", "cuMemAlloc_v2", "128")
HALF = ("alloc", "cuMemAlloc_v2", "512")
"""Words of the probe that take the whole share and half of it."""
FULL = f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"
HALF_FULL = f"cuMemAlloc_v2 4 {OUT_OF_MEMORY}"
REFUSED = f"cuMemAlloc_v2 0 {OPERATING_SYSTEM}"
"""What it prints for ``FILL``: the share, the other half, and nothing."""


@dataclass(frozen=True, slots=True)
class Container:
    """A folder with the programs, the limits and the region."""

    folder: Path
    ahead: str = ""
    """A library to preload before ours: the runtime of a sanitizer."""
    options: str = ""
    """Of that sanitizer."""

    @property
    def limits(self) -> Path:
        return self.folder / "limits"

    @property
    def region(self) -> Path:
        return self.folder / "region"

    @property
    def peak_mib(self) -> float:
        """The most that was held at once, as the stand-in saw it."""
        content = (self.folder / "card").read_bytes()
        return int.from_bytes(content[:8], sys.byteorder) / 2**20

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": f"{self.ahead} {self.folder / LIBRARY}".strip(),
            "LD_LIBRARY_PATH": str(self.folder),
            "PATH": "/usr/bin:/bin",
            "ASAN_OPTIONS": self.options,
            "TSAN_OPTIONS": self.options,
        }

    def begin(self) -> None:
        """Make the files as the device plugin does before each start of a container."""
        self.limits.write_text(LIMITS)
        for name in ("region", "card", "other", "pace"):
            path = self.folder / name
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        os.mkfifo(self.region)

    @contextmanager
    def start(
        self, *words: str, before: Sequence[str] = ()
    ) -> Iterator[subprocess.Popen[str]]:
        """Start the probe: a door, then commands; ``before`` is what starts it."""
        pipe = subprocess.PIPE
        probe = self.folder / ("linked" if words[0] in ("link", "next") else "probe")
        with subprocess.Popen(
            [*before, str(probe), *words],
            cwd=self.folder,
            env=self.environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ran(self, words: Sequence[str], **variables: str) -> tuple[str, str]:
        """Run some other program in it; what it says and complains of."""
        told = {**self.environment, **variables}
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=told,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout, done.stderr

    def said(self, *words: str) -> list[str]:
        """Run the probe to its end; its lines."""
        return self.both(*words)[0]

    def both(self, *words: str) -> tuple[list[str], str]:
        """The same, and its complaints."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err or out
        return out.splitlines(), err


@contextmanager
def racing(container: Container, many: int, *words: str) -> Iterator[list[str]]:
    """Start programs together; what each says first. All hold it until the last has."""
    with ExitStack() as running:
        started = [
            running.enter_context(container.start("dlsym", *words, "wait"))
            for _ in range(many)
        ]
        yield [each.stdout.readline() for each in started if each.stdout]
