"""Ports for servers that start later, none of them given to two."""

import os
import random
from collections.abc import Sequence

from gpushare.addresses import LOOPBACK, ports_to_pick_from, why_not_listen
from gpushare.settings import Address


class Ports:
    """Gives one after the other, so that each server has long started at the next turn.

    Call it for an address on loopback that nobody has.
    """

    def __init__(self, ports: Sequence[int], first: int) -> None:
        self._ports = ports
        self._next = first

    @classmethod
    def of_this_process(cls) -> "Ports":
        """Give each process of a run a part of its own, of which no other takes one."""
        count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        ports = ports_to_pick_from()[int(worker) % count :: count]
        # Another run on this machine begins elsewhere.
        return cls(ports, random.SystemRandom().randrange(len(ports)))

    def __call__(self) -> Address:
        while True:
            address = Address(LOOPBACK, self._ports[self._next % len(self._ports)])
            self._next += 1
            if not why_not_listen(address):
                return address
