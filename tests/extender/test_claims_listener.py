"""The real extender's second listener: reviews of ResourceClaims, and nothing else."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import orjson
import pytest

from gpushare.addresses import find_free_address
from gpushare.kube.cluster import Json, Kind
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import allocation_json, card, claim_json, node_json, pod_json
from tests.extender.server.test_resource_claims_app import review
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.gunicorn_server import running_server
from tests.testbed.rest import Rest

pytestmark = pytest.mark.processes

FILTER = {"Pod": pod_json(units=20), "NodeNames": ["n"]}


@dataclass(frozen=True)
class Site:
    """An extender with verbs by plain HTTP, and reviews by TLS."""

    cluster: Embedded
    held: Certificates
    inner: int
    claims: int
    public: Rest

    def post(self, port: int, path: str, body: Json) -> tuple[int, Json]:
        link: http.client.HTTPConnection
        if port == self.claims:
            context = self.held.client(None)
            link = http.client.HTTPSConnection("localhost", port, context=context)
        else:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with closing(link):
            headers = {"Content-Type": "application/json"}
            link.request("POST", path, orjson.dumps(body), headers)
            answer = link.getresponse()
            return answer.status, orjson.loads(answer.read())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("claims")
    held = certificates(folder / "tls")
    cluster = Embedded(bookmark_every_s=0.5)
    cluster.create(Kind.NODES, node_json("n", card(units=29)))
    claims = find_free_address()
    settings = {
        "CLAIMS_LISTEN": str(claims),
        "CLAIMS_TLS_CERT": held.path("server.crt"),
        "CLAIMS_TLS_KEY": held.path("server.key"),
    }
    with running_server(folder, "extender", cluster, settings) as server:
        yield Site(cluster, held, server.port, claims.port, server.public)


def test_each_listener_has_its_own_paths(site: Site) -> None:
    """Who may ask about claims cannot bind, and the other way round."""
    question = review(claim_json("c", allocation_json(units=4)), dryRun=True)
    assert site.post(site.claims, "/claims", question)[0] == 200
    assert site.post(site.claims, "/scheduler/filter", FILTER)[0] == 404
    assert site.post(site.inner, "/scheduler/filter", FILTER)[0] == 200
    assert site.post(site.inner, "/claims", question)[0] == 404


def test_each_listener_has_its_own_protocol(site: Site) -> None:
    """TLS on one port and plain HTTP on the other, in one process."""
    with closing(http.client.HTTPConnection("127.0.0.1", site.claims)) as link:
        link.request("GET", "/claims")
        with pytest.raises((http.client.HTTPException, OSError)):
            link.getresponse()
    context = site.held.client(None)
    tls = http.client.HTTPSConnection("localhost", site.inner, context=context)
    with closing(tls), pytest.raises(ssl.SSLError):
        tls.request("GET", "/healthz")


def test_a_review_counts_for_filter(site: Site) -> None:
    """One ledger behind both listeners."""
    question = review(claim_json("whole", allocation_json(units=29)))
    _, answer = site.post(site.claims, "/claims", question)
    assert answer["response"]["allowed"] is True
    _, found = site.post(site.inner, "/scheduler/filter", FILTER)
    assert found["NodeNames"] == []
    metrics = site.public.get("/metrics")[1]["text"]
    assert "vcuda_extender_claims_reserved 1.0" in metrics
