"""How kubeadm starts kube-scheduler: the ``Starter`` that is its static pod. Pure."""

from gpusharectl.scheduler import staticpod
from gpusharectl.scheduler.obstacle import Obstacle
from gpusharectl.scheduler.schedulerpod import CURE, SchedulerPod
from gpusharectl.scheduler.starter import Found
from gpusharectl.scheduler.staticpod import Ours

_ABSENT = Obstacle(
    "is not there: this is no control-plane node that kubeadm has made; run "
    "gpusharectl install on one"
)


class KubeadmFile:
    """``Starter`` for ``/etc/kubernetes/manifests/kube-scheduler.yaml``."""

    path = "/etc/kubernetes/manifests/kube-scheduler.yaml"
    folder = "/etc/kubernetes/vcuda"
    cure = CURE

    def kubeconfig(self, bare: str | None) -> str:  # noqa: ARG002
        """Leave it to the flags, where kubeadm always names it."""
        return ""

    def edited(self, text: str | None, ours: Ours) -> str | Obstacle:
        """Give the manifest with our configuration."""
        return _ABSENT if text is None else staticpod.edited(text, ours)

    def bare(self, text: str | None, ours: Ours) -> str | Obstacle | None:
        """Give the manifest without it."""
        return None if text is None else staticpod.taken_out(text, ours)

    def is_edited(self, text: str | None, ours: Ours) -> bool:
        """Tell whether kube-scheduler is told to read our configuration."""
        return text is not None and staticpod.is_edited(text, ours)

    def found(self, bare: str | None) -> Found | Obstacle:
        """Tell its own configuration, as the host names it, and its flags."""
        pod = _ABSENT if bare is None else SchedulerPod.read(bare)
        if isinstance(pod, Obstacle):
            return pod
        config = pod.on_host(pod.config) if pod.config else ""
        return config if isinstance(config, Obstacle) else Found(config, pod.flags)
