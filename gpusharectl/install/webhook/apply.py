"""The steps that bring the webhook and renew its certificate.

The order keeps one promise: the API server asks only a webhook that answers, that it
believes, and that it can reach. So the configurations, by which it asks, come last.

Writes to what two installs at once could spoil: the certificate and who believes it.

Each is made only over what was seen when the install was planned. So of two that renew
a certificate the second stops before it has written anything that the first one needs,
and what the API server believes is always what the replicas show.

The webhook taken away: what there is of it, in which order, and the step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Conflict
from gpushare.kube.names import WEBHOOK_PORT
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.context import Context
from gpusharectl.install.manifests import BY_CERT_MANAGER
from gpusharectl.install.preflight import resource
from gpusharectl.install.progress import Step, Trouble, Waiting
from gpusharectl.install.rollout import run_as_told
from gpusharectl.install.survey import served
from gpusharectl.install.webhook.objects import (
    DEPLOYMENT,
    SECRET,
    SECRETS,
    bundle_of,
    files_of,
    is_configuration,
)
from gpusharectl.install.webhook.plan import WebhookPlan
from gpusharectl.install.webhook.probe import WAY_S, Trial, narrowed, tried

_TRIES = 5
"""Others write to such objects as well, labels say, which is no conflict."""
Mark = Mapping[str, bytes] | None


class OvertakenError(Exception):
    """Another has changed it since; the text names the object."""


@dataclass
class GuardedWriter:
    """Write only over what was seen; ``seen`` has a mark of each object, as it was."""

    objects: Objects
    seen: dict[Ref, Mark] = field(default_factory=dict)

    @classmethod
    def of(
        cls, objects: Objects, there: Iterable[tuple[Ref, Json | None]]
    ) -> "GuardedWriter":
        """Begin with objects as they were read; None where there is none."""
        return cls(objects, {ref: _mark(ref, body) for ref, body in there})

    def put(self, body: Json) -> None:
        """Apply it; ``OvertakenError`` where it is no longer what was seen.

        What is written is what was seen from then on.
        """
        ref = Ref.of(body)
        for _ in range(_TRIES):
            now = self.objects.get(ref)
            if _mark(ref, now) != self.seen[ref]:
                break
            try:
                self._write(body, now)
            except Conflict:
                # Between our look and our write somebody wrote; look again.
                continue
            self.seen[ref] = _mark(ref, body)
            return
        raise OvertakenError(str(ref))

    def _write(self, body: Json, now: Json | None) -> None:
        if now is None and Ref.of(body) == SECRET:
            # An apply would lay ours over the one that another has made just now.
            self.objects.create(body)
            return
        version = {"resourceVersion": now["metadata"]["resourceVersion"]} if now else {}
        metadata = {**body["metadata"], **version}
        self.objects.apply({**body, "metadata": metadata})


def _mark(ref: Ref, body: Json | None) -> Mark:
    """Give what of an object only one may change at a time."""
    if body is None:
        return None
    return files_of(body) if ref == SECRET else {"authorities": bundle_of([body])}


class WebhookSteps:
    """The steps for one plan, each of which can be done again.

    ``again`` is the command that goes on.
    """

    def __init__(
        self, hands: Context, plan: WebhookPlan, changing: frozenset[Ref], again: str
    ) -> None:
        self._hands = hands
        self._plan = plan
        self._changing = changing
        self._again = again
        self._safely = GuardedWriter.of(hands.objects, plan.seen.items())

    def before(self) -> list[Step]:
        """Give what comes before its Deployment, whose pods mount the certificate."""
        if self._plan.secret is None:
            return []
        return [_one_at_a_time("the webhook's certificate", self.certify)]

    def after(self) -> list[Step]:
        """Give what comes after its Deployment."""
        return [
            Step("the webhook running", self.run),
            _one_at_a_time("the API server asking it", self.ask),
        ]

    def certify(self) -> Trouble | None:
        """Write a new certificate, which the API server is told of before."""
        self._hands.screen.begin("TLS")
        for body in self._plan.trusting:
            self._safely.put(body)
        if self._plan.secret:
            self._safely.put(self._plan.secret)
        self._hands.screen.say(f"written: {SECRET}")
        return None

    def run(self) -> Trouble | None:
        """Wait until every replica runs as told, with the certificate of now."""
        hands = self._hands
        hands.screen.begin("Waiting")
        trouble = run_as_told(hands.objects, [DEPLOYMENT], hands.screen, hands.patience)
        if trouble is None:
            hands.screen.say(f"{DEPLOYMENT.name}: running")
        return trouble

    def ask(self) -> Trouble | None:
        """Let the API server ask it, and believe in no authority of before.

        Where it has not asked yet it does so about one pod alone, until that proves
        that it gets through.
        """
        plan, screen = self._plan, self._hands.screen
        screen.begin("Webhook")
        new = [body for body in plan.asking if Ref.of(body) in plan.new]
        due = [
            body
            for body in plan.asking
            if body not in new and (plan.trusting or Ref.of(body) in self._changing)
        ]
        self._apply([*due, *map(narrowed, new)])
        trial = self._trial()
        if trial.through is False:
            return self._unreachable(trial, new)
        self._apply(new)
        if trial.through is None:
            screen.say(
                f"whether the API server reaches it is not known, since {trial.words}"
            )
        told = "is asked from now on" if new or due else "is asked as it was"
        screen.say(f"about pods that ask for cards it {told}")
        return None

    def _trial(self) -> Trial:
        """Try until the API server gets through, or time is up."""
        last = Trial(through=False)

        def look() -> list[Waiting]:
            nonlocal last
            last = tried(self._hands.objects)
            wait = Waiting("the API server", f"its way to the webhook: {last.words}")
            return [wait] if last.through is False else []

        self._hands.patience.until(look, self._hands.screen, WAY_S)
        return last

    def _unreachable(self, trial: Trial, new: Sequence[Json]) -> Trouble:
        """Leave nobody's pods waiting who were not before, and say what to look at."""
        for body in new:
            self._hands.objects.delete(Ref.of(body))
        stays = (
            "It was not told to ask it, so pods are made as before"
            if len(new) == len(self._plan.asking)
            else "It asks it as before, so no pod that asks for a card is made "
            "meanwhile; install --no-webhook would let them through"
        )
        return Trouble(
            "the webhook's pods are Ready, but the API server does not get through to "
            f"them: {trial.words}. {stays}. Mostly a firewall is between the two",
            f"let the control plane reach port {WEBHOOK_PORT} of the pods, then: "
            f"{self._again}",
        )

    def _apply(self, bodies: Iterable[Json]) -> None:
        for body in bodies:
            if self._plan.seen:
                self._safely.put(body)
            else:
                # cert-manager writes to them whenever it likes.
                self._hands.objects.apply(body)


