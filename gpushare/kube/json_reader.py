"""Read JSON from other programs, with errors that name the field. Pure."""

import gc
from typing import Any, Self

import orjson

MOST = 10**9
"""More than any count of units or cores; sums stay far below 64 bits."""
_LARGE = 1 << 16


class Malformed(ValueError):
    """A field is missing or of the wrong type; the message names it and the fix."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Reader:
    """One JSON object and the path that led to it.

    All methods raise ``Malformed``. The ``optional_`` methods read a missing or null
    field as its empty value, as Go does.
    """

    __slots__ = ("_key", "_parent", "raw")

    def __init__(
        self,
        raw: Any,  # noqa: ANN401
        path: str = "",
        parent: "Reader | None" = None,
    ) -> None:
        # The path is joined only for errors, because filter reads many pods.
        self._key = path
        self._parent = parent
        if not isinstance(raw, dict):
            raise Malformed(self.path() or "body", "must be an object")
        self.raw: dict[str, Any] = raw

    @classmethod
    def parse(cls, text: str | bytes, path: str) -> Self:
        """Read JSON text, such as an annotation's value."""
        # Of a text of nothing but small lists, the collector would look at all of them
        # again and again, for five times as long as it takes to read them.
        pauses = len(text) > _LARGE and gc.isenabled()
        if pauses:
            gc.disable()
        try:
            return cls(orjson.loads(text), path)
        except orjson.JSONDecodeError as error:
            raise Malformed(path, f"is not JSON ({error})") from error
        finally:
            if pauses:
                gc.enable()

    def path(self, key: str = "") -> str:
        """Return the path of this object, or of one of its keys, for an error."""
        above = self._parent.path() if self._parent else ""
        return ".".join(part for part in (above, self._key, key) if part)

    def object(self, key: str) -> "Reader":
        """Read an object that must be there."""
        if self.raw.get(key) is None:
            raise Malformed(self.path(key), "is missing")
        return Reader(self.raw[key], key, self)

    def optional_object(self, key: str) -> "Reader":
        """Read an object, empty when it is not there."""
        raw = self.raw.get(key)
        return Reader({} if raw is None else raw, key, self)

    def objects(self, key: str) -> list["Reader"]:
        """Read a list of objects that must be there."""
        if self.raw.get(key) is None:
            raise Malformed(self.path(key), "is missing")
        return self.optional_objects(key)

    def optional_objects(self, key: str) -> list["Reader"]:
        """Read a list of objects, empty when it is not there."""
        raw = self.raw.get(key)
        if raw is None:
            return []
        if not isinstance(raw, list):
            raise Malformed(self.path(key), "must be a list")
        return [Reader(item, f"{key}[{i}]", self) for i, item in enumerate(raw)]

    def text(self, key: str) -> str:
        """Read a string that must be there and not be empty."""
        if not (text := self.optional_text(key)):
            raise Malformed(self.path(key), "is missing or empty")
        return text

    def optional_text(self, key: str) -> str:
        """Read a string, empty when it is not there."""
        raw = self.raw.get(key)
        if raw is None:
            return ""
        if not isinstance(raw, str):
            raise Malformed(self.path(key), "must be a string")
        return raw

    def texts(self, prefix: str) -> dict[str, str]:
        """Read the keys with a prefix; their values must be strings."""
        return {
            key: self.optional_text(key) for key in self.raw if key.startswith(prefix)
        }

    def integer(self, key: str) -> int:
        """Read a whole number of 0 or more that must be there."""
        raw = self.raw.get(key)
        if isinstance(raw, bool) or not isinstance(raw, int) or raw < 0:
            raise Malformed(self.path(key), "must be a whole number of 0 or more")
        if raw > MOST:
            raise Malformed(self.path(key), f"must be at most {MOST}")
        return raw

    def optional_integer(self, key: str) -> int:
        """Read a whole number of either sign, 0 when it is not there."""
        raw = self.raw.get(key)
        if raw is None:
            return 0
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise Malformed(self.path(key), "must be a whole number")
        return raw

    def optional_boolean(self, key: str, *, default: bool) -> bool:
        """Read true or false."""
        raw = self.raw.get(key)
        if raw is None:
            return default
        if not isinstance(raw, bool):
            raise Malformed(self.path(key), "must be true or false")
        return raw

    def version(self, known: int) -> None:
        """Raise ``Malformed`` unless the format's version is the known one."""
        number = self.integer("v")
        if number != known:
            raise Malformed(self.path("v"), f"is {number}; this program knows {known}")
