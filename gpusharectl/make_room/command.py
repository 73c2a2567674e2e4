"""``gpusharectl make-room``: move pods so that a waiting pod has room on one card."""

import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial

import click
from click.core import ParameterSource

from gpushare.domain.eviction.movable import ALLOWABLE
from gpushare.domain.eviction.moves import MOST_MOVES, Bounds, MovePlan, plan_moves
from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Claim,
    ContainerAmount,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
)
from gpushare.kube import codec, facts
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.codec import refusal_text
from gpushare.kube.errors import NotFound
from gpushare.kube.json_reader import Malformed
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import (
    complete_nodes,
    complete_pods,
    parse_pod_name,
    pod_namespace_option,
)
from gpusharectl.make_room.evict import Eviction, EvictionResult, Patience
from gpusharectl.make_room.proposal import FINE, NO_ROOM, Proposal, draw_proposal
from gpusharectl.make_room.situation import RoomDemand, read_inputs
from gpusharectl.output import (
    data_option,
    encode,
    fit_to_show,
    open_console,
    print_data,
)
from gpusharectl.state.read import require_node

_CODES = (
    "Exit codes: 0 there is a plan, or it fits without one; with --evict: the pod has "
    "its room; 3 there is no plan, or the pod did not get its room; 1 there is no such "
    "pod, the cluster could not be read, no extender is ready (with --evict), or your "
    "answer was no; 2 wrong command line; 130 Ctrl-C."
)

_ONE_RUN = ("evict", "yes", "output", "timeout")
_Size = tuple[int | None, int | None, int | None]
_NO_SIZE: _Size = (None, None, None)


def _size_new_pod(
    memory: int | None, cores: int | None, whole: int | None
) -> PodRequest:
    """Return what a pod that does not exist yet would ask."""
    if whole is not None and cores is not None:
        raise click.UsageError("--whole K is K x 100 cores; leave --cores out")
    if whole is not None:
        cores = whole * CORES_PER_CARD
    elif memory is None:
        raise click.UsageError("give --memory, in units of 256 MiB, or --whole")
    elif cores is None:
        cores = 1
    if cores > CORES_PER_CARD and cores % CORES_PER_CARD:
        raise click.UsageError("--cores is 0 to 99, or whole cards: see --whole")
    amount = Amount(cores, memory or 0)
    if amount == NOTHING:
        raise click.UsageError("--memory and --cores are both 0")
    claim = Claim(amount, (ContainerAmount("main", amount),))
    return PodRequest(PodRef(PodUID("a new pod"), "", "a new pod"), (claim,))


