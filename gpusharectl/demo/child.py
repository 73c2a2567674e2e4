"""The real parts of the demo's cluster, each a child process with a log of its own."""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpushare.settings import PREFIX, Address

_STOP_WITHIN_S = 10.0
_LEASH = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
# We may have ended before prctl took hold: then no signal comes any more.
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the program that is asked, which the kernel then ends with us. Not by a
``preexec_fn``: that may hang in a process with threads."""


class CannotStartError(RuntimeError):
    """A part did not come up, or ended by itself; the message has its last words."""


class Child:
    """One of our own programs, run by the Python that runs us.

    On Linux it ends with the thread that makes it, however that ends.
    """

    def __init__(
        self,
        name: str,
        module: Sequence[str],
        settings: Mapping[str, str],
        log: Path,
    ) -> None:
        self.name = name
        self._log = log
        # What a user has set for a real extender is not meant for this one.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
        own = {PREFIX + name: value for name, value in settings.items()}
        command = [sys.executable, "-m", *module]
        if sys.platform == "linux":
            leash = [sys.executable, "-IS", "-c", _LEASH, str(os.getpid())]
            command = leash + command
        with log.open("wb") as words:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                env=kept | own,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for us: we stop the children when nobody asks them any more.
                start_new_session=True,
            )

    def runs(self) -> bool:
        """Tell whether it is still there."""
        return self._process.poll() is None

    def failure(self, what: str) -> CannotStartError:
        """Give the error that tells what it did, and its last words."""
        words = self._log.read_text(errors="replace").strip()
        return CannotStartError(f"the {self.name} {what}:\n{words}")

    def tell_to_end(self) -> None:
        """Ask it to end, and do not wait: several can end at the same time."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End it, and be sure that it ended."""
        self.tell_to_end()
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def fetched(address: Address, path: str) -> bytes | None:
    """Read a page; None where nobody answers, or not well."""
    link = http.client.HTTPConnection(address.host, address.port, timeout=1)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        return answer.read() if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        link.close()
