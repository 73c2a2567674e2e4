"""``ui``: the page on loopback, the extender that it comes from, and the command.

With a real port-forward: ``tests/cluster/test_ui.py``.
"""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden, NotFound, Unavailable
from gpusharectl.commands import main
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.state.extender import read_certificates
from gpusharectl.ui import Extenders, PageServer, announce_page, read_reported_use
from tests.builders import card
from tests.gpusharectl.cluster_states import answered, extender, guarded, node_of, quota
from tests.gpusharectl.conftest import put
from tests.gpusharectl.exporter_pages import Shown, Use, page
from tests.gpusharectl.top_states import exporter
from tests.testbed.certificates import Certificates, certificates

PAGES = {"/ui": b"<script>1</script>", "/ui/state": b'{"v": 1}'}


class FakeExtender:
    """An extender that answers these, and remembers what it was asked."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self.pages = pages
        self.paths: list[str] = []

    def get(self, path: str) -> bytes:
        self.paths.append(path)
        if path not in self.pages:
            raise Unavailable("ext-1: connection refused")
        return self.pages[path]


@pytest.fixture
def asked() -> FakeExtender:
    return FakeExtender(PAGES)


@pytest.fixture
def window(asked: FakeExtender) -> Iterator[PageServer]:
    with PageServer(0, asked.get) as found:
        yield found


def call(
    window: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", window.address.port, timeout=30)
    try:
        link.request(method, path, headers=headers)
        answer = link.getresponse()
        return answer, answer.read()
    finally:
        link.close()


def test_the_page_and_its_state_come_through(
    window: PageServer, asked: FakeExtender
) -> None:
    """With the headers that the extender would send."""
    page, body = call(window, f"{window.place}/ui")
    assert (page.status, body) == (200, PAGES["/ui"])
    assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    told, body = call(window, f"{window.place}/ui/state?x=1")
    assert (told.status, body) == (200, PAGES["/ui/state"])
    assert told.headers["Content-Type"] == "application/json"
    assert window.url == f"http://127.0.0.1:{window.address.port}{window.place}/ui"
    assert asked.paths == ["/ui", "/ui/state"]


@pytest.mark.parametrize(
    ("method", "status", "paths"),
    [
        # Whoever else has a login here may find the port.
        ("GET", 404, "/ /ui /ui/state /snapshot /scheduler/bind /x/ui"),
        # With the secret there is the page alone.
        ("GET", 404, "SECRET/snapshot SECRET/metrics SECRET/ui/"),
        ("GET", 404, "SECRET/ui/../snapshot"),
        # Nothing that could bind a pod goes through.
        ("POST", 405, "/scheduler/bind SECRET/scheduler/bind SECRET/ui"),
        ("PUT", 405, "SECRET/ui"),
        ("DELETE", 405, "SECRET/ui"),
        ("OPTIONS", 405, "SECRET/ui"),
    ],
)
def test_nothing_else_reaches_the_extender(
    window: PageServer, asked: FakeExtender, method: str, status: int, paths: str
) -> None:
    for path in paths.replace("SECRET", window.place).split():
        assert call(window, path, method)[0].status == status, path
    assert asked.paths == []


def test_the_root_redirects_to_the_page(
    window: PageServer, asked: FakeExtender
) -> None:
    """Only below the secret, which would otherwise be told to anybody."""
    for path in (window.place, f"{window.place}/"):
        answer, body = call(window, path)
        assert (answer.status, body) == (302, b"")
        assert answer.headers["Location"] == f"{window.place}/ui"
    assert asked.paths == []


def test_use_is_served_where_exporters_can_be_asked(asked: FakeExtender) -> None:
    """The page learns its path from the answer with the state, and nowhere else."""
    use = {"v": 1, "nodes": {}}
    with PageServer(0, asked.get, lambda: use) as window:
        told, _ = call(window, f"{window.place}/ui/state")
        assert told.headers["Vcuda-Use"] == f"{window.place}/ui/use"
        answer, body = call(window, told.headers["Vcuda-Use"])
        assert (answer.status, json.loads(body)) == (200, use)
        assert answer.headers["Cache-Control"] == "no-store"
        assert call(window, "/ui/use")[0].status == 404
    with PageServer(0, asked.get) as window:
        told, _ = call(window, f"{window.place}/ui/state")
        assert "Vcuda-Use" not in told.headers
        assert call(window, f"{window.place}/ui/use")[0].status == 404


class FakeExporters:
    """Stands in for ``ApiObjects``: each node's exporter, its answer, and quotas."""

    def __init__(self, **answers: bytes | ClusterError) -> None:
        self.answers = answers
        self.quotas: Sequence[Json] | ClusterError = ()

    def list(self, *kind: str, namespace: str, label_selector: str = "") -> Any:
        if (*kind, namespace) == ("v1", "ResourceQuota", ""):
            return answered(self.quotas)
        assert (*kind, namespace) == ("v1", "Pod", "kube-system")
        assert label_selector == "app.kubernetes.io/name=gpushare-exporter"
        return [exporter(name) for name in self.answers]

    def fetch(self, _namespace: str, pod: str, port: int, path: str) -> Any:
        assert (port, path) == (9400, "/metrics")
        return answered(self.answers[pod.removeprefix("gpushare-exporter-")])


