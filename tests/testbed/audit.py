"""Read what the API server was asked to do, and by whom."""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from tests.testbed.rest import Json

Level = Literal["None", "Metadata", "Request"]
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def policy(level: Level) -> Json:
    """Log each request when it is answered, and a watch when it begins.

    It ends after half a minute or more, which is long to wait for.
    """
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            {"level": level, "verbs": ["watch"], "omitStages": ["ResponseComplete"]},
            {"level": level, "omitStages": ["ResponseStarted"]},
        ],
    }


def write_policy(path: Path, level: Level) -> Path:
    path.write_text(json.dumps(policy(level)))
    return path


@dataclass(frozen=True)
class Call:
    """One API call that was answered; ``resource`` is such as ``pods/binding``."""

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    status: int
    at: datetime
    """When it was answered, by the API server's clock."""
    body: Json
    """The request's body where the level is ``Request``, else empty."""


@dataclass(frozen=True)
class AuditLog:
    """The audit log; take a ``mark`` before, and read what came ``since``."""

    path: Path

    def mark(self) -> int:
        """Give the present end of the log, in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def calls(self, since: int = 0) -> list[Call]:
        """List the calls that were answered; of a watch, its beginning."""
        with self.path.open("rb") as log:
            log.seek(since)
            # The last line may still be on its way.
            lines = [line for line in log if line.endswith(b"\n")]
        return [_call(json.loads(line)) for line in lines]

    def writes(self, user: str, since: int = 0) -> Counter[str]:
        """Count a user's writes, by verb and resource, such as ``create pods/binding``.

        Refused ones count too: they cost the API server as much.
        """
        return Counter(
            f"{call.verb} {call.resource}"
            for call in self.calls(since)
            if call.user == user and call.verb in WRITES
        )


def _call(event: Json) -> Call:
    target = event.get("objectRef", {})
    parts = [target.get("resource", ""), target.get("subresource", "")]
    return Call(
        user=event["user"].get("username", ""),
        verb=event["verb"],
        resource="/".join(part for part in parts if part),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        status=event.get("responseStatus", {}).get("code", 0),
        at=datetime.fromisoformat(event["stageTimestamp"]),
        body=event.get("requestObject", {}),
    )
