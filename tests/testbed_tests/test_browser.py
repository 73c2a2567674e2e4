"""The browser of the test bed: nothing that a page does wrong goes unheard."""

from pathlib import Path

import pytest

from tests.testbed.browser import Browser, Tab

WELL = "<!doctype html><title>t</title><link rel=icon href='data:,'><p>words</p>"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(WELL)
    return path


def opened(browser: Browser, page: Path, more: str = "") -> Tab:
    page.write_text(WELL + more)
    return browser.open(page.as_uri())


def test_a_page_is_read(browser: Browser, page: Path) -> None:
    tab = opened(browser, page)
    assert tab.text("p") == "words"
    assert tab.text("h1") == ""
    assert tab.evaluate("Promise.resolve(1 + 1)") == 2
    assert ("paragraph", "") in tab.heard()
    assert tab.picture().startswith(b"\x89PNG")
    assert tab.complaints == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("<script>console.error('oh', 'no')</script>", "no"),
        ("<script>console.warn('mind')</script>", "mind"),
        ("<script>throw new Error('thrown')</script>", "thrown"),
        ("<script>Promise.reject(new Error('late'))</script>", "late"),
        ("<img src='nowhere.png'>", "nowhere.png"),
    ],
    ids=["error", "warning", "exception", "rejection", "not-found"],
)
def test_what_is_wrong_with_a_page_is_heard(
    browser: Browser, page: Path, wrong: str, words: str
) -> None:
    tab = opened(browser, page, wrong)
    tab.wait_for("document.readyState === 'complete'", "whole page")
    (said,) = tab.complaints
    assert words in said


def test_the_reader_s_wishes(browser: Browser, page: Path) -> None:
    tab = opened(browser, page)
    dark = "matchMedia('(prefers-color-scheme: dark)').matches"
    assert tab.evaluate(dark) is False
    tab.seen_as(320, 500, dark=True)
    assert tab.evaluate(dark) is True
    assert tab.evaluate("innerWidth") == 320


def test_a_page_that_nobody_serves(browser: Browser) -> None:
    with pytest.raises(AssertionError, match="ERR_"):
        browser.open("http://127.0.0.1:1/")
