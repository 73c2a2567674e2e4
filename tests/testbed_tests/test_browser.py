"""The browser of the test bed: nothing that a page does wrong goes unheard."""

from pathlib import Path

import pytest

from tests.testbed.browser import Browser

WELL = "<!doctype html><title>t</title><link rel=icon href='data:,'><p>words</p>"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("", ""),
        ("<script>console.error('oh', 'no')</script>", "no"),
        ("<script>console.warn('mind')</script>", "mind"),
        ("<script>throw new Error('thrown')</script>", "thrown"),
        ("<script>Promise.reject(new Error('late'))</script>", "late"),
        ("<img src='nowhere.png'>", "nowhere.png"),
    ],
    ids=["nothing", "error", "warning", "exception", "rejection", "not-found"],
)
def test_what_is_wrong_with_a_page_is_heard(
    browser: Browser, tmp_path: Path, wrong: str, words: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(WELL + wrong)
    tab = browser.open(page.as_uri())
    tab.wait_for("document.readyState === 'complete'", "whole page")
    assert tab.text("p") == "words"
    assert len(tab.complaints) == bool(wrong)
    assert words in "".join(tab.complaints)
