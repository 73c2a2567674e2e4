"""The law of hard limits: on a card they never add up to more than its units.

A machine of hypothesis plays kubelet, the API server and the administrator at random.
"""

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TypeVar

import hypothesis
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from deviceplugin import serve
from deviceplugin.allocation.cdi import LIMIT
from deviceplugin.allocation.injection import MEMORY_LIMIT
from deviceplugin.allocation.isolation import TIERS, Tier
from deviceplugin.cards.devices import shared_card
from gpushare.domain.request import Role
from gpushare.kube.cluster import Json, Kind
from gpushare.kubelet.limit_files import LIMITS
from gpusharectl.demo import devices as kubelets
from gpusharectl.demo.devices import CannotStartYetError, ContainerConfig, Rejection
from tests.builders import container_json, pod_json
from tests.deviceplugin.allocation.test_isolation import prepare
from tests.deviceplugin.node_fixture import NodeFixture, driver_limit, found_card
from tests.testbed.waiting import wait_until

RESERVE_MIB = 100
CARDS = (found_card(0, units=29), found_card(1, units=12))
OFFERED_MIB = {card.uuid: shared_card(card, RESERVE_MIB).units * 256 for card in CARDS}
_RESTARTS = {Role.SIDECAR: "Always"}

Ask = tuple[Role, tuple[int | None, int | None]]
"""A container's role, its units and its cores."""
shared = st.tuples(
    st.none() | st.integers(1, 14), st.sampled_from([None, 1, 5])
).filter(any)
one_app = st.lists(st.tuples(st.just(Role.APP), shared), min_size=1, max_size=1)
several = st.lists(st.tuples(st.sampled_from(Role), shared), max_size=3)
containers = st.builds(lambda more, app: [*more, *app], several, one_app)
whole = st.just([(Role.APP, (None, 100))])
number = st.integers(0, 99)
"""Which of some things, as an index beyond their number: what is drawn must not depend
on what the plugin's threads did."""


T = TypeVar("T")


def pick(things: Sequence[T], which: int) -> list[T]:
    """One of these things; none if there is none."""
    return [things[which % len(things)]] if things else []


@dataclass
class Pod:
    """A pod as kubelet runs it: what each container was given, and which run now."""

    body: Json
    given: Mapping[str, ContainerConfig]
    roles: dict[str, Role]
    alive: set[str] = field(default_factory=set)
    initialized: int = 0
    """How many of its init containers have been started."""
    ended: bool = False
    """Whether the API server has forgotten it."""

    static: bool = False

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def next(self) -> list[str]:
        """What kubelet starts next: one init container, or all other containers."""
        firsts = [name for name, role in self.roles.items() if role is not Role.APP]
        if self.initialized < len(firsts):
            return [firsts[self.initialized]]
        return sorted(self.roles.keys() - firsts - self.alive)

    def limit_mib(self, container: str) -> int:
        """What a container that runs can take of its card; 0 if nothing limits it.

        Also 0 for one of cores alone, which has room for a context and no memory.
        """
        given = self.given[container]
        if MEMORY_LIMIT not in given.envs:
            return 0
        if "/run/vcuda/region" not in given.mounts:
            return int(driver_limit(given).get(LIMIT, 0))
        folder = Path(given.mounts["/etc/vcuda"].host_path)
        return int((folder / LIMITS).read_text().split()[-2])

    def cards(self, container: str) -> list[str]:
        return self.given[container].envs["VCUDA_CARDS"].split(",")


