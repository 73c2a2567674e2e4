"""The steps that bring the webhook and renew its certificate.

The order keeps one promise: the API server asks only a webhook that answers, that it
believes, and that it can reach. So the configurations, by which it asks, come last.
"""

from collections.abc import Callable, Iterable, Sequence

from gpushare.kube.cluster import Json
from gpushare.kube.names import WEBHOOK_PORT
from gpushare.kube.objects import Ref
from gpusharectl.install.hands import Hands
from gpusharectl.install.progress import Waiting
from gpusharectl.install.steps import Step, Trouble
from gpusharectl.install.watching import run_as_told
from gpusharectl.install.webhookobjects import DEPLOYMENT, SECRET
from gpusharectl.install.webhookplan import WebhookPlan
from gpusharectl.install.webhookway import WAY_S, Trial, narrowed, tried
from gpusharectl.install.webhookwrites import OvertakenError, Overwriting


class WebhookWork:
    """The steps for one plan, each of which can be done again.

    ``again`` is the command that goes on.
    """

    def __init__(
        self, hands: Hands, plan: WebhookPlan, changing: frozenset[Ref], again: str
    ) -> None:
        self._hands = hands
        self._plan = plan
        self._changing = changing
        self._again = again
        self._safely = Overwriting.of(hands.objects, plan.seen.items())

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
