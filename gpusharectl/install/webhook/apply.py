"""Install the webhook, renew its certificate, or remove it.

The API server may ask only a webhook that answers, whose certificate it trusts, and
that it can reach. So the configurations, which make it ask, come last.

A new certificate comes with a new authority. The caBundle first gets both authorities,
then the replicas get the new certificate, then the caBundle loses the old authority. So
the API server trusts every replica at each moment.

Two installs at once must not spoil that. ``GuardedWriter`` writes the Secret and the
caBundle only if they are still as they were when the install was planned. So the second
of two installs stops before it has overwritten anything that the first one needs.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Conflict
from gpushare.kube.facts import is_narrowed
from gpushare.kube.names import WEBHOOK_PORT
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.context import Context
from gpusharectl.install.manifests import BY_CERT_MANAGER
from gpusharectl.install.progress import Step, Trouble, Waiting
from gpusharectl.install.rollout import wait_for_rollout
from gpusharectl.install.survey import resource, served
from gpusharectl.install.webhook.objects import (
    DEPLOYMENT,
    SECRET,
    SECRETS,
    bundle_of,
    files_of,
    is_configuration,
    secret_of,
    with_bundle,
    with_stamp,
)
from gpusharectl.install.webhook.probe import REACHED_WITHIN_S, Result, narrowed, probed
from gpusharectl.pki import AUTHORITY, WEBHOOK, bundle, plan_webhook

_AUTHORITY = f"{AUTHORITY}.crt"
_CERTIFICATE = f"{WEBHOOK.name}.crt"
_TRIES = 5
"""Others write to these objects too, for example labels, which is no conflict."""
Mark = Mapping[str, bytes] | None


@dataclass(frozen=True, slots=True)
class WebhookPlan:
    """What to do beside the objects that are applied with all others."""

    asking: tuple[Json, ...]
    """The configurations, which make the API server ask."""
    trusting: tuple[Json, ...] = ()
    """The existing configurations with both authorities, for a new certificate."""
    secret: Json | None = None
    """A new certificate; None while the old one is good."""
    there: Mapping[Ref, Json | None] = field(default_factory=dict)
    """The present configurations."""
    seen: Mapping[Ref, Json | None] = field(default_factory=dict)
    """The objects on which the plan is based, None if absent; empty if cert-manager
    makes the certificate."""

    @property
    def new(self) -> frozenset[Ref]:
        """The configurations that do not let the API server ask about all pods yet."""
        return frozenset(
            ref for ref, body in self.there.items() if not body or is_narrowed(body)
        )

    def beside(self) -> list[Json]:
        """Return the objects that it writes beside those that are applied first."""
        return [*([self.secret] if self.secret else []), *self.asking]


def split(
    objects: Objects, manifests: Iterable[Json], now: datetime, *, ours: bool
) -> tuple[tuple[Json, ...], WebhookPlan]:
    """Split the manifests into those to apply first, and a plan for the webhook.

    ``ours``: the installer makes the certificate, not cert-manager. The only Secret
    that is read is the webhook's own.
    """
    bodies = tuple(manifests)
    others = tuple(body for body in bodies if not is_configuration(body))
    asking = tuple(body for body in bodies if is_configuration(body))
    there = {ref: objects.get(ref) for ref in map(Ref.of, asking)}
    if not ours:
        return others, WebhookPlan(
            tuple(_with_present_bundle(one, there) for one in asking), there=there
        )
    secret = objects.get(SECRET)
    held = files_of(secret)
    made = plan_webhook(held, now)
    files = made or held
    newest = files[_AUTHORITY]
    both = bundle(newest, bundle_of(body for body in there.values() if body), now)
    plan = WebhookPlan(
        tuple(with_bundle(body, newest) for body in asking),
        secret=secret_of(made) if made else None,
        there=there,
        seen={**there, SECRET: secret},
    )
    if made:
        trusting = [with_bundle(body, both) for body in asking]
        old = tuple(body for body in trusting if Ref.of(body) not in plan.new)
        plan = replace(plan, trusting=old)
    stamp = hashlib.sha256(files[_CERTIFICATE]).hexdigest()
    return with_stamp(others, stamp), plan


def _with_present_bundle(body: Json, there: Mapping[Ref, Json | None]) -> Json:
    """Keep the caBundle that cert-manager has written."""
    old = there[Ref.of(body)]
    authorities = bundle_of([old] if old else [])
    # Applied without it, a caBundle that was once ours would be removed.
    return with_bundle(body, authorities) if authorities else body


class OvertakenError(Exception):
    """Somebody else has changed the object since; the text names it."""


@dataclass
class GuardedWriter:
    """Writes only over what was seen; ``seen`` has a mark of each object."""

    objects: Objects
    seen: dict[Ref, Mark] = field(default_factory=dict)

    @classmethod
    def of(
        cls, objects: Objects, there: Iterable[tuple[Ref, Json | None]]
    ) -> "GuardedWriter":
        """Begin with objects as they were read; None if there is none."""
        return cls(objects, {ref: _mark(ref, body) for ref, body in there})

    def put(self, body: Json) -> None:
        """Apply an object; ``OvertakenError`` if it is no longer what was seen.

        From then on, what was written is what was seen.
        """
        ref = Ref.of(body)
        for _ in range(_TRIES):
            now = self.objects.get(ref)
            if _mark(ref, now) != self.seen[ref]:
                break
            try:
                self._write(body, now)
            except Conflict:
                # Somebody wrote between our read and our write; read again.
                continue
            self.seen[ref] = _mark(ref, body)
            return
        raise OvertakenError(str(ref))

    def _write(self, body: Json, now: Json | None) -> None:
        if now is None and Ref.of(body) == SECRET:
            # An apply would overwrite one that somebody else has created just now.
            self.objects.create(body)
            return
        version = {"resourceVersion": now["metadata"]["resourceVersion"]} if now else {}
        metadata = {**body["metadata"], **version}
        self.objects.apply({**body, "metadata": metadata})


def _mark(ref: Ref, body: Json | None) -> Mark:
    """Return the part of an object that only one install may change at a time."""
    if body is None:
        return None
    return files_of(body) if ref == SECRET else {"authorities": bundle_of([body])}


class WebhookSteps:
    """The steps of one plan; ``again`` is the command that goes on."""

    def __init__(
        self, context: Context, plan: WebhookPlan, changing: frozenset[Ref], again: str
    ) -> None:
        self._context = context
        self._plan = plan
        self._changing = changing
        self._again = again
        self._writer = GuardedWriter.of(context.objects, plan.seen.items())

    def before(self) -> list[Step]:
        """Return what comes before its Deployment, whose pods mount the certificate."""
        if self._plan.secret is None:
            return []
        return [_guarded("the webhook's certificate", self.certify)]

    def after(self) -> list[Step]:
        """Return what comes after its Deployment."""
        return [
            Step("the webhook's rollout", self.run),
            _guarded("the webhook's configurations", self.ask),
        ]

    def certify(self) -> Trouble | None:
        """Write a new certificate, after the caBundle has its authority."""
        self._context.screen.begin("TLS")
        for body in self._plan.trusting:
            self._writer.put(body)
        if self._plan.secret:
            self._writer.put(self._plan.secret)
        self._context.screen.say(f"written: {SECRET}")
        return None

    def run(self) -> Trouble | None:
        """Wait until every replica runs with the present settings and certificate."""
        self._context.screen.begin("Waiting")
        context = self._context
        return wait_for_rollout(
            context.objects, [DEPLOYMENT], context.screen, context.patience
        )

    def ask(self) -> Trouble | None:
        """Let the API server ask the webhook, and trust no former authority.

        If it has not asked before, it asks about the probe pod only, until that proves
        that it reaches the webhook.
        """
        plan, screen = self._plan, self._context.screen
        screen.begin("Webhook")
        new = [body for body in plan.asking if Ref.of(body) in plan.new]
        due = [
            body
            for body in plan.asking
            if body not in new and (plan.trusting or Ref.of(body) in self._changing)
        ]
        self._apply([*due, *map(narrowed, new)])
        result = self._probe()
        if result.reached is False:
            return self._unreachable(result, new)
        self._apply(new)
        if result.reached is None:
            screen.say(
                "it is not known whether the API server reaches the webhook: "
                f"{result.words}"
            )
        told = "from now on," if new or due else "as before,"
        screen.say(f"{told} the API server asks the webhook about pods with cards")
        return None

    def _probe(self) -> Result:
        """Try until the API server reaches the webhook, or time is up."""
        last = Result(reached=False)

        def look() -> list[Waiting]:
            nonlocal last
            last = probed(self._context.objects)
            what = f"its connection to the webhook: {last.words}"
            return [Waiting("the API server", what)] if last.reached is False else []

        self._context.patience.until(look, self._context.screen, REACHED_WITHIN_S)
        return last

    def _unreachable(self, result: Result, new: Sequence[Json]) -> Trouble:
        """Remove the new configurations, and say what to look at."""
        for body in new:
            self._context.objects.delete(Ref.of(body))
        stays = (
            "The API server was not told to ask it, so pods are created as before"
            if len(new) == len(self._plan.asking)
            else "The API server still asks it, so no pod with cards is created until "
            "it is reached; install --no-webhook would let them through"
        )
        return Trouble(
            "the webhook's pods are Ready, but the API server cannot reach them: "
            f"{result.words}. {stays}. The usual cause is a firewall between the two",
            f"open port {WEBHOOK_PORT} of the pods to the control plane, then: "
            f"{self._again}",
        )

    def _apply(self, bodies: Iterable[Json]) -> None:
        for body in bodies:
            if self._plan.seen:
                self._writer.put(body)
            else:
                # cert-manager may write to them at any time.
                self._context.objects.apply(body)


def _guarded(name: str, act: Callable[[], Trouble | None]) -> Step:
    """Return a step that stops if another install was faster."""

    def careful() -> Trouble | None:
        try:
            return act()
        except OvertakenError as error:
            return Trouble(
                f"another install has changed {error} meanwhile; its changes were not "
                "overwritten"
            )

    return Step(name, careful)


def still_there(context: Context) -> tuple[Ref, ...]:
    """Return the existing objects of a webhook in the order in which they are deleted.

    Each object is looked for, since an earlier removal may have been interrupted. If
    anything exists, objects that we may not read count as existing, so that the right
    to them is asked for.
    """
    whole = served(context.objects, context.load(BY_CERT_MANAGER))
    found = {ref: _exists(context.objects, ref) for ref in leaving(whole)}
    if not any(found.values()):
        return ()
    return tuple(ref for ref, there in found.items() if there is not False)


def leaving(manifests: Sequence[Json]) -> list[Ref]:
    """Return all of the webhook in the order of deletion, the configurations first."""
    first = [Ref.of(body) for body in manifests if is_configuration(body)]
    rest = [Ref.of(body) for body in reversed(manifests) if not is_configuration(body)]
    return [*first, *rest, *SECRETS]


def removal(context: Context, refs: Sequence[Ref]) -> Step:
    """Return the step that deletes these."""

    def act() -> Trouble | None:
        context.screen.begin("Webhook")
        gone = [ref for ref in refs if context.objects.delete(ref)]
        told = f"{len(gone)} objects deleted" if gone else "nothing was left to delete"
        context.screen.say(told)
        return None

    return Step("the removal of the webhook", act)


def _exists(objects: Objects, ref: Ref) -> bool | None:
    """Return whether an object exists; None if we may not read it."""
    if not objects.may("get", resource(ref.api_version, ref.kind), ref.namespace):
        return None
    return objects.get(ref) is not None
