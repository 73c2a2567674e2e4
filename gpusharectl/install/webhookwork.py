"""The steps that bring the webhook, renew its certificate, and take it away.

The order keeps one promise: the API server asks only a webhook that answers, and that
it believes. So the configurations, by which it asks, come last and go first.
"""

from collections.abc import Sequence

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.install.hands import Hands
from gpusharectl.install.steps import Step, Trouble
from gpusharectl.install.watching import run_as_told
from gpusharectl.install.webhookobjects import DEPLOYMENT, SECRET, is_configuration
from gpusharectl.install.webhookplan import WebhookPlan


class WebhookWork:
    """The steps for one plan, each of which can be done again."""

    def __init__(
        self, hands: Hands, plan: WebhookPlan, changing: frozenset[Ref]
    ) -> None:
        self._hands = hands
        self._plan = plan
        self._changing = changing

    def before(self) -> list[Step]:
        """Give what comes before its Deployment, whose pods mount the certificate."""
        if self._plan.secret is None:
            return []
        return [Step("the webhook's certificate", self.certify)]

    def after(self) -> list[Step]:
        """Give what comes after its Deployment."""
        return [
            Step("the webhook running", self.run),
            Step("the API server asking it", self.ask),
        ]

    def certify(self) -> Trouble | None:
        """Write a new certificate, which the API server is told of before."""
        screen, objects = self._hands.screen, self._hands.objects
        screen.begin("TLS")
        for body in self._plan.trusting:
            objects.apply(body)
        if self._plan.secret:
            objects.apply(self._plan.secret)
        screen.say(f"written: {SECRET}")
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
        """Let the API server ask it, and believe in no authority of before."""
        self._hands.screen.begin("Webhook")
        due = [
            body
            for body in self._plan.asking
            if self._plan.trusting or Ref.of(body) in self._changing
        ]
        for body in due:
            self._hands.objects.apply(body)
        told = "is asked from now on" if due else "is asked as it was"
        self._hands.screen.say(f"about pods that ask for cards it {told}")
        return None


def taking_away(hands: Hands, manifests: Sequence[Json]) -> Step:
    """Give the step that takes away what an earlier install made of these."""

    def act() -> Trouble | None:
        hands.screen.begin("Webhook")
        gone = [ref for ref in leaving(manifests) if hands.objects.delete(ref)]
        told = f"{len(gone)} objects deleted" if gone else "nothing was left to delete"
        hands.screen.say(told)
        return None

    return Step("the webhook taken away", act)


def leaving(manifests: Sequence[Json]) -> list[Ref]:
    """Give all of the webhook in the order in which it goes, the asking first."""
    first = [Ref.of(body) for body in manifests if is_configuration(body)]
    rest = [Ref.of(body) for body in reversed(manifests) if not is_configuration(body)]
    return [*first, *rest, SECRET]
