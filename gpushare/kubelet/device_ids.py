"""The ids by which kubelet knows the units and cores of a card. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.domain.model import CardUUID
from gpushare.kube import names

_HEX = re.compile(r"[0-9a-f]{8}")
_DEVICE = re.compile(r"(?P<key>[0-9a-f]{8})-(?P<kind>[cm])(?P<number>\d{3,7})")

CORE_KIND = "c"
MEMORY_KIND = "m"
KINDS: Mapping[str, str] = {names.CORE: CORE_KIND, names.MEMORY: MEMORY_KIND}
"""The letter in the device ids of each resource."""


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device as kubelet knows it: one unit or one core of one card.

    ``1f9c27aa-m0017``: the card's key, ``m`` for memory or ``c`` for cores, a number.
    At most 16 characters, because kubelet writes all of them down again and again
    (contracts 2.5). The same over restarts, reboots and versions.
    """

    key: str
    kind: str
    number: int

    def __str__(self) -> str:
        width = 3 if self.kind == "c" else 4
        return f"{self.key}-{self.kind}{self.number:0{width}d}"

    @classmethod
    def parse(cls, text: str) -> "DeviceId | None":
        """Parse an id; None if it has not the form of this plugin's ids."""
        found = _DEVICE.fullmatch(text)
        if found is None:
            return None
        return cls(found["key"], found["kind"], int(found["number"]))


def card_key(uuid: CardUUID) -> str:
    """Return the eight hex digits that a card's device ids begin with.

    They are the first eight of its UUID, with or without a vendor's prefix, or of the
    UUID's SHA-256 if it does not begin with hex digits.

    >>> card_key(CardUUID("GPU-9F12F917-e458-4bb8-3d9d-8dc7fd6cddf7"))
    '9f12f917'
    """
    lowered = uuid.lower()
    for text in (lowered, lowered.partition("-")[2]):
        if _HEX.match(text):
            return text[:8]
    return hashlib.sha256(uuid.encode()).hexdigest()[:8]
