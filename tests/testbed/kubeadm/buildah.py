"""buildah with everything of its own in one folder."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

CERTIFICATES = "/etc/ssl/certs"
STATE = "/var/lib/containers"
# In a mount namespace of its own: what buildah mounts vanishes with it, and so does
# what it remembers of layers, which no flag can send elsewhere.
PRIVATE = f'mount -t tmpfs tmpfs {STATE} && exec "$@"'
MANY = 500
"""Images after which a store begins anew; each build leaves about nine."""


@dataclass(frozen=True)
class Buildah:
    """One store of images; ``work`` is for what a build leaves half done."""

    store: Path
    driver: str
    work: Path

    @classmethod
    def ready(cls, store: Path, work: Path) -> Self:
        """Give it with a driver that works here and a store not too full."""
        for other in store.parent.glob("storage-*"):
            if other != store or _crowded(other):
                shutil.rmtree(other)
        made = cls(store, "overlay", work)
        if made._run("info").returncode != 0:
            # Without layers to share, so that each build is a whole one.
            shutil.rmtree(store, ignore_errors=True)
            made = cls(store, "vfs", work)
        made._must("rm", "--all")
        return made

    def has(self, image: str) -> bool:
        return self._run("inspect", "--type", "image", image).returncode == 0

    def build(self, context: Path, name: str, arguments: Mapping[str, str]) -> None:
        """Build an image by the context's Dockerfile, in the machine's own network."""
        told = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        if Path(CERTIFICATES).is_dir():
            # The machine's own, because it may have to trust more than Debian does.
            told.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
        layers = "true" if self.driver == "overlay" else "false"
        how = ["--network=host", "--timestamp=0", f"--layers={layers}", "--quiet"]
        self._must("bud", *how, *told, f"--tag={name}", str(context))

    def export(self, image: str, folder: Path) -> None:
        """Write an image's parts as files, layers not compressed."""
        # Compressing takes longer than all else, and is undone at once by each node.
        self._must("push", "--quiet", "--disable-compression", image, f"dir:{folder}")

    def _must(self, *words: str) -> None:
        done = self._run(*words)
        if done.returncode != 0:
            last_words = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
            raise RuntimeError(
                f"buildah {words[0]} failed (its store is {self.store}):\n{last_words}"
            )

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        store = [f"--root={self.store}/root", f"--runroot={self.store}/run"]
        buildah = ["buildah", *store, f"--storage-driver={self.driver}", *words]
        alone = ["unshare", "--mount", "--propagation=private", "sh", "-c", PRIVATE]
        told = {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self.work)}
        with _place_for_state():
            return subprocess.run(
                [*alone, "sh", *buildah],
                env={**os.environ, **told},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )


@contextmanager
def _place_for_state() -> Iterator[None]:
    """Have the folder to mount on for as long as it is needed, one process at a time.

    One that is removed under a mount takes the mount with it.
    """
    above = os.open(Path(STATE).parent, os.O_RDONLY)
    try:
        fcntl.flock(above, fcntl.LOCK_EX)
        there = Path(STATE).is_dir()
        Path(STATE).mkdir(exist_ok=True)
        try:
            yield
        finally:
            if not there:
                Path(STATE).rmdir()
    finally:
        os.close(above)


def _crowded(store: Path) -> bool:
    vfs = store / "root" / "vfs-images"
    return vfs.exists() or len(list(store.glob("root/overlay-images/*"))) > MANY
