"""The first process of a node: it collects whatever dies there, and waits.

With its end the kernel ends every process of the node, which makes for a sure and
complete teardown, however the program that wanted the node came to its end.
"""

import os
import signal


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})


if __name__ == "__main__":
    main()
