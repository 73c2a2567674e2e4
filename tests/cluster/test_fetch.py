"""What the operator's hands read out of a pod: its log, and a page of its loopback."""

from collections.abc import Iterator

import pytest

from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.errors import Invalid, NotFound, Unavailable
from gpushare.kube.objects import Objects
from tests.cluster.manifests import container, pod
from tests.cluster.site import Site
from tests.testbed.waiting import wait_until

NAME = "served"
SPACE = "default"
SCRIPT = (
    "mkdir /www; i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done "
    "> /www/page; echo one; echo two; exec httpd -f -p 127.0.0.1:8080 -h /www"
)
PAGE = b"".join(b"line %d\n" % number for number in range(20_000))


@pytest.fixture(scope="module")
def served(whole_site: Site) -> Iterator[Objects]:
    """A pod with a page that nobody outside of it can reach."""
    whole_site.create(pod(NAME, container(script=SCRIPT)))
    whole_site.wait_running(NAME)
    objects = ApiObjects.connect(str(whole_site.cluster.kubeconfig))
    wait_until(lambda: answers(objects), "the pod's server")
    yield objects
    objects.close()
    whole_site.clear()


def answers(objects: Objects) -> bool:
    """Tell whether the pod has written its page and serves it."""
    try:
        return bool(objects.fetch(SPACE, NAME, 8080, "/page"))
    except Unavailable:
        return False


def test_a_page_of_a_pods_loopback(served: Objects) -> None:
    """Whole, and again: each time by a connection of its own."""
    for _ in range(2):
        assert served.fetch(SPACE, NAME, 8080, "/page") == PAGE


def test_a_page_that_is_not_there(served: Objects) -> None:
    """The server's own refusal."""
    with pytest.raises(NotFound, match=r"^/none answers 404: "):
        served.fetch(SPACE, NAME, 8080, "/none")


def test_a_port_on_which_nobody_listens(served: Objects) -> None:
    """kubelet's words, since the connection alone says nothing."""
    with pytest.raises(Unavailable, match=r"from port 81 of Pod default/served .*81"):
        served.fetch(SPACE, NAME, 81, "/page")


def test_a_pod_that_is_not_there(served: Objects) -> None:
    """The API server's words."""
    with pytest.raises(NotFound, match='pods "nobody" not found'):
        served.fetch(SPACE, "nobody", 8080, "/page")


def test_the_last_lines_of_a_log(served: Objects) -> None:
    """Of one container; of one that is not there, the API server's words."""
    assert served.log(SPACE, NAME) == "one\ntwo\n"
    assert served.log(SPACE, NAME, "main", lines=1) == "two\n"
    with pytest.raises(Invalid, match="other is not valid for pod served"):
        served.log(SPACE, NAME, "other")
