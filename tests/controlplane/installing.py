"""A real API server that an installer with the webhook is let loose on, and cleaned."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

from gpushare.kube import names
from gpushare.kube.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.facts import OURS, SYSTEM
from gpushare.kube.objects import Ref
from tests.gpusharectl.install.installed_cluster import (
    KINDS,
    WEBHOOKS_KINDS,
    InstalledCluster,
)
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import sweep
from tests.testbed.operators import CERT_MANAGER, forget_kinds

ALL_KINDS = (*KINDS, *WEBHOOKS_KINDS)
_ACCOUNTS = ("extender", "device-plugin", "exporter", "webhook")


class Answered(ApiObjects):
    """An API server that gets through to the webhook, of which there is no process.

    Only in the installer's own trial; with ``lost`` it is the real one that answers.
    """

    lost = False

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        if self.lost or not dry_run:
            return super().create(body, dry_run=dry_run)
        answered: Json = deepcopy(body)
        (container,) = answered["spec"]["containers"]
        container["resources"]["limits"][names.CORE] = "1"
        return answered


@contextmanager
def installing(plane: ControlPlane) -> Iterator[Answered]:
    """Connect as an administrator, and leave nothing behind."""
    kubeconfig = plane.kubeconfig(plane.admin.token, "installer")
    found = Answered.connect(str(kubeconfig))
    yield found
    # The webhook's first, which would keep pods from being made.
    for api_version, kind in reversed(ALL_KINDS):
        for body in found.list(api_version, kind, label_selector=OURS):
            found.delete(Ref.of(body), grace_period_s=0)
    forget_kinds(found, CERT_MANAGER)
    sweep(plane.rest)
    found.close()


def bare(objects: Answered, folder: Path) -> InstalledCluster:
    """A cluster of two nodes that knows nothing of us."""
    for name in _ACCOUNTS:
        objects.delete(Ref("v1", "ServiceAccount", f"gpushare-{name}", SYSTEM))
    return InstalledCluster(objects, folder).populate()


def there(world: InstalledCluster, ref: Ref) -> Json:
    body = world.objects.get(ref)
    assert body is not None, ref
    return body