class Node(RuleBasedStateMachine):
    """Two cards, and pods that come, start, restart and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: list[Pod] = []
        self.count = 0
        self.patch = pytest.MonkeyPatch()
        # What kubelet does by chance is the same in each repetition.
        self.patch.setattr(kubelets, "CHANCE", Random(0))
        self.patch.setattr(serve, "_SYNC_WITHIN_S", 0.05)
        self.folder = tempfile.TemporaryDirectory(prefix="law")
        path = Path(self.folder.name)
        settings = prepare(path) | {"reserve_mib": RESERVE_MIB}
        self.node = NodeFixture(path, *CARDS, settings=settings)
        self.node.__enter__()

    def teardown(self) -> None:
        self.node.line.cut = False
        self.node.__exit__()
        self.folder.cleanup()
        self.patch.undo()

    @invariant()
    def hard_limits_fit_each_card(self) -> None:
        sums: dict[str, int] = dict.fromkeys(OFFERED_MIB, 0)
        for pod in self.pods:
            for container in () if pod.ended else pod.alive:
                for card in pod.cards(container):
                    sums[card] += pod.limit_mib(container)
        assert all(sums[uuid] <= mib for uuid, mib in OFFERED_MIB.items()), sums

    def why_not_started(self, pod: Pod, container: str) -> str:
        """Ask as kubelet does whether a container may start now; why not, or empty."""
        try:
            self.node.devices.start(pod.uid, container)
        except CannotStartYetError as error:
            return str(error)
        return ""

    def proceed(self, pod: Pod) -> str:
        """Let the pod's next containers start as far as they may; why others do not."""
        refused = ""
        for container in pod.next:
            # An init container has ended before the next one starts.
            pod.alive -= {name for name in pod.alive if pod.roles[name] is Role.INIT}
            if why := self.why_not_started(pod, container):
                refused = why
                continue
            pod.alive.add(container)
            pod.initialized += pod.roles[container] is not Role.APP
        return refused

    def end(self, pods: Sequence[Pod]) -> None:
        """Let pods end, and wait until the plugin has been told."""
        for pod in pods:
            self.node.devices.release(pod.uid)
            if not pod.ended:
                self.forget(pod)
        self.pods = [pod for pod in self.pods if pod not in pods]

    def forget(self, pod: Pod) -> None:
        """Let the API server forget a pod; it never knew a static one."""
        pod.ended = True
        if not pod.static:
            self.node.cluster.delete(Kind.PODS, "default", pod.name, grace_period_s=0)
        if not self.node.line.cut:
            self.wait_told()

    def wait_told(self) -> None:
        """Wait until the plugin knows as many pods as the API server."""
        here = {pod.uid for pod in self.pods if not pod.ended and not pod.static}
        known = self.node.pods.all
        wait_until(lambda: {pod.uid for pod in known()} == here, "the pods to be known")

    def admit(self, asks: Sequence[Ask], card: int | None) -> Pod | None:
        """Let a pod come, and return it if the node takes it."""
        self.count += 1
        name, roles = f"p{self.count}", {f"c{n}": r for n, (r, _) in enumerate(asks)}
        made = {
            f"c{n}": container_json(f"c{n}", *amount, restart=_RESTARTS.get(role))
            for n, (role, amount) in enumerate(asks)
        }
        init = [made[name] for name, role in roles.items() if role is not Role.APP]
        apps = [made[name] for name, role in roles.items() if role is Role.APP]
        body = self.node.bind(name, card=card, init=init, containers=apps)
        answer = self.node.devices.admit(body)
        if isinstance(answer, Rejection):
            self.node.end_pod(name)
            return None
        self.pods.append(Pod(body, answer, roles))
        return self.pods[-1]

    def may_start(self, pod: Pod) -> bool:
        """Whether nothing keeps the pod's containers from starting."""
        return not pod.ended and not self.node.line.cut

    @rule(
        pods=st.lists(
            st.tuples(containers | whole, st.sampled_from([None, 0, 1])), max_size=3
        ),
        starts=st.booleans(),
    )
    def pods_come(
        self, pods: list[tuple[list[Ask], int | None]], *, starts: bool
    ) -> None:
        for asks, card in () if self.node.line.cut else pods:
            pod = self.admit(asks, card)
            if pod is not None and starts:
                self.proceed(pod)

    @rule(units=st.integers(1, 14))
    def a_static_pod_comes(self, units: int) -> None:
        """It is one that only kubelet knows."""
        self.count += 1
        body = pod_json(f"s{self.count}-n", units=units, cores=1, node="n")
        answer = self.node.devices.admit(body)
        if not isinstance(answer, Rejection):
            pod = Pod(body, answer, {"main": Role.APP})
            self.pods.append(replace(pod, static=True))

    @rule()
    def the_api_server_comes_and_goes(self) -> None:
        if not self.node.line.cut:
            self.node.cut_off()
            return
        self.node.line.cut = False
        in_touch = self.node.serving.parts.prestart.in_touch
        wait_until(in_touch.is_set, "the watch to go on")
        self.wait_told()

    @rule(which=number)
    def containers_start(self, which: int) -> None:
        for pod in pick(self.pods, which):
            self.proceed(pod)

    @rule()
    def all_containers_start_at_once(self) -> None:
        waiting = [pod for pod in self.pods if pod.next]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self.proceed, waiting))

    @rule(which=number, container=number)
    def a_container_restarts(self, which: int, container: int) -> None:
        """What it had is still its own."""
        running = [pod for pod in self.pods if pod.alive and self.may_start(pod)]
        for pod in pick(running, which):
            (its,) = pick(sorted(pod.alive), container)
            assert not self.why_not_started(pod, its)

    @rule(which=number)
    def a_pod_begins_again(self, which: int) -> None:
        """Its sandbox was lost: init containers run once more."""
        for pod in pick(self.pods, which):
            pod.alive, pod.initialized = set(), 0
            self.proceed(pod)

    @rule(which=number)
    def a_pod_ends(self, which: int) -> None:
        self.end(pick(self.pods, which))

    @rule(which=number)
    def a_pod_is_deleted_by_force(self, which: int) -> None:
        """The API server forgets it at once, kubelet when it ends."""
        for pod in pick([running for running in self.pods if not running.ended], which):
            self.forget(pod)

    @rule(tier=st.sampled_from(TIERS), context_mib=st.sampled_from([256, 400]))
    def the_plugin_restarts(self, tier: Tier, context_mib: int) -> None:
        """Also with other settings."""
        self.node.restart(isolation=tier, isolation_context_mib=context_mib)

    @rule(which=number)
    def a_pod_is_left_alone(self, which: int) -> None:
        """Whoever waits starts when the others have ended."""
        waiting = [pod for pod in self.pods if pod.next and self.may_start(pod)]
        for pod in pick(waiting, which):
            self.end([other for other in self.pods if other is not pod])
            refused = [self.proceed(pod) for _ in pod.roles]
            assert not pod.next, refused

    @rule(sizes=st.lists(st.integers(1, 11), max_size=3), card=st.sampled_from([0, 1]))
    def a_card_is_filled(self, sizes: list[int], card: int) -> None:
        """All units of a card run side by side, however they are spread."""
        if self.node.line.cut:
            return
        self.end(tuple(self.pods))
        left = self.node.serving.parts.offer.cards.all[card].units
        for size in (*sizes, left):
            if units := min(left, size):
                left -= units
                pod = self.admit([(Role.APP, (units, 1))], card)
                assert pod is not None
                assert not self.proceed(pod)


def test_hard_limits_fit_each_card_whatever_happens() -> None:
    few = hypothesis.settings.get_current_profile_name() == "unit"
    run_state_machine_as_test(
        Node,
        settings=hypothesis.settings(
            max_examples=6 if few else 40,
            stateful_step_count=25,
            deadline=None,
            # Threads race: an example that is made shorter may pass.
            phases=[Phase.reuse, Phase.generate],
        ),
    )
