"""How processes begin, run threads and end."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Thread
from typing import NoReturn

import click

from gpushare import logs
from gpushare.addresses import why_not_listen
from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.errors import ClusterError
from gpushare.settings import Address

logger = logging.getLogger(__name__)

Loop = Callable[[Event], None]
_LOOK_S = 1.0


def connect_api_server(
    kubeconfig: str | None, complaints: list[str]
) -> ApiServer | None:
    """Return the API server's client; None, and a complaint, if there is none."""
    try:
        return ApiServer.connect(kubeconfig)
    except ClusterError as error:
        complaints.append(
            f"GPUSHARE_KUBECONFIG: {error}; give the path of a kubeconfig, or run in a "
            "pod with a service account"
        )
        return None


def try_to_listen(name: str, address: Address, complaints: list[str]) -> None:
    """Complain if the address of a setting cannot be listened on."""
    if taken := why_not_listen(address):
        complaints.append(
            f"GPUSHARE_{name}: cannot listen on {address} ({taken}); "
            "end what has it, or give another host:port"
        )


def exit_with_complaints(complaints: Sequence[str], program: str = "") -> None:
    """Exit with all complaints, if there are any, below what cannot start."""
    if not complaints:
        return
    if program:
        click.echo(f"The {program} cannot start:", err=True)
    for complaint in complaints:
        click.echo(f"  {complaint}" if program else complaint, err=True)
    sys.exit(1)


def begin_process(log_level: str, log_format: logs.LogFormat) -> Event:
    """Configure the log; return the event that SIGTERM and Ctrl-C set."""
    logs.configure_logs(log_level, log_format)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


def start_threads(loops: Iterable[tuple[str, Loop]], stop: Event) -> list[Thread]:
    """Start a daemon thread of each name; its loop returns once ``stop`` is set."""
    threads = [
        Thread(target=loop, args=(stop,), name=name, daemon=True)
        for name, loop in loops
    ]
    for thread in threads:
        thread.start()
    return threads


def wait_for_end(threads: Sequence[Thread], stop: Event) -> bool:
    """Wait for ``stop``, or for a thread that ended before it; then return True.

    Half a process would look alive to probes; a new one is complete.
    """
    while not stop.wait(_LOOK_S):
        dead = [thread.name for thread in threads if not thread.is_alive()]
        # A thread may end because ``stop`` was set since.
        if dead and not stop.is_set():
            logger.error("a thread ended", extra={"threads": ", ".join(dead)})
            return True
    return False


def start_or_end_process(name: str, target: Callable[[], None]) -> None:
    """Start a thread that ends with the process, and ends the process if it fails.

    Without it the ledger would no longer follow the cluster. gunicorn then starts a new
    worker, which reads everything again.
    """

    def run() -> None:
        try:
            target()
        except Exception:
            logger.exception(
                "thread failed; the worker process exits and gunicorn starts a new one",
                extra={"thread_name": name},
            )
            os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=run, name=name, daemon=True).start()


def end_process(status: int) -> NoReturn:
    """End the process at once, with all its threads."""
    logging.shutdown()
    # Not with sys.exit: threads that wait for the API server would be stopped inside
    # native code, and abort the process.
    os._exit(status)
