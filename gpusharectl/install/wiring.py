"""Put together what the commands work with: the cluster, this host, the terminal."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console

from gpusharectl.access import Access, reach
from gpusharectl.inspection.drawing import draw
from gpusharectl.inspection.sources import look, with_quotas, with_webhook
from gpusharectl.inspection.survey import survey
from gpusharectl.install.flavour import Flavour
from gpusharectl.install.hands import Hands, Wish
from gpusharectl.install.manifests import load
from gpusharectl.install.podwaits import last_lines
from gpusharectl.install.progress import screen_for
from gpusharectl.install.schedulerwork import SchedulerHost
from gpusharectl.install.watching import Patience
from gpusharectl.scheduler.hostcertificates import HostCertificates
from gpusharectl.scheduler.hostfiles import FileChange, HostFiles
from gpusharectl.scheduler.k3s import K3sScheduler
from gpusharectl.scheduler.k3sfile import K3sFile
from gpusharectl.scheduler.kubeadm import KubeadmScheduler
from gpusharectl.scheduler.kubeadmfile import KubeadmFile
from gpusharectl.scheduler.schedulerjob import SchedulerJobs
from gpusharectl.scheduler.stanza import asked_of

_RESTARTED_WITHIN_S = 300.0


@contextmanager
def hands_on(
    kubeconfig: str | None, context: str | None, timeout_s: float
) -> Iterator[Hands]:
    """Reach the cluster and this host; ``CannotReachError`` where there is no way."""
    console = Console(highlight=False)
    # Rights are judged with all others, in one sentence.
    access = reach(kubeconfig, context, needs=())
    files = HostFiles()
    try:
        yield Hands(
            access.objects,
            files,
            screen_for(console),
            load,
            lambda wish: _host(access, files, wish),
            lambda wish: _others(access, wish),
            lambda wish: _certificates(files, wish),
            Patience(timeout_s),
            lambda: _inspect(access, console),
        )
    finally:
        access.close()


def _host(access: Access, files: HostFiles, wish: Wish) -> SchedulerHost:
    asked = asked_of(wish.version, tls=wish.tls, packs=wish.packs)
    if wish.flavour is Flavour.K3S:
        run = _run if wish.restart else None
        return K3sScheduler(files, access.objects, wish.node, asked, run)
    return KubeadmScheduler(files, access.objects, wish.node, asked)


def _others(access: Access, wish: Wish) -> SchedulerJobs:
    return SchedulerJobs(access.objects, wish.image, wish.version, wish.tls, wish.packs)


def _certificates(files: HostFiles, wish: Wish) -> Sequence[FileChange]:
    starter = K3sFile if wish.flavour is Flavour.K3S else KubeadmFile
    return HostCertificates(files, f"{starter.folder}/tls").planned(datetime.now(UTC))


def _inspect(access: Access, console: Console) -> None:
    picture = with_quotas(look(access, datetime.now(UTC)), access.objects)
    draw(console, survey(with_webhook(picture, access.objects)))


def _run(command: Sequence[str]) -> str:
    """Run a command of the host; give its last words where it failed."""
    try:
        ran = subprocess.run(  # noqa: S603
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=_RESTARTED_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (last_lines(ran.stderr) or "no reason given") if ran.returncode else ""
