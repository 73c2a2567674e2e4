"""What holds a container to its share, as records of it say. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HardLimit:
    """What holds one container to its share of a card, and how much it may have.

    ``needed_mib`` is what it may take of the card's memory, its contexts included. Tier
    ``driver`` counts them in ``mib``, ``preload`` does not see them.
    """

    tier: str
    mib: int
    needed_mib: int
