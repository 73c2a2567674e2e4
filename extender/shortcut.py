"""A shorter way than Flask's for requests as Kubernetes itself writes them.

Matching a route, a request and a response object cost as much as most answers. Whatever
is written otherwise goes the long way, and so does every error.
"""

from collections.abc import Callable, Iterable, Mapping
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask

JSON = "application/json"
MOST_BYTES = 8 << 20
"""Of one request; 10,000 names and the largest pod are under 3 MiB."""
_MOST_DIGITS = 10
_UNHEARD = {"HTTP_TRANSFER_ENCODING", "HTTP_EXPECT"}
"""Of requests whose body has not come: ``extender.wholerequest`` waits for none."""

Answer = Callable[[bytes], bytes]


def anybody(_environ: WSGIEnvironment) -> bool:
    """Let every request take the short way."""
    return True


def shortened(
    app: Flask,
    answers: Mapping[str, Answer],
    welcome: Callable[[WSGIEnvironment], bool] = anybody,
) -> WSGIApplication:
    """Answer a plain POST to one of these paths at once, and leave the rest to Flask.

    Flask is to know the same paths. ``welcome`` tells which requests it need not see.
    What an answer raises is said as Flask's own error handlers would.
    """

    def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        answer, length = answers.get(environ["PATH_INFO"]), plain_length(environ)
        if answer is None or length is None or not welcome(environ):
            return app(environ, start)
        # Who hangs up in the middle is no error of ours: gunicorn takes it from here.
        asked = environ["wsgi.input"].read(length)
        try:
            said = answer(asked)
        except Exception as error:  # noqa: BLE001
            with app.request_context(environ):
                wrong = app.make_response(app.handle_user_exception(error))
                return wrong(environ, start)
        start("200 OK", [("Content-Type", JSON), ("Content-Length", str(len(said)))])
        return [said]

    return application


def plain_length(environ: WSGIEnvironment) -> int | None:
    """Give the body's length where a request is as Kubernetes writes it, else None."""
    plain = environ["REQUEST_METHOD"] == "POST" and environ.get("CONTENT_TYPE") == JSON
    length = environ.get("CONTENT_LENGTH") or ""
    whole = not environ.keys() & _UNHEARD
    if not (plain and whole and length.isdigit()) or len(length) > _MOST_DIGITS:
        return None
    return int(length) if int(length) <= MOST_BYTES else None
