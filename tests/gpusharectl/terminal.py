"""A program on its own terminal, 80 columns wide and 24 lines high."""

import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Terminal:
    """What the program writes is in ``said``, as far as it was read."""

    def __init__(self, command: Sequence[str]) -> None:
        self.ours, theirs = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
        environment |= {"COLUMNS": "80", "LINES": "24"}
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            # Whoever runs us in the background may have us ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        os.close(theirs)
        self.said = ""

    def read_until(self, words: str) -> None:
        """Read until it has said this; it may not end before."""
        assert self._read_until(words), self.said

    def send(self, what: str | signal.Signals) -> None:
        """Send keys, or a signal."""
        if isinstance(what, str):
            os.write(self.ours, what.encode())
        else:
            self.process.send_signal(what)

    def modes(self) -> list[object]:
        """Give the terminal's modes."""
        return termios.tcgetattr(self.ours)

    def echoes(self) -> bool:
        """Tell whether it shows the keys that are pressed."""
        return bool(termios.tcgetattr(self.ours)[3] & termios.ECHO)

    def end(self) -> int:
        """Read what is left, and give the exit code."""
        self._read_until("\0")
        return self.process.wait(60)

    def close(self) -> None:
        """Let nothing of it run on."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def _read_until(self, words: str) -> bool:
        """Tell whether it said them; if not, it has ended."""
        deadline = time.monotonic() + 60
        while words not in self.said:
            assert time.monotonic() < deadline, self.said
            if not select.select([self.ours], [], [], 1)[0]:
                continue
            try:
                self.said += os.read(self.ours, 65536).decode(errors="replace")
            except OSError:
                return False
        return True


def kubeconfig_for(server: str, path: Path) -> Path:
    """Write a kubeconfig for any server."""
    path.write_text(f"""
clusters: [{{name: a, cluster: {{server: "{server}"}}}}]
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
users: [{{name: a, user: {{token: t}}}}]
current-context: a
""")
    return path
