"""The headers of our page."""

import base64
import hashlib

from gpushare.page_policy import page_headers


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy(html: str) -> list[str]:
    return page_headers(html.encode())["Content-Security-Policy"].split("; ")


def test_own_style_and_script_are_named_by_their_hashes() -> None:
    """Each of them, to the letter, line breaks included."""
    found = policy("<style>a{}\n</style><p></p><script>\n1</script><script>2</script>")
    styles = digest("a{}\n")
    scripts = digest("\n1"), digest("2")
    assert f"style-src 'sha256-{styles}'" in found
    assert f"script-src 'sha256-{scripts[0]}' 'sha256-{scripts[1]}'" in found


def test_a_page_without_a_script_may_run_none() -> None:
    """``default-src`` says so."""
    found = policy("<p>words</p>")
    assert "default-src 'none'" in found
    assert not [one for one in found if one.startswith(("script-src", "style-src"))]


def test_a_script_from_a_file_is_none_of_ours() -> None:
    """Only what stands in the page is let run."""
    found = policy("<script src='x.js'></script>")
    assert not [one for one in found if one.startswith("script-src")]


def test_no_other_page_gets_hold_of_it() -> None:
    """Not in a frame, not by a form, and nothing is told to others."""
    headers = page_headers(b"")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "form-action 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
