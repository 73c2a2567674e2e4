"""The webhook taken away: what there is of it, in which order, and the step."""

from collections.abc import Sequence

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.hands import Hands
from gpusharectl.install.overlays import BY_CERT_MANAGER
from gpusharectl.install.rights import resource
from gpusharectl.install.steps import Step, Trouble
from gpusharectl.install.survey import served
from gpusharectl.install.webhookobjects import SECRETS, is_configuration


def still_there(hands: Hands) -> tuple[Ref, ...]:
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


def taking_away(hands: Hands, refs: Sequence[Ref]) -> Step:
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
