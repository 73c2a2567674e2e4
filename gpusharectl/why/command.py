"""``gpusharectl why``: why a pod waits, or why it is on its card.

As data its shape is a promise, as inspect's. Always ``{v, state, pod, code, warnings,
books}``: ``code`` is the exit code, ``pod`` is ``namespace/name``, and ``warnings`` are
sentences about annotations of the pod without a meaning, and about quotas of its
namespace that count nothing or are not known. Beside it, by ``state``::

    absent        suggestions: [namespace/name]; near, its old name
    asks-nothing  phase, node
    ended         phase, node, because
    invalid       because, node
    unplaced      asks, node, complaint, waits
    placed        asks, node, cards: [{uuid, index, model, cores, units, memory_mib}],
                  at, policy, own_policy, models, uuids, planned: [uuid], is_planned,
                  because, earlier: [{uuid, index, because}], phase, leaving, waits,
                  isolation: the tier with which it started; null: none or not known
    pending       asks, claims: [amount], policy, models, uuids, since, because,
                  kube_scheduler, scheduler_name, nominated, never, next, steps: [text],
                  evicts, ways_of, fits_in_sum: {node, cores, units, memory_mib},
                  nodes: [{name, fits, barred, because, fits_now,
                  cards: [{uuid, index, model, units, memory_mib, healthy, cordoned,
                  reason: why it is not healthy,
                  free, missing, untouched, fits, ever, excluded_by}]}],
                  ways: [{node, card, index, pods: [{namespace, name, uid, priority,
                  cores, units, memory_mib}]}]
    by-claims     node, phase, claims: [{name, allocated, because,
                  room: [card of node], refusals: [text], not_judged: [text]}],
                  not_judged: [text], kube_scheduler

``fits_now`` is ``{shares: [amount], whole_cards, whole_units}``: the largest requests
that fit on the node. ``barred`` is why the pod may not use the node whatever is free
there: labels or taints. ``never``: the pod would wait even if all cards were empty and
open. Each of ``steps`` would help alone; ``next`` is all of them. ``missing`` is null
for a closed card, or if whole cards are requested. ``models`` and ``uuids`` limit the
cards of the pod, null if it has no such limit; ``excluded_by`` are the annotations that
exclude the card. ``fits_in_sum`` is a node that has enough in all, while no card has,
so that no autoscaler adds a node; null if there is none. ``ways`` are pods to delete to
make room; they were looked for on the ``ways_of`` nearest cards or nodes. ``evicts``:
kube-scheduler may preempt pods for the pod's cards.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches

import click

from gpushare.kube import codec
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import NotFound
from gpushare.kube.facts import full_name
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import (
    complete_pods,
    parse_pod_name,
    pod_namespace_option,
)
from gpusharectl.output import VERSION, data_option, open_console, print_data
from gpusharectl.state.read import Trouble, list_all, read_quotas, read_state
from gpusharectl.state.troubles import check_quotas
from gpusharectl.why.answers import encode_answer
from gpusharectl.why.claims import explain_claims
from gpusharectl.why.explain import explain_pod
from gpusharectl.why.render import draw_answer

_CODES = (
    "Exit codes: 0 the pod holds its card, requests none, or has ended; 3 it waits, "
    "can never run, or its card is not known; 1 there is no such pod, or the cluster "
    "could not be read; 2 wrong command line."
)


@click.command(epilog=_CODES)
@pod_namespace_option
@data_option
@click.option(
    "-v", "--verbose", is_flag=True, help="Show all cards, and where this is read."
)
@access_options
@click.argument("pod", shell_complete=complete_pods)
def why(
    *,
    pod: str,
    namespace: str | None,
    output: str | None,
    verbose: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Explain why POD waits, or why it is on its card.

    POD is a name, or NAMESPACE/NAME. For a pod that waits: what each card lacks, what
    would fit now, and which pods would have to be deleted.
    """
    place, name = parse_pod_name(pod, namespace)
    with reached(kubeconfig, context) as access:
        try:
            body = access.cluster.get(Kind.PODS, place, name)
        except NotFound:
            sys.exit(_absent(access, place, name, output))
        state = read_state(access, datetime.now(UTC))
        claims = explain_claims(access.cluster, access.objects, state, body)
        answer = claims or explain_pod(state, body)
        if codec.is_ours(body):
            troubles: list[Trouble] = []
            troubles += check_quotas(read_quotas(access.objects, troubles, place) or ())
            notes = [f"{trouble.about}: {trouble.what}" for trouble in troubles]
            answer = replace(answer, of_quotas=notes)
    if output:
        print_data(encode_answer(answer, state.placements), output)
    else:
        draw_answer(open_console(), answer, state, verbose=verbose)
    sys.exit(answer.code)


def _absent(access: Access, namespace: str, name: str, output: str | None) -> int:
    pods = list_all(access.cluster, Kind.PODS)
    similar = suggest_pods(namespace, name, [full_name(pod) for pod in pods])
    pod = f"{namespace}/{name}"
    if output:
        absent = {"v": VERSION, "state": "absent", "pod": pod, "code": 1}
        print_data({**absent, "suggestions": similar, "near": similar}, output)
    else:
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        click.echo(f"Error: there is no pod {pod}.{hint}", err=True)
    return 1


def suggest_pods(namespace: str, name: str, pods: Iterable[str]) -> list[str]:
    """Return the pods with the most similar names, of ``namespace/name``s.

    First those of the same name in other namespaces, then similar ones in this one.

    >>> suggest_pods("default", "big", ["edge/big", "default/bigg", "default/web-x1"])
    ['edge/big', 'default/bigg']
    >>> suggest_pods("default", "web", ["edge/big", "default/bigg", "default/web-x1"])
    ['default/web-x1']
    """
    pods_by_space = [pod.partition("/") for pod in pods]
    same = [f"{space}/{name}" for space, _, other in pods_by_space if other == name]
    here = [other for space, _, other in pods_by_space if space == namespace]
    like = get_close_matches(name, here, n=3)
    like += [other for other in here if other.startswith(name) and other not in like]
    return [*same, *(f"{namespace}/{other}" for other in like)][:3]
