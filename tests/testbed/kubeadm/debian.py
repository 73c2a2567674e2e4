"""Debian's Python as the root of an image, made of packages alone."""

import hashlib
import subprocess
import tempfile
import time
from pathlib import Path

from tests.testbed.toolchain import BinariesUnavailableError

SUITE = "bookworm"
PACKAGES = ("python3", "python3-pip", "ca-certificates")
# Nobody reads them in a container, and every node unpacks what is there.
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
# Only packages being set up need Perl's modules; pip brings them, a fifth of all.
NEEDED_BEFORE = '"$1"/usr/share/perl "$1"/usr/lib/*/perl "$1"/usr/lib/*/gconv'
COMMAND = (
    *("mmdebstrap", "--quiet", "--variant=minbase"),
    f"--include={','.join(PACKAGES)}",
    *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
    f"--customize-hook=rm -r {NEEDED_BEFORE}",
    SUITE,
)


def ensure_debian(folder: Path) -> Path:
    """Give a tar of the root file system, made now (half a minute) where it is not.

    Raises ``BinariesUnavailableError`` where the packages cannot be had.
    """
    name = hashlib.sha256("\n".join(COMMAND).encode()).hexdigest()[:12]
    rootfs = folder / f"debian-{name}.tar"
    if not rootfs.exists():
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder, prefix="unfinished-") as work:
            made = Path(work) / "rootfs.tar"
            _make(made, Path(work))
            made.rename(rootfs)
        print(f"made {rootfs} in {time.monotonic() - started:.0f} s", flush=True)
    return rootfs


def _make(path: Path, work: Path) -> None:
    # Its mounts vanish with the namespace, however it ends: nothing that clears up
    # after it may wander through them into the machine.
    alone = ["unshare", "--mount", "--propagation=private"]
    done = subprocess.run(
        [*alone, "env", f"TMPDIR={work}", *COMMAND, path],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last_words = done.stderr.strip().splitlines()[-3:]
        raise BinariesUnavailableError(
            f"mmdebstrap could not make Debian's Python: {' '.join(last_words)}",
            "let apt reach Debian's packages",
        )
