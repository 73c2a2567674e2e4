"""Install the webhook, renew its certificate, or remove it.

The API server may ask only a webhook that answers, whose certificate it trusts, and
that it can reach: a firewall may stand between the two. So the configurations, which
make it ask, come last, and are limited to a probe pod that is never created until the
connection is proved.

A new certificate comes with a new authority. The caBundle first gets both authorities,
then the replicas get the new certificate, then the caBundle loses the old authority.
``GuardedWriter`` keeps a second install at the same time from spoiling that.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Conflict
from gpushare.kube.facts import PROBE_ONLY, is_narrowed
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.context import Context
from gpusharectl.installer.manifests import BY_CERT_MANAGER, with_stamp
from gpusharectl.installer.pki import AUTHORITY, WEBHOOK, join_bundle, plan_webhook
from gpusharectl.installer.progress import (
    InstallError,
    InstallHook,
    InstallStep,
    Waiting,
)
from gpusharectl.installer.rights import may_get
from gpusharectl.installer.rollout import wait_for_rollout
from gpusharectl.installer.survey import served_objects
from gpusharectl.installer.webhook.objects import (
    CONFIGURATIONS,
    DEPLOYMENT,
    NAMESPACE,
    SECRET,
    SECRETS,
    STAMP,
    certificate_secret,
    read_bundle,
    secret_files,
    with_bundle,
)
from gpusharectl.output import ObjectChange

NAME = "gpushare-webhook-probe"
REACHED_WITHIN_S = 60.0
"""A Ready replica is in the Service a moment later, and then in its proxies."""
_PROBE_ONLY = {
    "name": PROBE_ONLY,
    "expression": f"object.metadata.?name.orValue('') == '{NAME}'",
}
_CONTAINER = {
    "name": "probe",
    "image": "gpushare",
    "resources": {"limits": {names.MEMORY: "1"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    },
}
"""It asks for memory without cores, and the webhook adds the cores."""
_TRIES = 5
"""Others write to these objects too, for example labels, which is no conflict."""


@dataclass(frozen=True, slots=True)
class WebhookPlan:
    """What to do beside the objects that are applied with all others."""

    asking: tuple[Json, ...]
    """The configurations, which make the API server ask."""
    there: Mapping[Ref, Json | None]
    """The present configurations."""
    secret: Json | None = None
    """A new certificate; None while the old one is good."""
    trusting: tuple[Json, ...] = ()
    """The existing configurations with both authorities, for a new certificate."""
    seen: Mapping[Ref, Json | None] = field(default_factory=dict)
    """The objects on which the plan is based, None if absent; empty if cert-manager
    makes the certificate."""

    @property
    def new(self) -> frozenset[Ref]:
        """The configurations that do not let the API server ask about all pods yet."""
        return frozenset(
            ref for ref, body in self.there.items() if not body or is_narrowed(body)
        )


def plan_webhook_objects(
    objects: Objects, manifests: Sequence[Json], now: datetime, *, by_installer: bool
) -> tuple[tuple[Json, ...], WebhookPlan]:
    """Split the manifests into those to apply first, and a plan for the webhook.

    ``by_installer``: the installer makes the certificate, not cert-manager. The only
    Secret that is read is the webhook's own.
    """
    asking = tuple(body for body in manifests if Ref.of(body) in CONFIGURATIONS)
    others = tuple(body for body in manifests if body not in asking)
    there = {ref: objects.get(ref) for ref in map(Ref.of, asking)}
    present = read_bundle(body for body in there.values() if body)
    if not by_installer:
        # Applied without the caBundle of cert-manager, one that the installer once
        # wrote would be removed.
        kept = (_with_present_bundle(body, there[Ref.of(body)]) for body in asking)
        return others, WebhookPlan(tuple(kept), there)
    secret = objects.get(SECRET)
    made = plan_webhook(secret_files(secret), now)
    files = made or secret_files(secret)
    newest = files[f"{AUTHORITY}.crt"]
    plan = WebhookPlan(
        tuple(with_bundle(body, newest) for body in asking),
        there,
        certificate_secret(made) if made else None,
        seen={**there, SECRET: secret},
    )
    if made:
        both = join_bundle(newest, present, now)
        old = (body for body in asking if Ref.of(body) not in plan.new)
        plan = replace(plan, trusting=tuple(with_bundle(body, both) for body in old))
    digest = hashlib.sha256(files[f"{WEBHOOK.name}.crt"]).hexdigest()
    return with_stamp(others, DEPLOYMENT, STAMP, digest), plan


def _with_present_bundle(body: Json, present: Json | None) -> Json:
    authorities = read_bundle([present] if present else [])
    return with_bundle(body, authorities) if authorities else body


@dataclass
class GuardedWriter:
    """Writes only over what was ``seen``; None is an object that was absent."""

    objects: Objects
    seen: dict[Ref, Json | None]

    def put(self, body: Json) -> None:
        """Apply an object; ``InstallError`` if another install has changed it since.

        From then on, what was written is what was seen.
        """
        ref = Ref.of(body)
        for _ in range(_TRIES):
            now = self.objects.get(ref)
            if _mark(ref, now) != _mark(ref, self.seen[ref]):
                break
            try:
                if now is None and ref == SECRET:
                    # An apply would overwrite one that was created just now.
                    self.objects.create(body)
                else:
                    self.objects.apply(_at_version(body, now))
            except Conflict:
                # Somebody wrote between the read and the write; read again.
                continue
            self.seen[ref] = body
            return
        raise InstallError(
            f"another install has changed {ref} meanwhile; its changes were not "
            "overwritten"
        )


def _at_version(body: Json, now: Json | None) -> Json:
    version = {"resourceVersion": now["metadata"]["resourceVersion"]} if now else {}
    return {**body, "metadata": {**body["metadata"], **version}}


def _mark(ref: Ref, body: Json | None) -> Mapping[str, bytes] | None:
    """Return the part of an object that only one install may change at a time."""
    if body is None:
        return None
    return secret_files(body) if ref == SECRET else {"authorities": read_bundle([body])}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One attempt; ``words`` say why the webhook is not ``reached``.

    ``reached`` is None if it is not known: the pod was refused for other reasons, or
    another webhook has changed it.
    """

    reached: bool | None
    words: str = ""


