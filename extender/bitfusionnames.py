"""Bitfusion's own names, as its users wrote them (seed 004), and ours beside them."""

from gpushare.kube import names

RESOURCES = "bitfusion.io/"
"""What all its resources begin with."""
AMOUNT = f"{RESOURCES}gpu-amount"
"""Resource: how many cards."""
PERCENT = f"{RESOURCES}gpu-percent"
"""Resource: how much of each card's memory, 1 to 100; 100 where it is not said."""
MEMORY = f"{RESOURCES}gpu-memory"
"""Resource: bytes of each card's memory."""
ASKED = (AMOUNT, PERCENT, MEMORY)
"""What a container asks by; ``bitfusion.io/gpu`` is what the webhook made of it."""

MODE = "auto-management/bitfusion"
"""Pod annotation: all, injection or none."""
STATUS = "auto-management/status"
"""Pod annotation, written by the webhook."""
INJECTED = "injected"
"""The value of ``STATUS`` on a pod that has been translated."""
OS = "bitfusion-client/os"
"""Pod annotation: for which system the client was packed."""
VERSION = "bitfusion-client/version"
"""Pod annotation: the client's version, in three digits."""
FILTER = "bitfusion-client/filter"
"""Pod annotation: conditions on the server and the card, with blanks between."""

CARD_MIB = f"{names.PREFIX}-bitfusion-card-mib"
"""Pod annotation, written by the webhook: the card size that shares were made of, where
it was the smallest card of the cluster."""