def test_what_the_exporters_report() -> None:
    """By card and pod; what is not known is null, and a silent node says why."""
    uses = (
        Use("a", 700, 3, container="one"),
        Use("a", 300, 2, container="two", over=True),
        Use("b", None, 1, held=0),
    )
    shown = Shown("GPU-0", 0, 1000, 5, uses=uses)
    objects: Any = FakeExporters(n=page(shown), m=Unavailable("reset"))
    found = read_reported_use(objects)
    pods = [
        {"card": "GPU-0", "namespace": "default", "name": name} | told
        for name, told in (
            ("a", {"used_mib": 1000, "over": True, "not_held": False}),
            ("b", {"used_mib": None, "over": False, "not_held": True}),
        )
    ]
    cards = {"GPU-0": {"used_mib": 1000, "busy_percent": 5}}
    assert found["nodes"]["n"] == {"cards": cards, "pods": pods}
    assert found["nodes"]["m"]["because"] == "its exporter does not answer: reset"
    nobody: Any = FakeExporters()
    assert read_reported_use(nobody) == {"v": 1, "nodes": {}, "troubles": []}


def test_quotas_are_reported_beside_use() -> None:
    """Those with keys that count nothing; unread ones are unknown, and use is there."""
    objects: Any = FakeExporters(n=page(Shown("GPU-0", 0, 1000, 5)))
    right = quota("lab", hard={f"requests.{names.CORE}": "1"})
    objects.quotas = [quota("edge", hard={f"limits.{names.CORE}": "1"}), right]
    (trouble,) = read_reported_use(objects)["troubles"]
    assert trouble["about"] == "quota edge/gpu"
    assert f"count nothing: limits.{names.CORE};" in trouble["what"]
    objects.quotas = Forbidden("resourcequotas is forbidden")
    answer = read_reported_use(objects)
    assert list(answer["nodes"]["n"]["cards"]) == ["GPU-0"]
    (trouble,) = answer["troubles"]
    assert trouble["about"] == "quotas"
    assert "cannot be read: resourcequotas is forbidden" in trouble["what"]


def test_a_name_from_elsewhere_is_not_answered(window: PageServer) -> None:
    """A page from elsewhere could let its own name point here."""
    for host in ("127.0.0.1:1234", "localhost:80", "localhost"):
        assert call(window, f"{window.place}/ui", Host=host)[0].status == 200
    for host in ("elsewhere.example", "127.0.0.1.elsewhere.example", ""):
        assert call(window, f"{window.place}/ui", Host=host)[0].status == 404


def test_an_extender_that_does_not_answer_is_told(
    window: PageServer, asked: FakeExtender
) -> None:
    """In its words, for the page to show."""
    asked.pages = {}
    answer, body = call(window, f"{window.place}/ui/state")
    assert answer.status == 502
    assert json.loads(body) == {"error": "ext-1: connection refused"}


def test_the_port(asked: FakeExtender) -> None:
    """A taken one is an error; a free one can be had again at once, with a new secret.

    Connections that have just ended do not keep it.
    """
    with PageServer(0, asked.get) as first:
        port = first.address.port
        assert call(first, f"{first.place}/ui")[1] == PAGES["/ui"]
        with pytest.raises(OSError, match="in use"):
            PageServer(port, asked.get)
    with PageServer(port, asked.get) as again:
        assert again.place != first.place
        assert len(again.place) > 16


@pytest.mark.parametrize(
    ("opens", "screen", "says"),
    [
        (True, "DISPLAY", ""),
        (False, "BROWSER", "No browser could be opened"),
        (True, "", "ssh -L"),
        (None, "DISPLAY", ""),
    ],
    ids=["opened", "none-there", "no-screen", "not-wanted"],
)
def test_a_browser_is_opened_where_there_is_a_screen(
    window: PageServer, opens: bool | None, screen: str, says: str
) -> None:
    """No text browser takes over the terminal; the address is told always."""
    browse = None if opens is None else Mock(return_value=opens)
    lines = announce_page(window, browse, {screen: ":0"})
    assert browse is None or browse.called == bool(screen)
    assert lines[0] == f"The page is at {window.url}"
    assert says in "\n".join(lines)
    assert len(lines) == (3 if says else 2)


