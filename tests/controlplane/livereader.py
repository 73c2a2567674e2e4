"""Accounts that look at a cluster and ask what if, with the rights that they have."""

import secrets
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import yaml
from click.testing import CliRunner, Result

from gpusharectl.__main__ import main
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.rest import Json

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulator.md"
GETS = {
    "deployments.apps": "edge/app=1",
    "statefulsets.apps": "statefulset/edge/app=1",
    "replicasets.apps": "replicaset/edge/app=1",
    "jobs.batch": "job/edge/app=1",
    "pods": "pod/edge/small=1",
}


def role() -> Json:
    """Read the ClusterRole that the document gives to operators."""
    blocks = DOCUMENT.read_text(encoding="utf-8").split("```yaml\n")[1:]
    (text,) = (b.partition("```")[0] for b in blocks if "kind: ClusterRole" in b)
    found: Json = yaml.safe_load(text)
    return found


def documented() -> list[Json]:
    """Give its rules."""
    rules: list[Json] = role()["rules"]
    return rules


def without(verb: str, resource: str) -> list[Json]:
    """Give the documented rules but for one right; it must be among them."""
    name, _, group = resource.partition(".")
    rules = deepcopy(documented())
    (rule,) = (
        one for one in rules if group in one["apiGroups"] and name in one["resources"]
    )
    rule["resources"].remove(name)
    verbs = [one for one in rule["verbs"] if one != verb]
    assert len(verbs) == len(rule["verbs"]) - 1
    rules.append({"apiGroups": [group], "resources": [name], "verbs": verbs})
    return [one for one in rules if one["resources"] and one["verbs"]]


def account(plane: ControlPlane, rules: list[Json]) -> tuple[str, str]:
    """Make an account with exactly these rights; its name, and its kubeconfig."""
    name = f"what-if-{secrets.token_hex(4)}"
    user = f"system:serviceaccount:default:{name}"
    token = service_account_token(plane.rest, "default", name)
    grant(plane.rest, user, rules)
    return user, str(plane.kubeconfig(token, name))


def ran(kubeconfig: str, *words: str) -> Result:
    words = ("simulate", "--live", *words, "--kubeconfig", kubeconfig)
    return CliRunner().invoke(main, words)


def played(kubeconfig: str, *words: str) -> dict[str, Any]:
    done = ran(kubeconfig, *words, "-o", "json")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found
