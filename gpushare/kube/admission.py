"""Read and answer AdmissionReview v1, the API server's question about an object."""

import base64
from collections.abc import Sequence

import orjson

from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed, Reader

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
DENIED = 400
"""HTTP status of a denial. It has no ``reason``: for ``Forbidden``, kubectl would print
``Error from server (Forbidden)``, and people would look at their RBAC rights."""


def read_admission_request(body: bytes) -> Reader:
    """Read a review's request; ``Malformed`` for one that no API server would send."""
    if not body:
        raise Malformed("body", "is empty; POST an AdmissionReview")
    review = Reader(Reader.parse(body, "body").raw)
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if review.text(key) != expected:
            raise Malformed(key, f"must be {expected}")
    return review.object("request")


def admit(uid: str, steps: Sequence[Json] = (), warnings: Sequence[str] = ()) -> bytes:
    """Write the answer that admits the pod, changed by the steps of a JSON patch."""
    response: Json = {"uid": uid, "allowed": True}
    if steps:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(steps)).decode()
    return _answer(response, warnings)


def deny(uid: str, denials: Sequence[str], warnings: Sequence[str] = ()) -> bytes:
    """Write the answer that denies the pod; each denial is a line of its message."""
    status = {"code": DENIED, "message": "\n".join(denials)}
    return _answer({"uid": uid, "allowed": False, "status": status}, warnings)


def _answer(response: Json, warnings: Sequence[str]) -> bytes:
    if warnings:
        response["warnings"] = list(warnings)
    answer = {"apiVersion": API_VERSION, "kind": KIND, "response": response}
    return orjson.dumps(answer)
