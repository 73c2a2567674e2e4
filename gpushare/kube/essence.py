"""The part of a pod that says what it asks, to tell pods that ask the same.

A Deployment's pods differ in their names alone. Where thousands are read at a start, as
many amounts are worked out as there are kinds of pods.
"""

import orjson

from gpushare.kube.cluster import Json

MOST_KINDS = 4096
LONGEST_KEPT = 2048
"""What comes of so many, none of them longer, is kept at a time: 8 MiB at the most.
Anybody may make pods, and large ones."""
_OF_CONTAINERS = ("name", "resources", "restartPolicy")
_LISTS = ("initContainers", "containers")


def essence(pod: Json) -> bytes | None:
    """Give a pod with nothing left in it but what it asks, as JSON.

    Whoever reads what is asked finds the same in it as in the pod, complaints included.
    None for what is so far from a pod that its complaints need all of it.
    """
    spec = pod.get("spec")
    if type(spec) is not dict:
        return None
    left = {key: spec[key] for key in ("overhead", "resources") if key in spec}
    for key in _LISTS:
        containers = spec.get(key)
        if containers is None:
            continue
        if type(containers) is not list:
            return None
        left[key] = kept = []
        for each in containers:
            if type(each) is not dict:
                return None
            kept.append({k: each[k] for k in _OF_CONTAINERS if k in each})
    try:
        return orjson.dumps({"spec": left})
    except TypeError:
        # It reads deeper than it writes.
        return None