def _one_at_a_time(name: str, act: Callable[[], Trouble | None]) -> Step:
    """Give a step that stops where another install has come first."""

    def careful() -> Trouble | None:
        try:
            return act()
        except OvertakenError as error:
            return Trouble(
                f"another install has changed {error} meanwhile, and nothing of it was "
                "written over"
            )

    return Step(name, careful)


def still_there(hands: Context) -> tuple[Ref, ...]:
    """Find what there is of a webhook, in the order in which it goes.

    By every object, since an earlier try may have been cut off anywhere. What we may
    not read counts as there where anything is: the right to it will be asked for.
    """
    whole = served(hands.objects, hands.load(BY_CERT_MANAGER))
    found = {ref: _looked(hands.objects, ref) for ref in leaving(whole)}
    if not any(found.values()):
        return ()
    return tuple(ref for ref, there in found.items() if there is not False)


def leaving(manifests: Sequence[Json]) -> list[Ref]:
    """Give all of the webhook in the order in which it goes, the asking first."""
    first = [Ref.of(body) for body in manifests if is_configuration(body)]
    rest = [Ref.of(body) for body in reversed(manifests) if not is_configuration(body)]
    return [*first, *rest, *SECRETS]


def taking_away(hands: Context, refs: Sequence[Ref]) -> Step:
    """Give the step that takes these away."""

    def act() -> Trouble | None:
        hands.screen.begin("Webhook")
        gone = [ref for ref in refs if hands.objects.delete(ref)]
        told = f"{len(gone)} objects deleted" if gone else "nothing was left to delete"
        hands.screen.say(told)
        return None

    return Step("the webhook taken away", act)


def _looked(objects: Objects, ref: Ref) -> bool | None:
    """Tell whether it is there; None where we may not know."""
    if not objects.may("get", resource(ref.api_version, ref.kind), ref.namespace):
        return None
    return objects.get(ref) is not None
