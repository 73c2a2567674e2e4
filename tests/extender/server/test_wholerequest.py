"""When a request is whole, by its bytes alone."""

import pytest

from extender.server.workers import MOST_HEAD, Heard, Pieces

LINE = b"POST /mutate HTTP/1.1\r\n"
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"
EXPECTING = LINE + b"Content-Length: 4\r\nexpect: 100-continue\r\n\r\n"
MOST = 1000


def of_length(length: int, body: bytes = b"") -> bytes:
    return LINE + b"Host: a\r\ncontent-length:  %d \r\n\r\n" % length + body


@pytest.mark.parametrize(
    ("data", "heard"),
    [
        (b"", Heard.NOTHING),
        (b"P", Heard.PART),
        (LINE, Heard.PART),
        (LINE + b"\r\n", Heard.WHOLE),
        (of_length(4), Heard.PART),
        (of_length(4, b"bod"), Heard.PART),
        (of_length(4, b"body"), Heard.WHOLE),
        (of_length(4, b"body and more"), Heard.WHOLE),
        (CHUNKED, Heard.WHOLE),
        (CHUNKED + b"4\r\nbody\r\n", Heard.WHOLE),
        (EXPECTING, Heard.WHOLE),
        (LINE + b"A: " + bytes(MOST_HEAD), Heard.WHOLE),
        (LINE + b"Content-Length: many\r\n\r\n", Heard.WHOLE),
        (LINE + b"Content-Length: -1\r\n\r\n", Heard.WHOLE),
        (LINE + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", Heard.WHOLE),
        (b"\r\n\r\n", Heard.WHOLE),
    ],
)
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_how_much_there_is(data: bytes, heard: Heard, size: int) -> None:
    """However the bytes come. What is no request the parser is to say."""
    pieces = Pieces(MOST)
    for at in range(0, len(data), size):
        pieces.add(data[at : at + size])
    assert pieces.heard() is heard


def test_reading() -> None:
    """As it came, and then nothing."""
    pieces = Pieces(MOST)
    pieces.add(of_length(4, b"body"))
    found = b"".join(iter(lambda: pieces.take(3), b""))
    assert found == of_length(4, b"body")
    assert pieces.take(3) == b""


@pytest.mark.parametrize("head", [CHUNKED, EXPECTING, of_length(10**20)])
def test_a_body_whose_end_is_not_known(head: bytes) -> None:
    """Its head alone is answered; what comes after it is no request."""
    pieces = Pieces(MOST)
    pieces.add(head + b"4\r\nPOST")
    pieces.add(b" / HTTP/1.1\r\n\r\n")
    assert pieces.cut
    assert pieces.heard() is Heard.WHOLE
    assert pieces.take(10 * MOST) == head


def test_another_request_may_follow_one_that_was_kept() -> None:
    """Whether it has a body or none."""
    for data in (of_length(4, b"body and more"), LINE + b"\r\n"):
        pieces = Pieces(MOST)
        pieces.add(data)
        assert not pieces.cut


@pytest.mark.parametrize("size", [100, 5000])
def test_a_body_that_is_too_long_is_heard_out_and_not_kept(size: int) -> None:
    """Its length is refused; hung up on before its end, a client would not see that."""
    pieces = Pieces(MOST)
    data = of_length(MOST + 1, bytes(MOST + 1))
    kept = 0
    for at in range(0, len(data), size):
        assert pieces.heard() is not Heard.WHOLE
        pieces.add(data[at : at + size])
        kept = max(kept, len(pieces.kept))
    assert pieces.heard() is Heard.WHOLE
    assert pieces.cut
    assert pieces.take(10 * MOST) == of_length(MOST + 1)
    assert kept <= len(of_length(MOST + 1)) + size
