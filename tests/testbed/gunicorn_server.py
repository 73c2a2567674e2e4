"""The extender or the webhook under gunicorn, over an API server in memory."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpushare.addresses import find_free_address
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.testbed.process import Launcher, Process
from tests.testbed.rest import Rest


@dataclass(frozen=True)
class GunicornServer:
    """One server that is ready; ``port`` is of the verbs or reviews."""

    process: Process
    port: int
    public: Rest


def command_of(package: str) -> tuple[str, ...]:
    """Return the command line of its manifest."""
    conf, build = f"python:{package}.gunicorn_conf", f"{package}.main:build()"
    return (sys.executable, "-m", "gunicorn", "--config", conf, build)


@contextmanager
def running_server(
    folder: Path,
    package: str,
    cluster: Embedded,
    settings: Mapping[str, str],
    *,
    options: Sequence[str] = (),
    command: Sequence[str] = (),
) -> Iterator[GunicornServer]:
    """Run it with these settings, without their prefix, and options of gunicorn.

    Its log is ``PACKAGE.log`` in the folder.
    """
    inner, public = find_free_address(), find_free_address()
    words = command or command_of(package)
    launcher = Launcher(folder)
    with ApiServerOnLoopback(cluster) as api:
        every = {
            "KUBECONFIG": str(api.kubeconfig(folder / "kubeconfig")),
            "LISTEN": str(inner),
            "PUBLIC_LISTEN": str(public),
            **settings,
        }
        environment = os.environ | {f"GPUSHARE_{k}": v for k, v in every.items()}
        process = launcher.start(
            package, (*words[:3], *options, *words[3:]), environment
        )
        rest = Rest(public.port, tls=False)
        try:
            process.wait_ready(lambda: rest.get("/readyz")[0] == 200)
            yield GunicornServer(process, inner.port, rest)
        finally:
            with suppress(ProcessLookupError):
                process.stop()
            launcher.end_all()
