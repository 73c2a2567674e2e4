"""A KubeSchedulerConfiguration with our stanza, made of what was there. Pure.

``with_stanza(old, wanted)`` gives the new text, or says what stands in the way. It
starts from the file that kube-scheduler has been reading, and where it has been reading
none, from those of its flags that a configuration makes it ignore. ``without_stanza``
takes our stanza out again; ``has_stanza`` and ``extended_by_another`` look.

How many nodes kube-scheduler looks at for one pod: all, and back again. Pure.

The policy ``frag`` needs all. A profile's own word overrules the configuration's, so
each that is said is set.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import yaml

from gpushare.kube.cluster import Json
from gpushare.kube.names import EXTENDER_PORT, EXTENDER_PREFIX, PREFIX
from gpusharectl.kube_scheduler.flags import configured_by
from gpusharectl.kube_scheduler.host_files import Obstacle

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


GROUP = "kubescheduler.config.k8s.io"
KIND = "KubeSchedulerConfiguration"
PACKING_WEIGHT = 100
"""The winner's 10 are 10,000 then; all of kube-scheduler's own scores together are some
1,200 at their default weights."""
_OLDEST = (1, 22)
_SINCE = (((1, 25), "v1"), ((1, 23), "v1beta3"), (_OLDEST, "v1beta2"))


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What kube-scheduler shows the extender, and knows it by: paths on its host."""

    ca: str
    certificate: str
    key: str
    server_name: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to write besides what was there."""

    extender: Json
    """Our entry of ``extenders`` as it is shipped."""
    api: str
    """The version for a new file: ``v1``, ``v1beta3``, ``v1beta2``. One that is there
    keeps its own, which its kube-scheduler reads."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """kube-scheduler's flags, without their dashes. They count only where there was no
    configuration: beside one they were ignored before, too, or they overrule it."""
    kubeconfig: str = ""
    """For who starts kube-scheduler in another way than by its flags (k3s)."""
    tls: TlsFiles | None = None
    all_nodes: bool = False
    """For the policy ``frag``: score every node, not a part of them as kube-scheduler
    does from 100 on, and let our word outweigh all others."""
    scored: Percentages = field(default_factory=dict)
    """What ``all_nodes`` has overwritten in the configuration that is there; it comes
    back where it is off."""


def api_for(version: str) -> str | Obstacle:
    """Give the API version of the configuration for a Kubernetes such as ``v1.36.3``.

    v1 came with 1.25, v1beta3 with 1.23, v1beta2 with 1.22.
    """
    try:
        major, minor = version.removeprefix("v").split(".")[:2]
        number = int(major), int(minor.rstrip("+"))
    except ValueError:
        return Obstacle(f"Kubernetes calls its version {version!r}, not like v1.36.3")
    for since, api in _SINCE:
        if number >= since:
            return api
    oldest = ".".join(str(part) for part in _OLDEST)
    return Obstacle(
        f"Kubernetes {version} is too old: its kube-scheduler reads none of the "
        f"configurations that we can write. Upgrade it to {oldest} or newer"
    )


def with_stanza(old: str | None, wanted: Wanted) -> str | Obstacle:
    """Give the configuration with our stanza and all else as it was."""
    config = read(old) if old is not None else configured_by(wanted.flags)
    if isinstance(config, Obstacle):
        return config
    other = _another(config)
    if other:
        return Obstacle(
            f"another extender, {other}, binds pods or has {PREFIX} resources in "
            "kube-scheduler's configuration, and kube-scheduler allows one such: take "
            "it out first"
        )
    if old is None:
        version = f"{GROUP}/{wanted.api}"
        config = {"apiVersion": version, "kind": KIND, **config}
    if wanted.kubeconfig:
        connection = config.setdefault("clientConnection", {}) or {}
        connection.setdefault("kubeconfig", wanted.kubeconfig)
        config["clientConnection"] = connection
    if wanted.all_nodes:
        set_all(config)
    else:
        set_back(config, wanted.scored)
    config["extenders"] = [*_others(config), _extender(wanted)]
    return _text(config)


def without_stanza(text: str, scored: Percentages) -> str | Obstacle:
    """Give the configuration without our stanza; the text itself where it has none.

    ``scored`` is what ``all_nodes`` has overwritten in it.
    """
    config = read(text)
    if isinstance(config, Obstacle) or not has_stanza(text):
        return config if isinstance(config, Obstacle) else text
    set_back(config, scored)
    config["extenders"] = _others(config)
    if not config["extenders"]:
        del config["extenders"]
    return _text(config)


def has_stanza(text: str) -> bool:
    """Tell whether our extender stands in the configuration."""
    config = read(text)
    if isinstance(config, Obstacle):
        return False
    return len(_others(config)) < len(config.get("extenders") or [])


def is_weighted(text: str, extender: Json) -> bool:
    """Tell whether our extender has another weight than as shipped.

    It has for ``frag``, or where somebody has changed it.
    """
    config = read(text)
    if isinstance(config, Obstacle):
        return False
    ours = [each for each in config.get("extenders") or [] if _is_ours(each)]
    return any(each.get("weight") != extender.get("weight") for each in ours)


def packing(extender: Json) -> Json:
    """Give the stanza for the policy ``frag``, whose winner is to win."""
    return {**extender, "weight": PACKING_WEIGHT}


def extended_by_another(text: str) -> str:
    """Give the address of another's extender that we cannot stand beside, or ""."""
    config = read(text)
    return "" if isinstance(config, Obstacle) else _another(config)


