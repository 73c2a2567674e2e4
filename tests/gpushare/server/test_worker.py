"""How gunicorn's worker starts; its bounds are tried in ``test_connections``."""

import resource
from collections.abc import Iterator

import pytest

from gpushare.server.worker import worker_with


class BegunError(Exception):
    """gunicorn's own start has begun."""


class Settings:
    """gunicorn's settings, which its own start reads first."""

    @property
    def env(self) -> None:
        raise BegunError


@pytest.fixture
def most() -> Iterator[int]:
    """What may be raised; the limit is low meanwhile, and as before afterwards."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield hard if hard >= 0 else 4096
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_a_low_limit_of_descriptors_is_raised_at_the_start(most: int) -> None:
    """Before it accepts: in a flood many connections are open for a moment."""
    kind = worker_with(answer_s=1, graceful_s=1)
    worker = object.__new__(kind)
    worker.cfg = Settings()
    with pytest.raises(BegunError):
        worker.init_process()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == min(4096, most)
