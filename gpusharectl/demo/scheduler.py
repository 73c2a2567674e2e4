"""Stand in for kube-scheduler: node totals, filter, prioritize and bind.

It speaks to the extender as kube-scheduler does (contracts 1.1 to 1.6) and writes the
same events. Other plugins, priorities and preemption are left out.
"""

import http.client
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import chain
from threading import Event
from typing import Any

from gpushare.domain.model import NOTHING
from gpushare.kube import codec, names
from gpushare.kube.cluster import Cluster, Json, Kind, PodTarget
from gpushare.kube.codec import effective_request
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import card_capacity, is_terminal, name_of, node_of
from gpushare.kube.node_filters import find_lacks_in_sum
from gpushare.settings import Address

_EVERY_S = 0.05
_AGAIN_AFTER_S = 0.25
_TIMEOUT_S = 10.0
_MOST = 5000
_COMPONENT = "default-scheduler"


class StandInScheduler:
    """Schedules the pods of a small cluster, one after the other."""

    def __init__(self, cluster: Cluster, extender: Address) -> None:
        self._cluster = cluster
        self._extender = extender
        self._messages: dict[str, str] = {}

    def run(self, stop: Event) -> None:
        """Schedule until ``stop`` is set."""
        waited = 0.0
        while not stop.wait(_EVERY_S):
            waited += _EVERY_S
            pods, nodes = self._list(Kind.PODS), self._list(Kind.NODES)
            for pod in pods:
                known = pod["metadata"]["uid"] in self._messages
                if _is_pending(pod) and (not known or waited >= _AGAIN_AFTER_S):
                    self._schedule(pod, nodes, pods)
            if waited >= _AGAIN_AFTER_S:
                waited = 0.0

    def _list(self, kind: Kind) -> tuple[Json, ...]:
        return self._cluster.list_page(kind, limit=_MOST).items

    def _schedule(self, pod: Json, nodes: Iterable[Json], pods: Iterable[Json]) -> None:
        tried = {name_of(node): _lacks(pod, node, pods) for node in nodes}
        refused = {name: reasons for name, reasons in tried.items() if reasons}
        fitting = [name for name, reasons in tried.items() if not reasons]
        if fitting and codec.is_ours(pod):
            answer = self._ask("filter", _args(pod, fitting))
            failed = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
            refused |= {name: (reason,) for name, reason in failed.items()}
            fitting = answer["NodeNames"]
            if answer["Error"]:
                self._warn(pod, answer["Error"])
                return
        if not fitting:
            self._warn(pod, _diagnosis(refused))
            return
        self._bind(pod, self._best(pod, fitting))

    def _best(self, pod: Json, fitting: list[str]) -> str:
        """Return the node with the highest score; of equals the first by name."""
        if len(fitting) == 1 or not codec.is_ours(pod):
            return min(fitting)
        answer = self._ask("prioritize", _args(pod, fitting))
        scores = {score["Host"]: score["Score"] for score in answer}
        return min(fitting, key=lambda name: (-scores.get(name, 0), name))

    def _bind(self, pod: Json, node: str) -> None:
        target, error = PodTarget.of(pod), ""
        if codec.is_ours(pod):
            args = {"PodName": target.name, "PodNamespace": target.namespace}
            args |= {"PodUID": target.uid, "Node": node}
            error = self._ask("bind", args)["Error"]
        else:
            try:
                self._cluster.bind(target, node, {}, timeout_s=_TIMEOUT_S)
            except ClusterError as failure:
                error = str(failure)
        if error:
            self._warn(pod, error)
            return
        self._messages.pop(target.uid, None)
        where = f"{target.namespace}/{target.name}"
        message = f"Successfully assigned {where} to {node}"
        self._event(target, "Normal", "Scheduled", message)

    def _warn(self, pod: Json, message: str) -> None:
        """Write the event, once for as long as the message stays the same."""
        target = PodTarget.of(pod)
        if self._messages.get(target.uid) != message:
            self._messages[target.uid] = message
            self._event(target, "Warning", "FailedScheduling", message)

    def _event(self, pod: PodTarget, kind: str, reason: str, message: str) -> None:
        self._cluster.event(
            pod, kind=kind, reason=reason, message=message, component=_COMPONENT
        )

    def _ask(self, verb: str, args: Mapping[str, Any]) -> Any:  # noqa: ANN401
        link = http.client.HTTPConnection(
            self._extender.host, self._extender.port, timeout=_TIMEOUT_S
        )
        with closing(link):
            headers = {"Content-Type": "application/json"}
            path = f"{names.EXTENDER_PREFIX}/{verb}"
            link.request("POST", path, json.dumps(args), headers)
            answer = link.getresponse()
            body = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{verb} answered {answer.status}: {body.decode()}")
        return json.loads(body)


def _is_pending(pod: Json) -> bool:
    return (
        not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    )


def _args(pod: Json, names_: list[str]) -> dict[str, Any]:
    return {"Pod": pod, "Nodes": None, "NodeNames": names_}


def _lacks(pod: Json, node: Json, pods: Iterable[Json]) -> tuple[str, ...]:
    """Compare node totals as NodeResourcesFit does."""
    here = (bound_pod for bound_pod in pods if node_of(bound_pod) == name_of(node))
    counted = (
        effective_request(bound_pod) for bound_pod in here if not is_terminal(bound_pod)
    )
    return find_lacks_in_sum(
        effective_request(pod), card_capacity(node) - sum(counted, NOTHING)
    )


def _diagnosis(refused: Mapping[str, Iterable[str]]) -> str:
    """Write ``0/3 nodes are available: 1 …, 2 ….`` (contracts 1.6)."""
    counts = Counter(chain.from_iterable(refused.values()))
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items())
    listed = ": " + ", ".join(reasons) if reasons else ""
    return f"0/{len(refused)} nodes are available{listed}."
