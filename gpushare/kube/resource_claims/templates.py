"""ResourceClaimTemplates that are named by their content, such as ``vcuda-m20-c20``.

Pure. The webhook, which may not create any, names the template that a pod needs, and
``gpusharectl claim-template`` writes the template of a name. So one template serves all
pods of a namespace that ask the same, and a name never comes to mean another amount.
"""

import re
from collections.abc import Sequence

from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, Amount
from gpushare.kube import names
from gpushare.kube.cluster import Json

MOST_PARTS = 8
"""Most parts of a template, so that its name stays readable."""
_PART = r"-m([1-9][0-9]{0,5})-c([1-9][0-9]?)"
_NAME = re.compile(rf"vcuda(?:{_PART}){{1,{MOST_PARTS}}}", re.ASCII)
_ONE = "card"


def name_template(parts: Sequence[Amount]) -> str | None:
    """Name the template with one request for each part, all on one card.

    None if no template has these parts: there are none or too many, one has no memory
    or no core, or all cores together make a whole card or more.

    >>> name_template([Amount(cores=20, units=20), Amount(cores=1, units=4)])
    'vcuda-m20-c20-m4-c1'
    """
    name = "vcuda" + "".join(f"-m{part.units}-c{part.cores}" for part in parts)
    return name if read_template_name(name) else None


def read_template_name(name: str) -> tuple[Amount, ...]:
    """Return the parts that a template of this name has; empty if none has it."""
    if not _NAME.fullmatch(name):
        return ()
    parts = tuple(
        Amount(cores=int(cores), units=int(units))
        for units, cores in re.findall(_PART, name)
    )
    return parts if sum(part.cores for part in parts) < CORES_PER_CARD else ()


def name_request(number: int, count: int) -> str:
    """Name the request of a part, counted from 0, of a template with so many.

    >>> [name_request(0, 1), name_request(0, 2), name_request(1, 2)]
    ['card', 'card-1', 'card-2']
    """
    return _ONE if count == 1 else f"{_ONE}-{number + 1}"


def write_template(parts: Sequence[Amount]) -> Json:
    """Write the ResourceClaimTemplate with these parts of one card.

    ``ValueError`` if no template has them.
    """
    name = name_template(parts)
    if name is None:
        raise ValueError("no template has these parts")
    requests = [_request(number, parts) for number in range(len(parts))]
    devices: Json = {"requests": requests}
    if len(parts) > 1:
        # Without it kube-scheduler may take a card for each of them.
        devices["constraints"] = [
            {
                "requests": [request["name"] for request in requests],
                "matchAttribute": names.DRA_UUID,
            }
        ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def _request(number: int, parts: Sequence[Amount]) -> Json:
    part = parts[number]
    amounts = {
        names.DRA_MEMORY: f"{part.units * UNIT_MIB}Mi",
        names.DRA_CORES: str(part.cores),
    }
    exactly = {"deviceClassName": names.DRA_CLASS, "capacity": {"requests": amounts}}
    return {"name": name_request(number, len(parts)), "exactly": exactly}
