"""The headers of our page."""

import base64
import hashlib

import pytest

from gpushare.server.page_policy import make_page_headers


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy(html: str) -> list[str]:
    return make_page_headers(html.encode())["Content-Security-Policy"].split("; ")


def test_own_style_and_script_are_named_by_their_hashes() -> None:
    found = policy("<style>a{}\n</style><p></p><script>\n1</script><script>2</script>")
    styles = digest("a{}\n")
    scripts = digest("\n1"), digest("2")
    assert f"style-src 'sha256-{styles}'" in found
    assert f"script-src 'sha256-{scripts[0]}' 'sha256-{scripts[1]}'" in found


@pytest.mark.parametrize("html", ["<p>words</p>", "<script src='x.js'></script>"])
def test_a_page_without_a_script_of_its_own_may_run_none(html: str) -> None:
    found = policy(html)
    assert "default-src 'none'" in found
    assert not [one for one in found if one.startswith(("script-src", "style-src"))]


def test_no_other_page_gets_hold_of_it() -> None:
    headers = make_page_headers(b"")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "form-action 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
