"""Bodies that were right, bent in a few places; and bytes that were never a body.

All by one ``Random``, so that hypothesis can lend its own and shrink what it finds.
"""

import copy
import json
from random import Random
from typing import Any

from tests.testbed.rest import Json

LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, -0.0, 1e308, 2**31, 2**53 + 1, 2**63 - 1),
    *(2**64, 10**40, "", " ", "0", "4", "-4", "4.5", "1e9", "1E", "9" * 60, "16Gi"),
    *("500m", "1k", "NaN", "Infinity", "n-0", "default", "../../etc/passwd", "%s%d%n"),
    *("a/b~c", "\u0000", "\u00a0\u4e2d\u6587\U0001f600", "x" * 5000, "{}", '{"v":1}'),
    *("[]", [], {}, [[]], [None], [1, "a", None], {"": None}, {"metadata": None}),
)
NAMES = (
    *("Pod", "NodeNames", "metadata", "uid", "spec", "containers", "resources"),
    *("requests", "limits", "annotations", "status", "request", "object", "", "\u00e9"),
    *("baidu.com/vcuda-memory", "baidu.com/vcuda-core", "baidu.com/vcuda-placement"),
    "baidu.com/vcuda-memory-mib",
)
RAW = (
    *(b"", b"{", b"[", b"null", b"0", b'"x"', b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}"),
    *(b'{"a":1,"a":2}', b'{"Pod":NaN}', b'{"Pod":1e999}', b'{"Pod":"\\ud800"}'),
    *(b"[" * 3000, b'{"a":' * 3000, b"x=1&y=2"),
)


def bent(body: Json, dice: Random) -> bytes:
    """Change one to four places of a body, and sometimes its bytes."""
    found = copy.deepcopy(body)
    for _ in range(dice.randint(1, 4)):
        _bend(found, dice)
    data = json.dumps(found).encode()
    match dice.randint(0, 19):
        case 0:
            return data[: dice.randint(0, len(data))]
        case 1:
            at = dice.randint(0, len(data))
            return data[:at] + bytes([dice.randint(0, 255)]) + data[at:]
        case _:
            return data


def raw(dice: Random) -> bytes:
    """Make something that is no body, or almost one."""
    if dice.random() < 0.5:
        return dice.choice(RAW)
    return bytes(dice.randint(0, 255) for _ in range(dice.randint(0, 60)))


def _bend(body: Json, dice: Random) -> None:
    """Go down to some place, the deeper the likelier, and change it."""
    here: Any = body
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return
        key = dice.choice(keys)
        below = here[key]
        if isinstance(below, dict | list) and below and dice.random() < 0.85:
            here = below
            continue
        _change(here, key, body, dice)
        return


def _change(here: Any, key: Any, body: Json, dice: Random) -> None:
    match dice.randint(0, 6):
        case 0:
            del here[key]
        case 1:
            here[key] = copy.deepcopy(body[dice.choice(list(body))]) if body else None
        case 2:
            here[key] = [here[key]]
        case 3 if isinstance(here, dict):
            here[dice.choice(NAMES)] = here.pop(key)
        case 3:
            here.append(copy.deepcopy(here[key]))
        case _:
            here[key] = copy.deepcopy(dice.choice(LEAVES))