@dataclass
class WebhookSteps:
    """The steps of one plan; ``again`` is the command that goes on."""

    context: Context
    plan: WebhookPlan
    changes: Sequence[ObjectChange]
    again: str

    def __post_init__(self) -> None:
        self._writer = GuardedWriter(self.context.objects, dict(self.plan.seen))

    def hook(self) -> InstallHook:
        """Return the certificate, which its pods mount, and the configurations.

        These come when every replica is as it is now.
        """
        certificate = InstallStep("the webhook's certificate", self.certify, "TLS")
        wait = partial(wait_for_rollout, self.context, [DEPLOYMENT])
        return InstallHook(
            before_objects=[certificate] if self.plan.secret else (),
            after_cards=(
                InstallStep("the webhook's rollout", wait, "Waiting"),
                InstallStep("the webhook's configurations", self.ask, "Webhook"),
            ),
        )

    def certify(self) -> None:
        """Write a new certificate, after the caBundle has its authority."""
        for body in self.plan.trusting:
            self._writer.put(body)
        if self.plan.secret:
            self._writer.put(self.plan.secret)
        self.context.screen.say(f"written: {SECRET}")

    def ask(self) -> None:
        """Let the API server ask the webhook, and trust no former authority.

        If it has not asked before, it asks about the probe pod only, until that proves
        that it reaches the webhook.
        """
        plan, screen = self.plan, self.context.screen
        new = [body for body in plan.asking if Ref.of(body) in plan.new]
        changing = {change.ref for change in self.changes}
        due = [
            body
            for body in plan.asking
            if body not in new and (plan.trusting or Ref.of(body) in changing)
        ]
        self._apply([*due, *map(narrow_to_probe, new)])
        result = self._probe()
        if result.reached is False:
            for body in new:
                self.context.objects.delete(Ref.of(body))
            stays = (
                "The API server does not call it, so pods are created as before"
                if len(new) == len(plan.asking)
                else "The API server still asks it, so no pod with cards is created "
                "until it is reached; install --no-webhook would let them through"
            )
            raise InstallError(
                "the webhook's pods are Ready, but the API server cannot reach them: "
                f"{result.words}. {stays}. The usual cause is a firewall between the "
                "two",
                f"open port {names.WEBHOOK_PORT} of the pods to the control plane, "
                f"then:\n  {self.again}",
            )
        self._apply(new)
        if result.reached is None:
            screen.say(
                "it is not known whether the API server reaches the webhook: "
                f"{result.words}"
            )
        since = "from now on," if new or due else "as before,"
        screen.say(f"{since} the API server asks the webhook about pods with cards")

    def _probe(self) -> ProbeResult:
        """Try until the API server reaches the webhook, or time is up."""
        last = ProbeResult(reached=False)

        def look() -> list[Waiting]:
            nonlocal last
            last = probe_webhook(self.context.objects)
            what = f"its connection to the webhook: {last.words}"
            return [Waiting("the API server", what)] if last.reached is False else []

        self.context.until(look, REACHED_WITHIN_S)
        return last

    def _apply(self, bodies: Iterable[Json]) -> None:
        for body in bodies:
            if self.plan.seen:
                self._writer.put(body)
            else:
                # cert-manager may write to them at any time.
                self.context.objects.apply(body)


