"""An end that comes after some rounds, without waiting."""

from threading import Event


class Rounds(Event):
    """Lets a loop look so many times."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self._left = count

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        return self._left < 0
