"""Extenders that are wrong on purpose, so that tests can be seen to go red."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.controlplane.world import PLACEMENT, World
from tests.testbed.rest import Json


class NaiveExtender(ThreadingHTTPServer):
    """Answers "all nodes" to every filter.

    Its bind is the real extender's, or, when ``first_card``, a Binding that gives every
    pod all it asks on the node's first card.
    """

    daemon_threads = True

    def __init__(self, world: World, *, first_card: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Verbs)
        self.world = world
        self.first_card = first_card

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/scheduler"

    def answer(self, path: str, body: Json) -> object:
        if path.endswith("/filter"):
            return {"NodeNames": body["NodeNames"]}
        if path.endswith("/prioritize"):
            return [{"Host": name, "Score": 0} for name in body["NodeNames"]]
        if path.endswith("/bind") and self.first_card:
            return self._bind(body)
        return self.world.extender.rest.must("POST", path, body)

    def _bind(self, args: Json) -> Json:
        where = f"/api/v1/namespaces/{args['PodNamespace']}/pods/{args['PodName']}"
        rest = self.world.rest
        (container,) = rest.must("GET", where)["spec"]["containers"]
        amounts = container["resources"]["requests"]
        share = {
            "card": f"{args['Node']}-0",
            "cores": int(amounts.get("baidu.com/vcuda-core", 0)),
            "units": int(amounts.get("baidu.com/vcuda-memory", 0)),
        }
        placement = {"v": 1, "uid": args["PodUID"], "shares": [share]}
        annotations = {PLACEMENT: json.dumps(placement)}
        metadata = {"name": args["PodName"], "annotations": annotations}
        target = {"kind": "Node", "name": args["Node"]}
        rest.must("POST", f"{where}/binding", {"metadata": metadata, "target": target})
        return {"Error": ""}


class _Verbs(BaseHTTPRequestHandler):
    server: NaiveExtender
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        answer = json.dumps(self.server.answer(self.path, body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        """Say nothing; the test's own output is enough."""


@contextmanager
def serving(extender: NaiveExtender) -> Iterator[NaiveExtender]:
    thread = Thread(target=extender.serve_forever)
    thread.start()
    try:
        yield extender
    finally:
        extender.shutdown()
        thread.join()
        extender.server_close()
