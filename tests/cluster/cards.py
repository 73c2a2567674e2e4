"""The cards that the exercises speak of."""

from tests.nvml.driver import StubCard, stub_card

RTX_3090 = StubCard(
    "GPU-2b4e7c11-0d63-4f0e-9d4b-8a1f0c5e7a92", memory_mib=24259, model="RTX 3090"
)
"""Seed 001's single card: 94 units."""
TWO_P4 = [
    StubCard("GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"),
    StubCard(
        "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a", bus="00000000:00:05.0", minor=1
    ),
]
"""Seed 001's pair: 29 units each."""
THREE_OF_4_GIB = [stub_card(number, memory_mib=4096) for number in range(3)]
"""16 units each."""
TWO_OF_4_GIB = THREE_OF_4_GIB[:2]
EIGHT_P4 = [stub_card(number) for number in range(8)]
