"""Reading a running cluster for a what-if: lists and single objects, never a write."""

from collections.abc import Sequence

from gpushare.domain.summary import users_words
from gpushare.kube.bookkeeper import UNFINISHED
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.objects import Ref
from gpusharectl.access import Access
from gpusharectl.inspection.sources import everything
from gpusharectl.simulator.live import LiveError, WhatIf, live_scenario
from gpusharectl.simulator.scenario import Scenario

_KINDS = {
    "deployment": ("apps/v1", "Deployment", "deployments.apps"),
    "statefulset": ("apps/v1", "StatefulSet", "statefulsets.apps"),
    "replicaset": ("apps/v1", "ReplicaSet", "replicasets.apps"),
    "job": ("batch/v1", "Job", "jobs.batch"),
    "pod": ("v1", "Pod", "pods"),
}
_MOST_MORE = 100_000
_WITH_KIND = 3


class Further:
    """So many more pods of a controller's template, as the command line names it."""

    def __init__(self, text: str) -> None:
        """Read ``edge/app=10``, or ``statefulset/edge/db=3``; ``LiveError``."""
        what, equals, number = text.rpartition("=")
        parts = what.split("/")
        kind = parts[0].lower() if len(parts) == _WITH_KIND else "deployment"
        wrong = f'"{users_words(text)}" names no pods'
        counts = number.isdecimal() and len(number) <= len(str(_MOST_MORE))
        if not equals or not counts or not 0 < int(number) <= _MOST_MORE:
            raise LiveError(
                f"{wrong}; give NAMESPACE/NAME=N, such as edge/app=10, with N of 1 to "
                f"{_MOST_MORE}"
            )
        if len(parts) not in (2, _WITH_KIND) or not all(parts):
            raise LiveError(
                f"{wrong}; give NAMESPACE/NAME=N for a Deployment, or KIND before it"
            )
        if kind not in _KINDS:
            raise LiveError(f"{wrong}; a kind is one of {', '.join(_KINDS)}")
        version, kind_name, self.resource = _KINDS[kind]
        self.ref = Ref(version, kind_name, parts[-1], parts[-2])
        self.number = int(number)


def read_live(
    access: Access, what: WhatIf, more: Sequence[Further], name: str
) -> Scenario:
    """Read the cluster once for a scenario; ``LiveError``, ``ClusterError``."""
    templates = [(str(_path(one)), _template(access, one), one.number) for one in more]
    nodes = list(everything(access.cluster, Kind.NODES))
    pods = list(everything(access.cluster, Kind.PODS, UNFINISHED))
    asked = WhatIf(what.add, what.drain, templates, what.afresh)
    return live_scenario(nodes, pods, asked, name)


def _path(one: Further) -> str:
    return f"{one.ref.namespace}/{one.ref.name}"


def _template(access: Access, one: Further) -> Json:
    found = access.objects.get(one.ref)
    if found is None:
        raise LiveError(f"there is no {one.ref}; kubectl get {one.resource} -A")
    template: Json = found if one.ref.kind == "Pod" else found["spec"]["template"]
    return template