class FakeObjects:
    """Stands in for ``ApiObjects``: what each extender answers."""

    def __init__(
        self, answers: Mapping[str, bytes | ClusterError], pods: Sequence[Json] = ()
    ) -> None:
        self.answers = dict(answers)
        self.pods = pods or [extender(name) for name in answers]
        self.asked: list[tuple[str, bool]] = []

    def list(self, *kind: str, namespace: str, label_selector: str) -> Sequence[Json]:
        assert (*kind, namespace) == ("v1", "Pod", "kube-system")
        assert "gpushare-extender,gpushare-scheduler" in label_selector
        return self.pods

    def fetch(
        self, namespace: str, pod: str, port: int, path: str, *, tls: object
    ) -> Any:
        assert (namespace, port, path) == ("kube-system", 39999, "/ui")
        self.asked.append((pod, tls is not None))
        return answered(self.answers[pod])


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("ui") / "tls")


def test_the_one_that_answered_last_is_asked_first() -> None:
    """If it ends, another takes over."""
    objects = FakeObjects({"x": Unavailable("connection refused"), "y": b"page"})
    found = Extenders(objects)
    assert found.get("/ui") == b"page"
    assert found.get("/ui") == b"page"
    objects.answers = {"x": b"other", "y": Unavailable("gone")}
    assert found.get("/ui") == b"other"
    assert [name for name, _ in objects.asked] == ["x", "y", "y", "y", "x"]


UNREADY = [extender("x", ready=False)]


@pytest.mark.parametrize(
    ("answers", "pods", "words"),
    [
        ({}, [], "there is no extender pod in kube-system"),
        ({}, UNREADY, "is ready; see kubectl -n"),
        ({"x": NotFound("404")}, [], "x has no page; .*install --ui"),
        ({"x": Unavailable("reset")}, [], "^x: reset"),
        # The next extender would need the same right.
        ({"x": Forbidden("no p"), "y": b"page"}, [], "no p"),
        ({}, [guarded("x")], r"as root .* with --certificates"),
    ],
    ids=["none", "not-ready", "switched-off", "silent", "forbidden", "certificates"],
)
def test_what_to_do_when_nobody_answers(
    answers: Mapping[str, bytes | ClusterError], pods: Sequence[Json], words: str
) -> None:
    with pytest.raises(ClusterError, match=words):
        Extenders(FakeObjects(answers, pods)).get("/ui")


def test_certificates_are_for_those_that_want_them(held: Certificates) -> None:
    """Each by its own settings."""
    objects = FakeObjects(
        {"x": Unavailable("no"), "y": b"page"}, [guarded("x"), extender("y")]
    )
    assert Extenders(objects, read_certificates(held.folder)).get("/ui") == b"page"
    assert objects.asked == [("x", True), ("y", False)]


def ran(cluster: Embedded, tmp_path: Path, *words: str) -> Result:
    with ApiServerOnLoopback(cluster) as server:
        kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
        given = ["ui", "--no-open", *words, "--kubeconfig", kubeconfig]
        return CliRunner().invoke(main, given)


def test_the_command_says_what_to_do(tmp_path: Path) -> None:
    """Not installed; without an extender; one out of reach; without certificates."""
    cluster = Embedded()
    found = ran(cluster, tmp_path)
    assert found.exit_code == 1
    assert "is not installed in this cluster; run gpusharectl install" in found.output
    assert "The page is at" not in found.output
    cluster.create(Kind.NODES, node_of("node-1", card(0)))
    found = ran(cluster, tmp_path)
    assert found.exit_code == 1
    assert "no extender pod in kube-system; gpusharectl inspect shows" in found.output
    pod = extender("ext-1")
    pod["spec"]["containers"][0]["env"] = [{"name": "GPUSHARE_UI", "value": "on"}]
    put(cluster, pod)
    found = ran(cluster, tmp_path)
    assert found.exit_code == 1
    assert "ext-1: " in found.output
    found = ran(cluster, tmp_path, "--certificates", str(tmp_path))
    assert found.exit_code == 1
    assert f"--certificates: {tmp_path} cannot be used" in found.output
    assert "ca.crt" in found.output
