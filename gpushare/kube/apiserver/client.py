"""A connection to an API server: set-up, requests, pages of lists, and errors.

The kubernetes client brings configuration, credentials, TLS and the connection pool.
Requests and answers are raw JSON: parsing a list with the client's models costs 20
times as much (contracts 7), and the models drop fields that they do not know.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

import orjson
import urllib3
import yaml
from kubernetes import client, config

from gpushare.kube.apiserver.post import Poster
from gpushare.kube.cluster import Json, ListPage
from gpushare.kube.errors import (
    AlreadyExists,
    ClusterError,
    Unavailable,
    Unreachable,
    error_for,
)

CONNECT_TIMEOUT_S = 3.0
JSON = "application/json"
_CONNECTIONS = 32
_BAD_FILE = (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError)
"""What the client raises for a file that is not a kubeconfig."""
_CHUNK = 1 << 16
_MANAGED = b',"managedFields":['
_MANAGED_END = b'}]},"spec":{'
_OBJECT = b'"metadata":{'


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of a kubeconfig."""

    names: tuple[str, ...]
    current: str
    """The default context; empty if the file names none."""


def read_contexts(kubeconfig: str) -> Contexts:
    """Read the contexts of a kubeconfig, or of several separated by colons.

    Raises ``Unavailable``, which says what is wrong, if it cannot be read.
    """
    with _read_well(kubeconfig):
        merged = config.kube_config.KubeConfigMerger(  # type: ignore[no-untyped-call]
            kubeconfig
        ).config
        content = {} if merged is None else merged.value
        entries = content.get("contexts") or ()
        names = tuple(str(entry["name"]) for entry in entries)
        return Contexts(names, str(content.get("current-context") or ""))


def configure_client(
    kubeconfig: str | None, context: str | None = None
) -> client.ApiClient:
    """Set up the kubernetes client by a kubeconfig, or by the pod's service account.

    Raises ``Unavailable``, which says what is wrong, if there is neither.
    """
    settings = client.Configuration()
    with _read_well(kubeconfig or "the pod's service account"):
        if kubeconfig is None:
            config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=settings
            )
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                kubeconfig, context=context, client_configuration=settings
            )
    # What was found in the environment stays. Otherwise each renewal of the token, so
    # each request, would look there again, which takes 0.1 ms.
    settings.proxy = settings.proxy
    settings.retries = urllib3.Retry(0, redirect=0)
    settings.connection_pool_maxsize = _CONNECTIONS
    return client.ApiClient(settings)


