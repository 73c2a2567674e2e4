"""Settings of gunicorn that the extender and the webhook have in common."""

from pathlib import Path

workers = 1
worker_connections = 900
# uvicorn also accepts as many in one turn of its loop.
backlog = 256
graceful_timeout = 10
timeout = 60
control_socket_disable = True
accesslog = None
loglevel = "warning"
if Path("/dev/shm").is_dir():  # noqa: S108
    # With a read-only root file system there is no other place for gunicorn's heartbeat
    # file (contracts 1.9).
    worker_tmp_dir = "/dev/shm"  # noqa: S108
