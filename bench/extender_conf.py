"""The extender's own configuration, less the check for an API server."""

from extender.gunicorn_conf import *  # noqa: F403


def on_starting(_server: object) -> None:
    """Check nothing: the cluster is in memory."""
