"""Files as a kernel's driver shows them; reading one may hang."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DriverFiles:
    """A folder of files; each may be written anew."""

    root: Path

    def write(self, name: str, text: object) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def hang(self, name: str) -> None:
        """Let who opens it wait; ``let_go`` ends that."""
        (self.root / name).unlink(missing_ok=True)
        os.mkfifo(self.root / name)

    def let_go(self, name: str) -> None:
        # Only this opening never waits itself; closing it ends the reader's file.
        os.close(os.open(self.root / name, os.O_RDWR | os.O_NONBLOCK))