@click.command("make-room", epilog=_CODES)
@pod_namespace_option
@click.option(
    "--memory",
    type=click.IntRange(0),
    metavar="N",
    help="Instead of POD: units of 256 MiB on one card.",
)
@click.option(
    "--cores",
    type=click.IntRange(0),
    metavar="N",
    help="With --memory: cores, 0 to 99; without it: 1.",
)
@click.option(
    "--whole",
    type=click.IntRange(1),
    metavar="K",
    help="Instead of POD: K whole cards of one node.",
)
@click.option(
    "--node",
    metavar="NAME",
    help="Make the room on this node.",
    shell_complete=complete_nodes,
)
@click.option(
    "--max-moves",
    type=click.IntRange(1),
    default=MOST_MOVES,
    show_default=True,
    metavar="N",
    help="Move at most this many pods.",
)
@click.option(
    "--allow",
    type=click.Choice(ALLOWABLE),
    multiple=True,
    help="Also move pods of DaemonSets, of Jobs, or with several cards.",
)
@click.option("--evict", is_flag=True, help="Carry the plan out.")
@click.option("-y", "--yes", is_flag=True, help="With --evict: do not ask.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="With --evict: how long to wait for each pod, beside its grace period.",
)
@data_option
@access_options
@click.argument("pod", required=False, shell_complete=complete_pods)
def make_room(  # noqa: PLR0913
    *,
    pod: str | None,
    namespace: str | None,
    memory: int | None,
    cores: int | None,
    whole: int | None,
    node: str | None,
    max_moves: int,
    allow: tuple[str, ...],
    evict: bool,
    yes: bool,
    timeout: float,
    output: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Find the fewest pods to move so that POD has room on one card.

    POD waits because of fragmentation: a node has enough in all, but no card has.
    Only pods whose controller makes another one move, and only if that one fits
    elsewhere. Without --evict the plan is only shown.
    """
    size = (memory, cores, whole)
    if (size == _NO_SIZE) == (pod is None):
        raise click.UsageError("give either POD, or --memory or --whole")
    if evict and output and not yes:
        raise click.UsageError("with -o nothing is asked; give --yes")
    with reached(kubeconfig, context) as access:
        demand = _room_demand(access, pod, namespace, size, node or "")
        proposal = _proposal(access, demand, allow, max_moves)
        if not output:
            draw_proposal(open_console(), proposal)
        code, result = proposal.code, None
        if evict and isinstance(proposal.result, MovePlan):
            _confirm(proposal, len(proposal.result.moves), yes=yes)
            say = partial(_say, to_error=output is not None)
            run = Eviction(access, demand, allow, say, Patience(timeout))
            result = carry_out_plan(run, proposal.result)
            code = FINE if result.done else NO_ROOM
            if not output:
                _say(result.outcome, to_error=False)
    if output:
        of_run = {} if result is None else encode(result)
        print_data({**encode(proposal), **of_run, "code": code}, output)
    sys.exit(code)


def carry_out_plan(run: Eviction, plan: MovePlan) -> EvictionResult:
    """Carry a plan out; SIGTERM raises ``KeyboardInterrupt`` meanwhile, as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run.carry_out(plan)
    finally:
        signal.signal(signal.SIGTERM, before)


def _confirm(proposal: Proposal, moves: int, *, yes: bool) -> None:
    """Ask, unless ``yes``; an error if the new pods would wait for the extender."""
    if down := proposal.inputs.down:
        raise click.ClickException(
            f"nothing is evicted: {down}, so new pods would wait"
        )
    pods = "this pod" if moves == 1 else f"these {moves} pods, one after the other"
    if not yes:
        click.confirm(f"Evict {pods}?", abort=True)


def _say(text: str, *, to_error: bool) -> None:
    click.echo(fit_to_show(text), err=to_error)


def _proposal(
    access: Access, demand: RoomDemand, allow: Sequence[str], max_moves: int
) -> Proposal:
    inputs = read_inputs(access, demand, allow)
    require_node(inputs.state, demand.only)
    result = plan_moves(demand.request, inputs.situation, Bounds(max_moves))
    return Proposal(demand, inputs, result, _again(click.get_current_context()))


def _again(context: click.Context) -> str:
    """Return the command as it was given, without what belongs to one run only."""
    words, names = ["gpusharectl", "make-room"], context.params
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        value = names.get(option.name or "")
        if source is not ParameterSource.COMMANDLINE or option.name in _ONE_RUN:
            continue
        for word in value if isinstance(value, tuple) else (value,):
            if isinstance(option, click.Option):
                words.append(max(option.opts, key=len))
            words.append(str(word))
    return shlex.join(words)


def _room_demand(
    access: Access,
    pod: str | None,
    namespace: str | None,
    size: _Size,
    only: str,
) -> RoomDemand:
    if pod is None:
        return RoomDemand(_size_new_pod(*size), None, only)
    space, name = parse_pod_name(pod, namespace)
    try:
        body = access.cluster.get(Kind.PODS, space, name)
    except NotFound as error:
        raise click.ClickException(f"there is no pod {space}/{name}") from error
    return RoomDemand(_request(body), body, only)


def _request(body: Json) -> PodRequest:
    name = facts.full_name(body)
    if facts.is_terminal(body) or facts.is_leaving(body):
        raise click.ClickException(f"{name} has ended, or is terminating")
    if node := facts.node_of(body):
        raise click.ClickException(f"{name} is on {node} already")
    if gates := facts.gates(body):
        listed = ", ".join(gates)
        raise click.ClickException(f"{name} has scheduling gates ({listed})")
    try:
        request = codec.read_pod_record(body).request
    except Malformed as error:
        raise click.ClickException(f"{name} cannot be read: {error}") from error
    if isinstance(request, Refusal):
        raise click.ClickException(f"{name}: {refusal_text(request)}")
    if not request.claims:
        raise click.ClickException(f"{name} asks for no part of a card")
    return request