class ApiConnection:
    """Send requests to an API server; all errors are ``ClusterError``s."""

    WRITE_TIMEOUT_S = 10.0

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._poster = Poster(api)

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Connect by a kubeconfig, or by the pod's service account without one.

        Raises ``Unavailable``, which says what is wrong, if there is neither.
        """
        return cls(configure_client(kubeconfig, context))

    def close(self) -> None:
        """Close the connections."""
        self._poster.close()
        self._api.rest_client.pool_manager.clear()
        self._api.close()  # type: ignore[no-untyped-call]

    @property
    def host(self) -> str:
        """The API server's address, for messages."""
        return str(self._api.configuration.host)

    def _exchange(self, method: str, path: str, **how: Any) -> bytes:  # noqa: ANN401
        """Send one request, as ``_open`` does, and return the answer's body."""
        answer = self._open(method, path, **how)
        with translating_errors():
            text: bytes = answer.read()
        return text

    def _post(self, path: str, body: Json, timeout_s: float) -> None:
        """Send one small object fast; its answer is read only if it is an error."""
        if not self._poster.direct:
            how = {"timeout_s": timeout_s, "body": body, "content_type": JSON}
            self._exchange("POST", path, **how)
            return
        with translating_errors():
            answer = self._poster.post(
                path,
                orjson.dumps(body),
                connect_timeout_s=min(CONNECT_TIMEOUT_S, timeout_s),
                timeout_s=timeout_s,
            )
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            after = answer.retry_after
            raise error_of_answer(answer.status, answer.reason, answer.body, after)

    def _send(
        self,
        method: str,
        path: str,
        body: object,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Send a write, and return the object that the API server answers."""
        answer = self._exchange(
            method,
            path,
            timeout_s=self.WRITE_TIMEOUT_S,
            query=query,
            body=body,
            content_type=content_type,
        )
        return parse_object(answer)

    def _read(self, path: str, **how: Any) -> Json:  # noqa: ANN401
        return parse_object(self._exchange("GET", path, **how))

    def _read_page(
        self,
        path: str,
        *,
        timeout_s: float,
        query: Mapping[str, str],
        trimmed: Callable[[bytes], bytes] = bytes,
    ) -> ListPage:
        """Read one page of a list; the version is empty if the server gives none.

        ``trimmed`` may leave out of the text what nobody reads.
        """
        text = self._exchange("GET", path, timeout_s=timeout_s, query=query)
        body = parse_object(trimmed(text))
        with translating_errors():
            metadata = body["metadata"]
            return ListPage(
                tuple(body["items"] or ()),
                metadata.get("resourceVersion") or "",
                metadata.get("continue") or "",
            )

    def _read_lines(
        self, path: str, *, timeout_s: float, query: Mapping[str, str]
    ) -> Iterator[bytes]:
        """Read an endless answer line by line, until it is silent for ``timeout_s``."""
        answer = self._open("GET", path, timeout_s=timeout_s, query=query).response
        with translating_errors():
            try:
                rest = b""
                for chunk in answer.stream(_CHUNK):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from (line for line in lines if line)
                if rest:
                    yield rest
            finally:
                answer.close()

    def _open(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "",
    ) -> Any:  # noqa: ANN401
        """Send one request; raise the error that the status stands for."""
        # A page of megabytes would come in hundreds of TLS records, and for each the
        # thread has to get the interpreter's lock again.
        headers = {"Accept": JSON, "Accept-Encoding": "gzip"}
        if content_type:
            headers["Content-Type"] = content_type
        with translating_errors():
            request = self._api.param_serialize(
                method,
                path,
                query_params=[*(query or {}).items()],
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            timeout = (min(CONNECT_TIMEOUT_S, timeout_s), timeout_s)
            answer = self._api.call_api(*request, _request_timeout=timeout)
            if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                return answer
            error_body: bytes = answer.read()  # type: ignore[no-untyped-call]
        after = answer.headers.get("Retry-After")
        raise error_of_answer(answer.status, answer.reason, error_body, after)


def parse_object(text: bytes) -> Json:
    """Parse an answer that must be a JSON object; ``Unavailable`` if it is not."""
    with translating_errors():
        parsed = orjson.loads(text)
    if not isinstance(parsed, dict):
        raise Unavailable("the API server's answer is not an object")
    return parsed


def cut_managed_fields(text: bytes) -> bytes:
    """Cut ``metadata.managedFields`` out of pods and nodes, before they are parsed.

    That is a third of their text and two thirds of the time to parse it. It is cut only
    where it is the last field of the metadata and ``spec`` follows, as kube-apiserver
    writes it. No string can look like that, because its quotes are escaped, and no
    name in ``fieldsV1``, because those begin with ``f:``, ``k:``, ``v:`` or ``i:``.
    Objects of users' own resources may hold any names; do not use it for them.
    """
    first, *rest = text.split(_MANAGED)
    kept = [first]
    for part in rest:
        end = part.find(_MANAGED_END)
        if end < 0 or part.find(_OBJECT, 0, end) >= 0:
            kept += (_MANAGED, part)
        else:
            kept.append(part[end + len(b"}]") :])
    return b"".join(kept)


@contextmanager
def translating_errors() -> Iterator[None]:
    """Translate what the kubernetes client raises into ``ClusterError``s."""
    try:
        yield
    except client.ApiException as error:
        after = (error.headers or {}).get("Retry-After")
        reason = str(error.reason or "")
        raise error_of_answer(
            int(error.status or 0), reason, error.body, after
        ) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _no_answer(error) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Invalid JSON, unexpected JSON, or a check of the client's own.
        raise Unavailable(f"the answer is not understood: {error!r}") from error


def error_of_answer(
    status: int, reason: str, body: bytes | str | None, after: str | None = None
) -> ClusterError:
    """Return the error for a status of 300 or more; ``body`` may be a ``Status``."""
    message, word = reason or "no reason given", ""
    with suppress(orjson.JSONDecodeError, KeyError, TypeError):
        status_object = orjson.loads(body or b"")
        message, word = status_object["message"], status_object.get("reason", "")
    if word == "AlreadyExists":
        return AlreadyExists(str(message))
    retry_after_s = float(after) if after and after.isdigit() else None
    return error_for(status, str(message), retry_after_s)


@contextmanager
def _read_well(source: str) -> Iterator[None]:
    try:
        yield
    except (*_BAD_FILE, config.ConfigException, OSError) as error:
        reason = " ".join(str(error).split())
        raise Unavailable(
            f"cannot connect to the API server with {source}: {reason}"
        ) from error


def _no_answer(error: Exception) -> ClusterError:
    """Return ``Unreachable`` if the request was certainly not sent."""
    cause = error
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason:
        cause = error.reason
    never_sent = isinstance(
        cause,
        urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError,
    )
    kind = Unreachable if never_sent else Unavailable
    return kind(f"no answer from the API server: {cause}")
