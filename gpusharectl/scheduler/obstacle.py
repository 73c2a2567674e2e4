"""A step that is not taken, and why, in words for who reads the terminal."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What stands in the way, naming the file or field, and what to do about it."""

    words: str

    def __str__(self) -> str:
        return self.words
