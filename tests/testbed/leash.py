"""Run a command that the kernel ends together with the process that started it.

Usage: ``python leash.py PARENT_PID COMMAND [ARGUMENT ...]``. The command keeps this
process's pid. A script of its own, because a ``preexec_fn`` may hang in a program that
has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before prctl took hold: then no signal comes any more.
    if os.getppid() == parent:
        os.execvp(command[0], command)
    sys.exit(f"{command[0]}: the process that wanted it is gone")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
