"""The webhook's configuration, where manifests before ``webhook`` look for it."""

from webhook.gunicorn_conf import *  # noqa: F403
