"""Edit a KubeSchedulerConfiguration: add and remove the extender. Pure.

For the policy ``frag`` kube-scheduler must score every node
(``percentageOfNodesToScore: 100``). A profile's value overrules the one of the whole
configuration, so each profile that has a value is set too.

Flags that kube-scheduler ignores beside ``--config``, and those of the leader election,
are copied into the configuration; all flags stay (decision 0029; ``deprecated.go`` and
``ApplyLeaderElectionTo`` in ``cmd/kube-scheduler/app/options``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import yaml

from gpushare.kube.cluster import Json
from gpushare.kube.names import EXTENDER_PORT, EXTENDER_PREFIX, PREFIX
from gpushare.yaml_edit import NotEditable, YamlText, child_of, items_of, load_documents
from gpusharectl.installer.kube_scheduler.host_files import Obstacle

GROUP = "kubescheduler.config.k8s.io"
KIND = "KubeSchedulerConfiguration"
FRAG_WEIGHT = 100
"""The extender's 10 points count 10,000 then; kube-scheduler's own scores add up to
about 1,200 at their default weights."""
_API = "v1"
"""Of a new file; kube-scheduler reads it since 1.25. An existing file keeps its own."""
_EXTENDERS = "extenders"
_KEY = "percentageOfNodesToScore"
_ALL = 100
Percentages = Mapping[str, int | None]
"""``percentageOfNodesToScore`` by scheduler name of the profile. "" is the whole
configuration: None if it has no value. Profiles without a value are left out."""


@dataclass(frozen=True, slots=True)
class ConfigTarget:
    """What to write into the configuration."""

    extender: Json
    """The extender's entry in ``extenders``, as it is shipped."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """kube-scheduler's flags without dashes, used only if there was no file."""
    kubeconfig: str = ""
    """For k3s, which does not pass it as a flag."""
    tls: Json | None = None
    """The extender's ``tlsConfig``; None is plain HTTP."""
    frag: bool = False
    """For the policy ``frag``: score every node (by default kube-scheduler scores only
    a part of 100 nodes and more), and let the extender's score outweigh
    all others."""
    scored: Percentages = field(default_factory=dict)
    """The values that ``frag`` has overwritten in the present configuration; they
    are written back if it is off."""


def with_extender(old: str | None, wanted: ConfigTarget) -> str:
    """Return the configuration with the extender and everything else unchanged.

    The caller puts the file's name before an ``Obstacle``'s text.
    """
    config = (
        read_configuration(old)
        if old is not None
        else configuration_of_flags(wanted.flags)
    )
    for extender in _others(config):
        if extender.get("bindVerb") or _manages_ours(extender):
            other = extender.get("urlPrefix", "without an urlPrefix")
            raise Obstacle(
                f"another extender, {other}, binds pods or manages {PREFIX} resources "
                "in kube-scheduler's configuration. kube-scheduler allows only one "
                "such extender: remove it first"
            )
    if old is None:
        config = {"apiVersion": f"{GROUP}/{_API}", "kind": KIND, **config}
    if wanted.kubeconfig:
        connection = config.setdefault("clientConnection", {}) or {}
        connection.setdefault("kubeconfig", wanted.kubeconfig)
        config["clientConnection"] = connection
    if wanted.frag:
        for _, place in _places(config):
            place[_KEY] = _ALL
    else:
        _set_back(config, wanted.scored)
    config["extenders"] = [*_others(config), _extender(wanted)]
    return _text(config)


def without_extender(text: str, scored: Percentages) -> str:
    """Return the configuration without the extender; unchanged if it has none.

    Comments stay, unless ``scored`` has to be written back: the values that
    the policy ``frag`` has overwritten.
    """
    config = read_configuration(text)
    if not has_extender(text):
        return text
    _set_back(config, scored)
    config["extenders"] = _others(config)
    if not config["extenders"]:
        del config["extenders"]
    with suppress(Obstacle, NotEditable):
        cut = _cut(text)
        if read_configuration(cut) == config:
            return cut
    return _text(config)


def _cut(text: str) -> str:
    """Return the text without gpushare's entries, and otherwise byte for byte."""
    yaml_text, extenders = (
        YamlText(text),
        read_configuration(text).get(_EXTENDERS) or (),
    )
    root = yaml_text.document
    items = items_of(child_of(root, _EXTENDERS))
    ours = [
        item for item, body in zip(items, extenders, strict=False) if _is_ours(body)
    ]
    yaml_text.drop_items(root, _EXTENDERS, ours)
    return yaml_text.edited()


def has_extender(text: str) -> bool:
    """Return whether gpushare's extender is in the configuration."""
    return bool(_ours(text))


def names_extender(text: str) -> bool:
    """Return whether gpushare's extender is in the configuration with its own port."""
    return any(_has_port(each) for each in _ours(text))


def has_other_weight(text: str, extender: Json) -> bool:
    """Return whether the extender's weight differs from the shipped one.

    It does for ``frag``, or if somebody has changed it.
    """
    return any(each.get("weight") != extender.get("weight") for each in _ours(text))


def with_frag_weight(extender: Json) -> Json:
    """Return the extender's entry for ``frag``: its score outweighs all others."""
    return {**extender, "weight": FRAG_WEIGHT}


