"""A pod that does not exist, and the ones that may be meant. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches

_MOST = 3


def nearest(namespace: str, name: str, pods: Iterable[tuple[str, str]]) -> list[str]:
    """Name the pods most like the one asked for, as ``namespace/name``.

    Those of the very name elsewhere first, then like ones in the namespace.

    >>> nearest("default", "big", [("edge", "big"), ("default", "bigg")])
    ['edge/big', 'default/bigg']
    """
    found = list(pods)
    same = [f"{space}/{name}" for space, one in found if one == name]
    here = [one for space, one in found if space == namespace]
    like = get_close_matches(name, here, n=_MOST)
    like += [one for one in here if one.startswith(name) and one not in like]
    return [*same, *(f"{namespace}/{one}" for one in like)][:_MOST]
