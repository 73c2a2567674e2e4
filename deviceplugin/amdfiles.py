"""Read one small file of the kernel's; tell what is not there from what fails now."""

import errno
from pathlib import Path

_READ_BYTES = 65536
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EINVAL}
"""What kernels answer for something that a card does not have, by their age."""


class NotThere(Exception):
    """This card, or its driver, does not tell this."""


def raw(path: Path) -> bytes:
    """Give a file's bytes.

    ``NotThere``, or ``OSError`` where it cannot be told now: the card is in reset, for
    one.
    """
    try:
        with path.open("rb") as opened:
            return opened.read(_READ_BYTES)
    except OSError as error:
        if error.errno in _ABSENT:
            raise NotThere(str(path)) from error
        raise


def text(path: Path) -> str:
    """Give a file's text without the blanks around it; raises what ``raw`` raises."""
    return raw(path).decode(errors="replace").strip()


def text_or_nothing(path: Path) -> str:
    """Give a file's text, empty where it cannot be read for any reason."""
    try:
        return text(path)
    except (NotThere, OSError):
        return ""


def number(path: Path) -> int:
    """Give the whole number that a file holds; raises what ``raw`` raises."""
    found = text(path)
    try:
        return int(found)
    except ValueError as error:
        raise NotThere(f"{path} holds no number") from error