def read_configuration(text: str) -> Json:
    """Parse a configuration; an ``Obstacle`` says why the text is none."""
    try:
        documents = load_documents(text)
    except NotEditable as error:
        raise Obstacle(str(error)) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise Obstacle(f"must hold one {KIND}, but has {len(documents)} documents")
    config: Json = documents[0]
    group = str(config.get("apiVersion", "")).partition("/")[0]
    if config.get("kind") != KIND or group != GROUP:
        raise Obstacle(
            f"is a {config.get('kind')} of {config.get('apiVersion')}, not a {KIND} "
            f"of {GROUP}"
        )
    extenders = config.get("extenders") or []
    if not isinstance(extenders, list) or not all(
        isinstance(each, dict) for each in extenders
    ):
        raise Obstacle("extenders is not a list of extenders")
    return config


def percentages(config: Json) -> Percentages:
    """Return how many nodes a configuration has scored, as a whole and by profile."""
    return {name: place.get(_KEY) for name, place in _places(config)}


def overwritten_percentages(config: Json, known: Percentages) -> Percentages:
    """Return what ``frag`` overwrites; ``known`` where it is overwritten already."""
    return {
        name: known.get(name, number) if number == _ALL else number
        for name, number in percentages(config).items()
    }


def _set_back(config: Json, old: Percentages) -> None:
    """Restore the old values; a value other than 100 was set by somebody else."""
    for name, place in _places(config):
        if name not in old or place.get(_KEY) != _ALL:
            continue
        if old[name] is None:
            del place[_KEY]
        else:
            place[_KEY] = old[name]


def _places(config: Json) -> Iterator[tuple[str, Json]]:
    yield "", config
    profiles = config.get("profiles")
    for profile in profiles if isinstance(profiles, list) else ():
        if isinstance(profile, dict) and profile.get(_KEY) is not None:
            yield str(profile.get("schedulerName") or "default-scheduler"), profile


def _ours(text: str) -> list[Json]:
    """Return gpushare's entries in ``extenders``; none if this is no configuration."""
    try:
        extenders = read_configuration(text).get("extenders") or []
    except Obstacle:
        return []
    return [each for each in extenders if _is_ours(each)]


def _others(config: Json) -> list[Json]:
    return [each for each in config.get("extenders") or [] if not _is_ours(each)]


def _is_ours(extender: Json) -> bool:
    """Recognise it by two of path, port and resources: one may be edited by hand.

    An entry that stays behind the extender would keep pods from being scheduled.
    """
    path = urlsplit(str(extender.get("urlPrefix", ""))).path.rstrip("/")
    signs = path == EXTENDER_PREFIX, _has_port(extender), _manages_ours(extender)
    return signs.count(True) > 1


def _has_port(extender: Json) -> bool:
    netloc = urlsplit(str(extender.get("urlPrefix", ""))).netloc
    return netloc.endswith(f":{EXTENDER_PORT}")


def _manages_ours(extender: Json) -> bool:
    managed = extender.get("managedResources") or []
    return any(str(each.get("name", "")).startswith(PREFIX) for each in managed)


def _extender(wanted: ConfigTarget) -> Json:
    extender = (
        with_frag_weight(wanted.extender) if wanted.frag else dict(wanted.extender)
    )
    if wanted.tls is None:
        return extender
    extender["urlPrefix"] = str(extender["urlPrefix"]).replace("http:", "https:", 1)
    extender["enableHTTPS"] = True
    return {**extender, "tlsConfig": wanted.tls}


def _text(config: Json) -> str:
    return yaml.safe_dump(config, sort_keys=False, width=88, allow_unicode=True)


CONFIG = "config"
"""The flag that names a configuration, without its dashes."""
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True)
_BOOLS |= dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)


def parse_flags(words: Sequence[str]) -> dict[str, str]:
    """Parse flags as kube-scheduler does; the last of one name counts.

    Forms are ``--name=value``, ``--name value`` and ``--name`` for true; ``_`` in a
    name means ``-``. kube-scheduler takes only flags, so a word without a dash is the
    value of the flag before it.
    """
    flags: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            flags[name] = value if equals else "true"
        elif name:
            flags[name] = word
    return flags


def configuration_of_flags(flags: Mapping[str, str]) -> Json:
    """Return the part of a configuration that says what these flags say."""
    config: Json = {}
    for name, (path, read_value) in _MOVES.items():
        if name not in flags:
            continue
        try:
            value = read_value(flags[name])
        except (KeyError, ValueError):
            value = None
        if value is None or "$(" in flags[name]:
            raise Obstacle(f"--{name}={flags[name]} is not understood")
        part = config
        for key in path[:-1]:
            part = part.setdefault(key, {})
        part[path[-1]] = value
    return config


_bool = _BOOLS.__getitem__
_CONNECTION, _ELECTION = "clientConnection", "leaderElection"
_MOVES: Mapping[str, tuple[tuple[str, ...], Callable[[str], object]]] = {
    "kubeconfig": ((_CONNECTION, "kubeconfig"), str),
    "kube-api-content-type": ((_CONNECTION, "contentType"), str),
    "kube-api-qps": ((_CONNECTION, "qps"), float),
    "kube-api-burst": ((_CONNECTION, "burst"), int),
    "leader-elect": ((_ELECTION, "leaderElect"), _bool),
    "leader-elect-lease-duration": ((_ELECTION, "leaseDuration"), str),
    "leader-elect-renew-deadline": ((_ELECTION, "renewDeadline"), str),
    "leader-elect-retry-period": ((_ELECTION, "retryPeriod"), str),
    "leader-elect-resource-lock": ((_ELECTION, "resourceLock"), str),
    "leader-elect-resource-name": ((_ELECTION, "resourceName"), str),
    "leader-elect-resource-namespace": ((_ELECTION, "resourceNamespace"), str),
    "profiling": (("enableProfiling",), _bool),
    "contention-profiling": (("enableContentionProfiling",), _bool),
}
"""Where each flag goes, and its reader, which raises if it does not understand."""
