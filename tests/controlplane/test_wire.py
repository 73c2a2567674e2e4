"""The real extender, asked by hand: bad input, and the two listeners."""

import json

import pytest

from tests.controlplane.by_hand import ASK, BIND, asking, call
from tests.controlplane.world import World

pytestmark = pytest.mark.controlplane

VERBS = ("filter", "prioritize", "bind", "preempt")


@pytest.mark.parametrize("verb", VERBS)
def test_malformed_requests(manual: World, verb: str) -> None:
    """A 400 names the field; ten megabytes get a 413; the next is answered."""
    for body in (b"", b"{", b"\xff\xfe", b"nonsense", b"[" * 9999, b"[]", b"null"):
        status, answer = call(manual, verb, body)
        assert (status, answer["field"]) == (400, "body")
    status, answer = call(manual, verb, b'{"Pod": 7, "PodNamespace": 7}')
    assert status == 400
    assert answer["error"].startswith(answer["field"])
    status, answer = call(manual, verb, b"x" * (10 << 20))
    assert status == 413
    assert "Too Large" in answer["error"]
    assert call(manual, "filter", json.dumps(ASK).encode())[0] == 200


def test_invalid_amounts(manual: World) -> None:
    """What no card can meet is refused in words: kube-scheduler never sends these."""
    body = {**ASK, "Pod": asking("500m")}
    answer = manual.extender.rest.must("POST", "/scheduler/filter", body)
    assert answer["NodeNames"] == []
    says = "Invalid vcuda request: baidu.com/vcuda-memory is 500m; it must be whole"
    assert answer["FailedAndUnresolvableNodes"] == {"edge": says}


def test_what_is_public(manual: World) -> None:
    """Whoever reaches the verbs can bind pods: only loopback does."""
    inner, public = manual.extender.rest, manual.extender.public
    for path in ("/healthz", "/readyz", "/metrics"):
        assert public.get(path)[0] == 200
    for verb in VERBS:
        assert public.post(f"/scheduler/{verb}", BIND)[0] == 405
        assert inner.get(f"/scheduler/{verb}")[0] == 405
    assert public.get("/snapshot")[0] == 404
    assert inner.get("/snapshot")[0] == 200
