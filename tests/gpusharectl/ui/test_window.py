"""The page on this machine's loopback."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from threading import Thread

import pytest

from gpushare.kube.errors import Unavailable
from gpusharectl.ui import Window, announced

PAGES = {"/ui": b"<script>1</script>", "/ui/state": b'{"v": 1}'}


class Asked:
    """An extender that answers these, and remembers what it was asked."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self.pages = pages
        self.paths: list[str] = []

    def get(self, path: str) -> bytes:
        self.paths.append(path)
        if path not in self.pages:
            raise Unavailable("ext-1: connection refused")
        return self.pages[path]


@contextmanager
def opened(asked: Asked) -> Iterator[Window]:
    with Window(0, asked.get) as window:
        thread = Thread(target=window.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield window
        finally:
            window.shutdown()
            thread.join()


@pytest.fixture
def asked() -> Asked:
    return Asked(PAGES)


@pytest.fixture
def window(asked: Asked) -> Iterator[Window]:
    with opened(asked) as found:
        yield found


def call(
    window: Window, path: str, method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", window.server_port, timeout=30)
    try:
        link.request(method, path, headers=headers)
        answer = link.getresponse()
        return answer, answer.read()
    finally:
        link.close()


def test_the_page_and_its_state_come_through(window: Window, asked: Asked) -> None:
    """With the headers that the extender would send."""
    page, body = call(window, f"{window.place}/ui")
    assert (page.status, body) == (200, PAGES["/ui"])
    assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    told, body = call(window, f"{window.place}/ui/state?x=1")
    assert (told.status, body) == (200, PAGES["/ui/state"])
    assert told.headers["Content-Type"] == "application/json"
    assert window.url == f"http://127.0.0.1:{window.server_port}{window.place}/ui"
    assert asked.paths == ["/ui", "/ui/state"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/ui",
        "/ui/state",
        "/snapshot",
        "/scheduler/bind",
        "/x/ui",
    ],
)
def test_without_the_secret_there_is_nothing(
    window: Window, asked: Asked, path: str
) -> None:
    """Whoever else has a login here may find the port."""
    answer, _ = call(window, path)
    assert answer.status == 404
    assert asked.paths == []


@pytest.mark.parametrize(
    "path", ["", "/", "/snapshot", "/metrics", "/ui/", "/ui/../snapshot"]
)
def test_with_it_there_is_the_page_alone(
    window: Window, asked: Asked, path: str
) -> None:
    """No other path of the extender's."""
    answer, _ = call(window, window.place + path)
    assert answer.status == 404
    assert asked.paths == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_it_is_only_to_be_looked_at(window: Window, asked: Asked, method: str) -> None:
    """Nothing that could bind a pod goes through."""
    for path in (
        "/scheduler/bind",
        f"{window.place}/scheduler/bind",
        f"{window.place}/ui",
    ):
        answer, _ = call(window, path, method)
        assert answer.status == 501
    assert asked.paths == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1234", 200),
        ("localhost:80", 200),
        ("localhost", 200),
        ("elsewhere.example", 404),
        ("127.0.0.1.elsewhere.example", 404),
        ("", 404),
    ],
)
def test_a_name_from_elsewhere_is_not_answered(
    window: Window, host: str, status: int
) -> None:
    """A page from elsewhere could let its own name point here."""
    answer, _ = call(window, f"{window.place}/ui", Host=host)
    assert answer.status == status


def test_an_extender_that_does_not_answer_is_told(asked: Asked) -> None:
    """In its words, for the page to show."""
    asked.pages = {}
    with opened(asked) as window:
        answer, body = call(window, f"{window.place}/ui/state")
    assert answer.status == 502
    assert json.loads(body) == {"error": "ext-1: connection refused"}


def test_the_secret_is_another_each_time(asked: Asked) -> None:
    """And long."""
    with Window(0, asked.get) as one, Window(0, asked.get) as two:
        assert one.place != two.place
        assert len(one.place) > 16


def test_a_taken_port_is_an_error(window: Window, asked: Asked) -> None:
    """The command says which option helps."""
    with pytest.raises(OSError, match="in use"):
        Window(window.server_port, asked.get)


@pytest.mark.parametrize(
    ("opens", "environ", "says", "called"),
    [
        (True, {"DISPLAY": ":0"}, "", True),
        (False, {"BROWSER": "x"}, "No browser could be opened", True),
        (True, {}, "ssh -L", False),
        (None, {"DISPLAY": ":0"}, "", False),
    ],
    ids=["opened", "none-there", "no-screen", "not-wanted"],
)
def test_a_browser_is_opened_where_there_is_a_screen(
    window: Window,
    opens: bool | None,
    environ: dict[str, str],
    says: str,
    called: bool,
) -> None:
    """No text browser takes over the terminal; the address is told always."""
    seen: list[str] = []

    def browse(url: str) -> bool:
        seen.append(url)
        return bool(opens)

    lines = announced(window, None if opens is None else browse, environ)
    assert seen == ([window.url] if called else [])
    assert lines[0] == f"The page is at {window.url}"
    assert says in "\n".join(lines)
    assert len(lines) == (3 if says else 2)


def test_the_port_can_be_had_again_at_once(asked: Asked) -> None:
    """Connections that have just ended do not keep it."""
    with opened(asked) as first:
        port = first.server_port
        assert call(first, f"{first.place}/ui")[1] == PAGES["/ui"]
    Window(port, asked.get).server_close()