def find_webhook_objects(context: Context) -> tuple[Ref, ...]:
    """Return the existing objects of a webhook in the order in which they are deleted.

    The configurations are first. Each object is looked for, since an earlier removal
    may have been interrupted. If anything exists, objects that the user may not read
    count as existing, so that the right to them is asked for.
    """
    objects = context.objects
    rest = map(Ref.of, reversed(served_objects(objects, context.load(BY_CERT_MANAGER))))
    refs = list(dict.fromkeys([*CONFIGURATIONS, *rest, *SECRETS]))
    unknown = [ref for ref in refs if not may_get(objects, ref)]
    there = [ref for ref in refs if ref not in unknown and objects.get(ref)]
    return tuple(ref for ref in refs if ref in (*there, *unknown)) if there else ()


def probe_webhook(objects: Objects) -> ProbeResult:
    """Let the API server create the probe pod as a dry run; a refusal is no error."""
    try:
        made = objects.create(webhook_probe_pod(), dry_run=True)
    except ClusterError as error:
        # It answers 500 for a webhook that it cannot reach. A definite refusal comes
        # from elsewhere, such as a policy for that namespace.
        if error.definite and not error.retryable:
            return ProbeResult(None, f"the probe pod was refused: {error}")
        return ProbeResult(reached=False, words=str(error))
    changed = _is_changed(made)
    if changed is None:
        return ProbeResult(None, "the probe pod was changed by another webhook")
    if changed:
        return ProbeResult(reached=True)
    return ProbeResult(
        reached=False, words="it creates pods without asking the webhook"
    )


def webhook_probe_pod() -> Json:
    """Return a pod that every level of Pod Security admits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "containers": [deepcopy(_CONTAINER)],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def narrow_to_probe(configuration: Json) -> Json:
    """Limit a configuration to the probe pod."""
    narrowed = deepcopy(configuration)
    for webhook in narrowed["webhooks"]:
        webhook["matchConditions"] = [_PROBE_ONLY, *webhook.get("matchConditions", ())]
    return narrowed


def _is_changed(pod: Json) -> bool | None:
    """Return whether the webhook has added the cores; None if that cannot be known.

    Other webhooks may add containers, or remove the probe's.
    """
    containers = pod["spec"].get("containers") or ()
    probes = [
        container
        for container in containers
        if container.get("name") == _CONTAINER["name"]
    ]
    limits = ((probes[0].get("resources") or {}).get("limits") or {}) if probes else {}
    if names.CORE in limits:
        return True
    return False if names.MEMORY in limits else None
