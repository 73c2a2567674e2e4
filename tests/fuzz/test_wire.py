"""Whatever is sent to the real servers: no 500, no bug of ours, no growth.

``FUZZ_EXAMPLES`` says how many bodies an address gets; ``make fuzz`` sends more.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.answers import insist
from tests.fuzz.bending import bent, raw
from tests.fuzz.bodies import Target, scheduler_targets, webhook_targets
from tests.fuzz.served import Served, extender, webhook

pytestmark = pytest.mark.processes

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
CALLS = 800
"""As many to warm up as to measure."""
MOST_KIB = 600
"""Of growth, 0.75 KiB a call: about what the body of one pod takes."""
PLENTY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
HEADERS = st.dictionaries(
    st.sampled_from(["Content-Type", "Accept", "Content-Encoding", "Expect", "X-A"]),
    st.sampled_from(["application/json", "text/plain", "gzip", "", "x" * 300, "*/*"]),
    max_size=3,
)
DICE = st.randoms(use_true_random=False)


@pytest.fixture(scope="module", params=["extender", "webhook"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One server for all; in the end it is the same process, and has logged no bug."""
    start = {"extender": extender, "webhook": webhook}[request.param]
    with start(tmp_path_factory.mktemp("fuzz")) as found:
        workers = found.workers()
        yield found
        assert found.public.get("/readyz")[0] == 200
        assert found.workers() == workers
        assert found.said() == []


@PLENTY
@given(dice=DICE)
def test_bent_bodies(served: Served, dice: Random) -> None:
    """What was a right body: answered, or refused with what is wrong in it."""
    targets = webhook_targets() if served.tls else scheduler_targets(served.uids)
    for target in targets:
        body = bent(dice.choice(target.bodies), dice)
        insist(target, body, *served.ask("POST", target.path, body))


@PLENTY
@given(dice=DICE)
def test_what_is_no_body(served: Served, dice: Random) -> None:
    """Any bytes, and JSON that only looks like it."""
    targets = webhook_targets() if served.tls else scheduler_targets(served.uids)
    body = raw(dice)
    for target in targets:
        insist(target, body, *served.ask("POST", target.path, body))


@PLENTY
@given(
    method=st.sampled_from(
        ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]
    ),
    path=st.sampled_from(
        ["/snapshot", "/metrics", "/healthz", "/scheduler/", "/scheduler/filter", "/"]
    ),
    query=st.sampled_from(["", "?", "?a=b", "?v=1&v=2", "?%00", "?" + "q" * 2000]),
    headers=HEADERS,
)
def test_other_requests(
    served: Served, method: str, path: str, query: str, headers: dict[str, str]
) -> None:
    """The snapshot and the rest, by any method, with any query and headers."""
    status, _ = served.ask(method, path + query, None, headers)
    assert status < 500, (method, path, query, headers, status)


@settings(PLENTY, max_examples=max(20, EXAMPLES // 5))
@given(data=st.binary(max_size=300) | st.sampled_from([b"GET / HTTP/9.9\r\n\r\n"]))
def test_what_is_no_http(served: Served, data: bytes) -> None:
    """Bytes on the bare connection: whoever hangs up, the next one is answered."""
    link = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    with closing(link), suppress(OSError):
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        while link.recv(4096):
            pass
    assert served.public.get("/healthz")[0] == 200


def test_memory(served: Served) -> None:
    """No request leaves anything behind: after a warm-up the server grows no more.

    The same dice for all runs, so that a growth is the program's.
    """
    dice = Random(20261122)
    targets = webhook_targets() if served.tls else scheduler_targets(served.uids)
    send(served, targets, dice)
    before = served.resident_kib()
    send(served, targets, dice)
    grown = served.resident_kib() - before
    assert grown < MOST_KIB, f"{grown} KiB more after {CALLS} calls"


def send(served: Served, targets: list[Target], dice: Random) -> None:
    """Send bent bodies and right ones; each pod, each node name is a new one."""
    for number in range(CALLS):
        target = targets[number % len(targets)]
        body = dice.choice(target.bodies)
        data = bent(body, dice) if dice.random() < 0.7 else json.dumps(body).encode()
        fresh = f"{dice.randrange(10**9)}".encode()
        data = data.replace(b'"uid-', b'"uid-' + fresh).replace(b'"n-3"', b'"' + fresh)
        insist(target, data, *served.ask("POST", target.path, data))
