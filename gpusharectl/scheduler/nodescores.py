"""How many nodes kube-scheduler looks at for one pod: all, and back again. Pure.

The policy ``frag`` needs all. A profile's own word overrules the configuration's, so
each that is said is set.
"""

from collections.abc import Iterator, Mapping

from gpushare.kube.cluster import Json

KEY = "percentageOfNodesToScore"
ALL = 100
Percentages = Mapping[str, int | None]
"""What is said, by a profile's scheduler name; under "" what the configuration says as
a whole, None where that says nothing."""


def said(config: Json) -> Percentages:
    """Give what a configuration says; a profile that says nothing is not in it."""
    return {name: place.get(KEY) for name, place in _places(config)}


def before(config: Json, known: Percentages) -> Percentages:
    """Give what ``set_all`` overwrites, or has overwritten: that is ``known``."""
    return {
        name: known.get(name, number) if number == ALL else number
        for name, number in said(config).items()
    }


def set_all(config: Json) -> None:
    """Have all nodes looked at."""
    for _, place in _places(config):
        place[KEY] = ALL


def set_back(config: Json, old: Percentages) -> None:
    """Undo it where ``old`` tells what was there; another number is somebody's own."""
    for name, place in _places(config):
        if name not in old or place.get(KEY) != ALL:
            continue
        if old[name] is None:
            del place[KEY]
        else:
            place[KEY] = old[name]


def _places(config: Json) -> Iterator[tuple[str, Json]]:
    yield "", config
    profiles = config.get("profiles")
    for profile in profiles if isinstance(profiles, list) else ():
        if isinstance(profile, dict) and profile.get(KEY) is not None:
            yield str(profile.get("schedulerName") or "default-scheduler"), profile
