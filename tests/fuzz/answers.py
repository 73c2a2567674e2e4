"""What an answer must be, whatever was asked."""

import json

from tests.fuzz.bodies import Target

OOPS = "internal error"
"""What the servers say of a bug of theirs, with whatever status."""


def insist(target: Target, body: bytes, status: int, answer: bytes) -> None:
    """Insist on a status of the verb's, and on a body of the shape it promises."""
    asked = body[:600]
    assert status in target.statuses, (target.path, status, asked, answer)
    found = json.loads(answer)
    assert OOPS not in answer.decode(), (target.path, asked, answer)
    if status != 200:
        assert found["error"], (target.path, asked, answer)
        return
    match target.path.rpartition("/")[2]:
        case "filter":
            _filtered(body, found)
        case "prioritize":
            assert all(0 <= each["Score"] <= 10 for each in found), found
        case "bind":
            assert isinstance(found["Error"], str), found
        case "preempt":
            assert isinstance(found["NodeNameToMetaVictims"], dict), found
        case _:
            assert isinstance(found["response"]["allowed"], bool), found


def _filtered(body: bytes, found: dict[str, object]) -> None:
    """Each name that was asked is kept or refused, unless all of it is an error."""
    kept, refused = found["NodeNames"], found["FailedAndUnresolvableNodes"]
    assert isinstance(kept, list)
    assert isinstance(refused, dict)
    if found["Error"]:
        return
    failed = found["FailedNodes"]
    assert isinstance(failed, dict)
    assert {*kept, *refused, *failed} == set(json.loads(body)["NodeNames"])
