"""What we did to a host, kept beside our files as ``state.json``.

Written before the files that it tells of, so that whoever finds it after an interrupt
knows each file by its sum: untouched, as we made it, or changed by someone since.
A record that cannot be read counts as none; then the files speak for themselves.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gpusharectl.scheduler.nodescores import Percentages

NONE = ""
"""The sum of a file that is not there."""


def sum_of(content: bytes | None) -> str:
    """Give a content's SHA-256, and ``NONE`` where there is no file."""
    return NONE if content is None else hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class Sums:
    """One file: ``before`` us, as it ``was`` when we last began, and ``after``."""

    before: str
    was: str
    after: str

    def made_by_us(self, content: bytes | None) -> bool:
        """Tell whether nobody has changed it since."""
        return sum_of(content) in {self.was, self.after}


@dataclass(frozen=True, slots=True)
class Record:
    """What we did, by which version of ourselves."""

    program: str
    files: Mapping[str, Sums] = field(default_factory=dict)
    scored: Percentages = field(default_factory=dict)
    """What our configuration said of nodes to score, where we have set that to all."""
    edited: bool = False
    """Whether it has in it what somebody wrote into ours."""

    def encoded(self) -> bytes:
        """Give it as the file has it."""
        files = {
            path: {"before": sums.before, "was": sums.was, "after": sums.after}
            for path, sums in self.files.items()
        }
        body: dict[str, object] = {"gpusharectl": self.program, "files": files}
        if self.scored:
            body["scored"] = dict(self.scored)
        if self.edited:
            body["edited"] = True
        return orjson.dumps(
            body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        )

    @classmethod
    def decoded(cls, content: bytes | None) -> "Record | None":
        """Read it; None where there is none, or none that can be read."""
        try:
            body: dict[str, Any] = orjson.loads(content or b"")
            files = {
                str(path): Sums(
                    str(sums["before"]), str(sums["was"]), str(sums["after"])
                )
                for path, sums in body["files"].items()
            }
            scored = {
                str(name): None if number is None else int(number)
                for name, number in body.get("scored", {}).items()
            }
            edited = bool(body.get("edited"))
            return cls(str(body["gpusharectl"]), files, scored, edited)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