def read(text: str) -> Json | Obstacle:
    """Read a configuration; what is none is refused in words."""
    try:
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        return Obstacle(f"is not YAML: {_line(error)}")
    if len(documents) != 1 or not isinstance(documents[0], dict):
        return Obstacle(f"is not one {KIND}, it holds {len(documents)} documents")
    config: Json = documents[0]
    group = str(config.get("apiVersion", "")).partition("/")[0]
    if config.get("kind") != KIND or group != GROUP:
        return Obstacle(
            f"is a {config.get('kind')} of {config.get('apiVersion')}, not a {KIND} "
            f"of {GROUP}"
        )
    extenders = config.get("extenders") or []
    if not isinstance(extenders, list) or not all(
        isinstance(each, dict) for each in extenders
    ):
        return Obstacle("extenders is not a list of extenders")
    return config


def _another(config: Json) -> str:
    for extender in _others(config):
        if extender.get("bindVerb") or _manages_ours(extender):
            return str(extender.get("urlPrefix", "without an urlPrefix"))
    return ""


def _others(config: Json) -> list[Json]:
    return [each for each in config.get("extenders") or [] if not _is_ours(each)]


def _is_ours(extender: Json) -> bool:
    """Know it by our resources and our port; the scheme differs with TLS."""
    url = urlsplit(str(extender.get("urlPrefix", "")))
    at_home = url.path.rstrip("/") == EXTENDER_PREFIX
    return (
        at_home and url.netloc.endswith(f":{EXTENDER_PORT}") and _manages_ours(extender)
    )


def _manages_ours(extender: Json) -> bool:
    managed = extender.get("managedResources") or []
    return any(str(each.get("name", "")).startswith(PREFIX) for each in managed)


def _extender(wanted: Wanted) -> Json:
    extender = packing(wanted.extender) if wanted.all_nodes else dict(wanted.extender)
    if wanted.tls is None:
        return extender
    extender["urlPrefix"] = str(extender["urlPrefix"]).replace("http:", "https:", 1)
    extender["enableHTTPS"] = True
    extender["tlsConfig"] = {
        "caFile": wanted.tls.ca,
        "certFile": wanted.tls.certificate,
        "keyFile": wanted.tls.key,
        "serverName": wanted.tls.server_name,
    }
    return extender


def _text(config: Json) -> str:
    return yaml.safe_dump(config, sort_keys=False, width=88, allow_unicode=True)


def _line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())
