"""The webhook's own configuration, less the check for an API server."""

from webhook.gunicorn_conf import *  # noqa: F403


def on_starting(_server: object) -> None:
    """Check nothing: the nodes are in memory."""
