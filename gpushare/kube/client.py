"""The kubernetes client set up our way, and what it raises in our words.

For the two doors to the API server, ``apiserver`` and ``apiobjects``.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import orjson
import urllib3
import yaml
from kubernetes import client, config

from gpushare.kube.errors import (
    AlreadyExists,
    ClusterError,
    Unavailable,
    Unreachable,
    error_for,
)

CONNECT_TIMEOUT_S = 3.0
_CONNECTIONS = 32
_BAD_FILE = (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError)
"""What the client raises over a kubeconfig that is none."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """The clusters and users that a kubeconfig knows."""

    names: tuple[str, ...]
    current: str
    """The one that is taken where none is chosen; empty where the file names none."""


def contexts(kubeconfig: str) -> Contexts:
    """Read which contexts a kubeconfig has; several files stand with colons.

    Raises ``Unavailable``, with what is wrong, where it cannot be read.
    """
    with _read_well(kubeconfig):
        merged = config.kube_config.KubeConfigMerger(  # type: ignore[no-untyped-call]
            kubeconfig
        ).config
        content = {} if merged is None else merged.value
        listed = content.get("contexts") or ()
        names = tuple(str(one["name"]) for one in listed)
        return Contexts(names, str(content.get("current-context") or ""))


def dial(kubeconfig: str | None, context: str | None = None) -> client.ApiClient:
    """Use a kubeconfig, or the pod's own service account where none is given.

    Raises ``Unavailable``, with what is wrong, when there is neither.
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
    settings.retries = urllib3.Retry(0, redirect=0)
    settings.connection_pool_maxsize = _CONNECTIONS
    return client.ApiClient(settings)


def hang_up(api: client.ApiClient) -> None:
    """Close a client's connections."""
    api.rest_client.pool_manager.clear()
    api.close()  # type: ignore[no-untyped-call]


@contextmanager
def translated() -> Iterator[None]:
    """Turn what the client raises into our own words (``kube.errors``)."""
    try:
        yield
    except client.ApiException as error:
        raise _refusal(error) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _no_answer(error) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # No JSON, or JSON that no API server sends; the client's own checks as well.
        raise Unavailable(f"the answer is not understood: {error!r}") from error


def refused(
    status: int, reason: str, body: bytes | str | None, after: str | None = None
) -> ClusterError:
    """Return the error for an answer that is none; ``body`` may be a ``Status``."""
    message, word = reason or "no reason given", ""
    with suppress(orjson.JSONDecodeError, KeyError, TypeError):
        told = orjson.loads(body or b"")
        message, word = told["message"], told.get("reason", "")
    if word == "AlreadyExists":
        return AlreadyExists(str(message))
    retry_after_s = float(after) if after and after.isdigit() else None
    return error_for(status, str(message), retry_after_s)


@contextmanager
def _read_well(source: str) -> Iterator[None]:
    try:
        yield
    except (*_BAD_FILE, config.ConfigException, OSError) as error:
        said = " ".join(str(error).split())
        raise Unavailable(f"no way to the API server by {source}: {said}") from error


def _refusal(error: client.ApiException) -> ClusterError:
    after = (error.headers or {}).get("Retry-After")
    return refused(int(error.status or 0), str(error.reason or ""), error.body, after)


def _no_answer(error: Exception) -> ClusterError:
    """Tell a request that was never sent from one that may have been."""
    cause = error
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason:
        cause = error.reason
    never_sent = isinstance(
        cause,
        urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError,
    )
    kind = Unreachable if never_sent else Unavailable
    return kind(f"no answer from the API server: {cause}")
