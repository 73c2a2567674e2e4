"""What this host's own files say, where it is a control-plane node of the cluster."""

from collections.abc import Sequence

from gpushare.kube.cluster import Json
from gpusharectl.inspection.picture import Trouble
from gpusharectl.install.flavour import Flavour, flavour, this_node
from gpusharectl.install.nodeview import node_view
from gpusharectl.scheduler.hostfiles import HostFiles
from gpusharectl.scheduler.k3sfile import K3sFile
from gpusharectl.scheduler.kubeadmfile import KubeadmFile
from gpusharectl.scheduler.schedulerfiles import SchedulerFiles
from gpusharectl.scheduler.stanza import asked_of


def host_troubles(
    nodes: Sequence[Json], kubernetes: str, files: HostFiles, hostname: str = ""
) -> tuple[Trouble, ...]:
    """Say when somebody has undone what the installer did to this host's scheduler.

    Nothing on other hosts, on those of another cluster, and for users who may not read
    these files: pods tell nearly the same. ``kubernetes`` is the API server's version.
    """
    try:
        kind = flavour(files)
        if kind is Flavour.MANAGED:
            return ()
        node = this_node(files, kind, [node_view(one) for one in nodes], hostname)
        starter = K3sFile() if kind is Flavour.K3S else KubeadmFile()
        words = SchedulerFiles(files, starter, asked_of(kubernetes)).missing()
    except OSError:
        return ()
    if not node or not words:
        return ()
    return (Trouble(node, words, "gpusharectl install, on this host"),)
