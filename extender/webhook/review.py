"""AdmissionReview v1: what the API server asks, and what it is answered. Pure."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed, Reader

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
DENIED = 400
"""Status of a denial, which has no reason beside it: with ``Forbidden`` kubectl says
``Error from server (Forbidden)``, which sends people to look at their rights."""
_DEBUGGING = "ephemeralcontainers"


@dataclass(frozen=True, slots=True)
class Question:
    """One review: a pod that is made, or gets a debugging container.

    ``pod`` is None where it is about anything else, which we have no rules for; ``old``
    is the pod before, None where there was none; ``user`` is who asks for it.
    """

    uid: str
    namespace: str
    pod: Json | None
    old: Json | None = None
    user: str = ""


def question(body: bytes) -> Question:
    """Read a review; ``Malformed`` for what no API server would send."""
    if not body:
        raise Malformed("body", "is empty; POST an AdmissionReview")
    review = Reader(Reader.parse(body, "body").raw)
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if review.text(key) != expected:
            raise Malformed(key, f"must be {expected}")
    request = review.object("request")
    uid, namespace = request.text("uid"), request.optional_text("namespace")
    kind = request.object("kind")
    is_pod = not kind.optional_text("group") and kind.optional_text("kind") == "Pod"
    what = request.optional_text("operation"), request.optional_text("subResource")
    if not is_pod or what not in (("CREATE", ""), ("UPDATE", _DEBUGGING)):
        return Question(uid, namespace, None)
    old = request.object("oldObject").raw if what[1] else None
    user = request.optional_object("userInfo").optional_text("username")
    return Question(uid, namespace, request.object("object").raw, old, user)


def allowed(
    uid: str, steps: Sequence[Json] = (), warnings: Sequence[str] = ()
) -> bytes:
    """Let the pod through, changed by these steps."""
    response: Json = {"uid": uid, "allowed": True}
    if steps:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(steps)).decode()
    return _answer(response, warnings)


def denied(uid: str, denials: Sequence[str], warnings: Sequence[str] = ()) -> bytes:
    """Turn the pod away; each denial is a line of the message."""
    status = {"code": DENIED, "message": "\n".join(denials)}
    return _answer({"uid": uid, "allowed": False, "status": status}, warnings)


def _answer(response: Json, warnings: Sequence[str]) -> bytes:
    if warnings:
        response["warnings"] = list(warnings)
    answer = {"apiVersion": API_VERSION, "kind": KIND, "response": response}
    return orjson.dumps(answer)
