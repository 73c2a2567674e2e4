"""Read settings from environment variables, and report all errors at once.

A settings dataclass reads its fields through one ``Reading``. Errors are collected and
not raised, so that an operator can repair a manifest in one step.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpushare.domain.quantity import is_plain_number

Choice = TypeVar("Choice", bound=str)

PREFIX = "GPUSHARE_"
_SWITCH = ("on", "off")
_LIKE = 0.8
"""How alike two names must be for one to be taken for a misspelt other."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(slots=True)
class Reading:
    """One pass over an environment; ``complaints`` are messages for the operator."""

    environ: Mapping[str, str]
    complaints: list[str] = field(default_factory=list)
    _names_read: list[str] = field(default_factory=list)

    def text(self, name: str) -> str | None:
        """Read a string; an empty one counts as not set."""
        self._names_read.append(PREFIX + name)
        return self.environ.get(PREFIX + name) or None

    def one_of(self, name: str, choices: Sequence[Choice], default: Choice) -> Choice:
        """Read one of some fixed values."""
        raw = self.text(name)
        for choice in choices:
            if raw == choice:
                return choice
        if raw is not None:
            self._complain(name, raw, "use one of " + ", ".join(choices))
        return default

    def switch(self, name: str, *, default: bool) -> bool:
        """Read ``on`` or ``off``."""
        return self.one_of(name, _SWITCH, "on" if default else "off") == "on"

    def seconds(self, name: str, default: float, *, least: float, most: float) -> float:
        """Read a number of seconds within bounds."""
        raw = self.text(name)
        if raw is None:
            return default
        try:
            number = float(raw)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            fix = f"give a number of seconds from {least:g} to {most:g}"
            self._complain(name, raw, fix)
            return default
        return number

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        """Read a whole number within bounds."""
        raw = self.text(name)
        if raw is None:
            return default
        if not is_plain_number(raw) or not least <= int(raw) <= most:
            self._complain(name, raw, f"give a whole number from {least} to {most}")
            return default
        return int(raw)

    def address(self, name: str, default: Address) -> Address:
        """Read ``host:port``; an IPv6 host stands in brackets."""
        raw = self.text(name)
        if raw is None:
            return default
        host, colon, port = raw.rpartition(":")
        bare_ipv6 = ":" in host and not (host[0] == "[" and host[-1] == "]")
        good = colon and host and not bare_ipv6 and is_plain_number(port)
        if not good or not 0 < int(port) < 65536:  # noqa: PLR2004
            self._complain(name, raw, f"give host:port, such as {default}")
            return default
        return Address(host, int(port))

    def folder(self, name: str, default: Path) -> Path:
        """Read the absolute path of a folder."""
        raw = self.text(name)
        if raw is None:
            return default
        if not raw.startswith("/"):
            self._complain(name, raw, "give a path that begins with /")
            return default
        return Path(raw)

    def file(self, name: str) -> Path | None:
        """Read the path of a file; None if none is given."""
        raw = self.text(name)
        return None if raw is None else Path(raw)

    def complain(self, name: str, problem: str) -> None:
        """Add a complaint about a setting, with what to do."""
        self.complaints.append(f"{PREFIX}{name}: {problem}")

    def misspelt(self) -> None:
        """Complain about variables that look like a misspelt setting."""
        for name in sorted(self.environ):
            if name.startswith(PREFIX) and name not in self._names_read:
                close = difflib.get_close_matches(name, self._names_read, 1, _LIKE)
                if close:
                    self.complaints.append(
                        f"{name} is not a setting; did you mean {close[0]}?"
                    )

    def _complain(self, name: str, raw: str, fix: str) -> None:
        self.complain(name, f"{raw!r} is not valid; {fix}")
