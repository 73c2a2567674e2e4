"""A watch request: one JSON event per line until either side hangs up."""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any


class Watch:
    """Iterate over ``{"type": …, "object": …}``; ``close`` from any thread ends it.

    A refusal comes as an event of type ERROR with the API server's Status.
    """

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        target: str,
        headers: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._closed = False
        connection.connect()
        self._socket: socket.socket = connection.sock
        connection.request("GET", target, headers=dict(headers))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            response = self._connection.getresponse()
            if response.status != http.client.OK:
                yield {"type": "ERROR", "object": json.loads(response.read())}
                return
            while line := response.readline():
                yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError):
            if not self._closed:
                raise
        finally:
            self._connection.close()

    def close(self) -> None:
        self._closed = True
        try:
            # close() alone would not wake a thread that is reading.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
