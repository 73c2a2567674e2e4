"""No card over its units or cores: worked out from what kubectl shows, nothing else."""

from collections import Counter

from tests.cluster.site import Site


def charged(site: Site) -> tuple[Counter[str], Counter[str]]:
    """Cores and units by card, summed over the pods that have not ended."""
    cores: Counter[str] = Counter()
    units: Counter[str] = Counter()
    for pod in site.get("pods", "-A")["items"]:
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            continue
        placement = site.placement(pod)
        for share in placement["shares"] if placement else ():
            cores[share["card"]] += share["cores"]
            units[share["card"]] += share["units"]
    return cores, units


def within_capacity(site: Site) -> bool:
    cores, units = charged(site)
    nodes = site.cluster.nodes
    cards = {card["uuid"]: card for node in nodes for card in site.cards(node)}
    return all(
        cores[uuid] <= 100 and units[uuid] <= cards[uuid]["units"]
        for uuid in {*cores, *units}
    )
