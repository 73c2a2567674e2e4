"""kube-scheduler on a server of k3s, which runs it in its own process.

gpushare's configuration is one more ``kube-scheduler-arg`` in ``config.yaml``.
kube-scheduler uses the last of several ``config=`` arguments, so one that was there can
stay. k3s reads its files only at its start: ``wait`` restarts it if it is allowed to,
and says otherwise what to run.
"""

import fnmatch
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import dropwhile, pairwise
from typing import Any

from yaml.nodes import ScalarNode

from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Objects
from gpushare.yaml_edit import (
    NotEditable,
    YamlText,
    child_of,
    entries_of,
    items_of,
    load_yaml,
)
from gpusharectl.installer.kube_scheduler.config import CONFIG, parse_flags
from gpusharectl.installer.kube_scheduler.files import FilesTarget, FormerSetup
from gpusharectl.installer.kube_scheduler.host import HostScheduler, SchedulerTimeouts
from gpusharectl.installer.kube_scheduler.host_files import (
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.installer.kube_scheduler.static_pod import Additions
from gpusharectl.installer.kube_scheduler.verify import Say, probe_scheduler

ARGS = "kube-scheduler-arg"
_KEYS = (ARGS, f"{ARGS}+")
_TWICE = {ARGS: "k3s uses only the last", f"{ARGS}+": "k3s adds them all"}
"""What k3s makes of a key that stands twice in a file."""
_DATA_DIR, _DISABLED = "data-dir", "disable-scheduler"
NODE_NAME = "node-name"
_VARIABLES = {
    "K3S_CONFIG_FILE": CONFIG,
    "K3S_DATA_DIR": _DATA_DIR,
    "K3S_NODE_NAME": NODE_NAME,
}
"""Variables that k3s takes for flags that are not given."""
_VARIABLE = re.compile(r"""["']?\b(K3S_\w+)=["']?([^\s"']*)""")
_ENVIRONMENT_FILE = re.compile(
    r"""^\s*EnvironmentFile\s*=\s*-?["']?([^\s"']*/[^\s"'/]+)""", re.MULTILINE
)
_ENVIRONMENTS = (
    "/etc/default/{}",
    "/etc/sysconfig/{}",
    "/etc/systemd/system/{}.service.env",
    "/etc/conf.d/{}",
    "/etc/rancher/k3s/{}.env",
)
"""Files of variables that k3s's own services name, the last two those of OpenRC."""
_TRUE = ("true", "t", "1")
DATA_DIR = "/var/lib/rancher/k3s"
_CREDENTIALS = "server/cred/scheduler.kubeconfig"
_ALWAYS = {"profiling": "false"}
"""A flag that k3s passes itself, and that a configuration would make ignored."""
_DROP_INS = "/etc/rancher/k3s/config.yaml.d"
_UNITS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""Where systemd looks for units, the first one that has it counts."""
_OPENRC = "/etc/init.d"
_YAML = (".yaml", ".yml")
"""Endings of drop-ins, in lower case: k3s compares without case."""
_NO_IMAGE = "gpushare-scheduler-probe:none"
"""k3s has no image of kube-scheduler; the probe pod need not start."""
_ODD = (
    f"has {ARGS} in a form that cannot be edited safely (anchors, aliases or merged "
    "keys): write it as a plain list, one argument a line, and start again"
)

Run = Callable[[Sequence[str]], str]
"""Run a command of the host; return the end of its output if it failed, or ""."""


class K3sFile:
    """``Starter`` for ``/etc/rancher/k3s/config.yaml``. Pure.

    ``elsewhere`` are the settings in other files, which come after this one's.
    ``variables`` are those of k3s's environment, which come before.
    """

    path = "/etc/rancher/k3s/config.yaml"
    folder = "/etc/rancher/k3s/vcuda"
    remedy = "correct the file so that k3s can read it"

    def __init__(
        self,
        elsewhere: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._elsewhere = elsewhere or {}
        self._variables = variables or {}

    def kubeconfig(self, without_gpushare: str | None) -> str:
        """Return the path of the kubeconfig that k3s makes for its kube-scheduler."""
        settings = parse_k3s_settings(without_gpushare)
        data_dir = {**self._variables, **settings, **self._elsewhere}.get(_DATA_DIR)
        return f"{str(data_dir or DATA_DIR).rstrip('/')}/{_CREDENTIALS}"

    def on_host(self, text: str | None, path: str) -> str:  # noqa: ARG002
        """Return the path: k3s runs kube-scheduler on the host itself."""
        return path

    def edit(self, text: str | None, additions: Additions) -> str:
        if self.is_edited(text, additions):
            return text or ""
        without_gpushare = self.without_gpushare(text, additions)
        body, argument = (
            parse_k3s_settings(without_gpushare),
            f"config={additions.config}",
        )
        key = _key(body)
        wanted = {**body, key: [*_listed(body.get(key)), argument]}
        edit = partial(_with_argument, without_gpushare or "", argument)
        return _checked(edit, wanted)

    def without_gpushare(
        self, text: str | None, additions: Additions, backup: str | None = None
    ) -> str | None:
        kept = {
            key: [each for each in _listed(given) if not _is_added(each, additions)]
            if key in _KEYS
            else given
            for key, given in parse_k3s_settings(text).items()
        }
        made = _checked(partial(_without_argument, text or "", additions), kept)
        if made != text:
            # The backup's form may no longer fit, such as an alias without its anchor.
            with suppress(Obstacle):
                made = _checked(partial(_in_form_of, backup, made), kept)
        return None if text is None or (text and not made) else made

    def is_edited(self, text: str | None, additions: Additions) -> bool:
        try:
            return (
                _flags(_arguments(parse_k3s_settings(text))).get(CONFIG)
                == additions.config
            )
        except Obstacle:
            return False

    def former_setup(self, without_gpushare: str | None) -> FormerSetup:
        body = parse_k3s_settings(without_gpushare)
        disabled = {**body, **self._elsewhere}.get(_DISABLED, "")
        if str(disabled).lower() in _TRUE:
            raise Obstacle(
                f"or another file of k3s says {_DISABLED}: run gpusharectl install on "
                "a server of k3s that has a scheduler"
            )
        more = self._elsewhere.get(ARGS, ())
        flags = _flags([*_arguments(body), *more])
        return FormerSetup(flags.get(CONFIG, ""), {**_ALWAYS, **flags})

    def overruled(self, files: HostFiles) -> str:
        for path in _drop_in_paths(files):
            try:
                body = _drop_in(files, path)
            except Obstacle as obstacle:
                return f"{path} {obstacle}; k3s reads it after {self.path}"
            given = [str(each) for each in _listed(body.get(f"{ARGS}+"))]
            if ARGS in body or CONFIG in _flags(given):
                return (
                    f"{path} sets {ARGS}, which overrules {self.path}: move its "
                    "arguments there"
                )
        for path, body in _services(files):
            if body.get(CONFIG, self.path) != self.path:
                return f"{path} passes --{CONFIG}, so k3s does not read {self.path}"
            if CONFIG in _flags(body.get(ARGS, [])):
                return (
                    f"{path} passes --{ARGS} config=, which overrules {self.path}: "
                    "move it there and run systemctl daemon-reload"
                )
        for path, body in _environments(files):
            if body.get(CONFIG, self.path) != self.path:
                return (
                    f"{path} sets K3S_CONFIG_FILE={body[CONFIG]}, so k3s does not read "
                    f"{self.path}: move its settings there and remove the variable"
                )
        return ""


def parse_k3s_settings(text: str | None) -> dict[str, Any]:
    """Parse k3s's settings; empty if there is no file, or only comments."""
    if text is None or not _has_content(text):
        return {}
    try:
        entries = entries_of(YamlText(text).document)
        body: dict[str, Any] = load_yaml(text)
    except NotEditable as error:
        raise Obstacle(str(error)) from error
    for key, meaning in _TWICE.items():
        lines = [name.start_mark.line + 1 for name, _ in entries if name.value == key]
        if len(lines) > 1:
            where = ", ".join(map(str, lines))
            raise Obstacle(
                f"has {key} more than once (lines {where}), and {meaning}: write all "
                "arguments below one of them and remove the others"
            )
    for key in _KEYS:
        if not all(isinstance(each, str) for each in _listed(body.get(key))):
            raise Obstacle(
                f"has a {key} that is neither a string nor a list of strings"
            )
    return body


def _has_content(text: str) -> bool:
    lines = (line.lstrip("\ufeff").removeprefix("---") for line in text.splitlines())
    return any(line.strip() and not line.lstrip().startswith("#") for line in lines)


def _checked(edit: Callable[[], str], wanted: dict[str, Any]) -> str:
    """Return an edited text if it has the wanted settings; else an ``Obstacle``."""
    try:
        made = edit()
        body = parse_k3s_settings(made)
    except (Obstacle, NotEditable):
        raise Obstacle(_ODD) from None
    if _normal(body) != _normal(wanted):
        raise Obstacle(_ODD)
    return made


def _normal(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the arguments as lists, without empty ones."""
    lists = {key: _listed(body.get(key)) for key in _KEYS}
    others = {key: given for key, given in body.items() if key not in _KEYS}
    return others | {key: given for key, given in lists.items() if given}


def _listed(given: Any) -> list[str]:  # noqa: ANN401
    return given if isinstance(given, list) else [given] if given else []


def _key(body: dict[str, Any]) -> str:
    """Return the key under which an argument is the last one."""
    return next((key for key in reversed(body) if key in _KEYS), ARGS)


def _arguments(body: Mapping[str, Any]) -> list[str]:
    """Return the arguments as k3s reads them: a key with ``+`` adds to those before."""
    arguments: list[str] = []
    for key in filter(_KEYS.__contains__, body):
        given = _listed(body[key])
        arguments = [*arguments, *given] if key.endswith("+") else given
    return arguments


def _flags(arguments: list[str]) -> dict[str, str]:
    """Parse arguments, which k3s takes with dashes or without."""
    return parse_flags([f"--{each.lstrip('-')}" for each in arguments])


def _is_added(argument: str, additions: Additions) -> bool:
    return argument.lstrip("-") == f"config={additions.config}"


def _with_argument(text: str, argument: str) -> str:
    if not _has_content(text):
        start = text if not text or text.endswith("\n") else f"{text}\n"
        return f"{start}{ARGS}:\n- {argument}\n"
    body = parse_k3s_settings(text)
    yaml_text, key = YamlText(text), _key(body)
    root = yaml_text.document
    node = child_of(root, key)
    word = yaml_text.raw_value(root, key) if node else ""
    if not word or not (isinstance(node, ScalarNode) or word.startswith("*")):
        yaml_text.add_item(root, key, argument)
        return yaml_text.edited()
    if root.flow_style:
        # JSON stays JSON.
        argument = json.dumps(argument)
    words = [_in_brackets(word, each) for each in _listed(body[key])]
    yaml_text.replace_value(root, key, f"[{', '.join([*words, argument])}]")
    return yaml_text.edited()


def _in_brackets(word: str, value: str) -> str:
    """Return a word as it stands, or quoted where it means something else in a list."""
    with suppress(NotEditable):
        if load_yaml(f"[{word}]") == [value]:
            return word
    return json.dumps(value)


def _without_argument(text: str, additions: Additions) -> str:
    if text == _with_argument("", f"config={additions.config}"):
        return ""
    if not _has_content(text):
        return text
    yaml_text = YamlText(text)
    root = yaml_text.document
    for key in _KEYS:
        ours = [
            item
            for item in items_of(child_of(root, key))
            if isinstance(item, ScalarNode) and _is_added(item.value, additions)
        ]
        yaml_text.drop_items(root, key, ours)
    return yaml_text.edited()


def _in_form_of(backup: str | None, text: str) -> str:
    """Return a text with the arguments in the backup's form, if they are the same ones.

    To add gpushare's argument, a word or an alias has become a list in brackets.
    """
    former, body = parse_k3s_settings(backup), parse_k3s_settings(text)
    key = _key(former)
    if not (
        key in former and key in body and _listed(former[key]) == _listed(body[key])
    ):
        return text
    old, new = YamlText(backup or ""), YamlText(text)
    word = old.raw_value(old.document, key)
    if isinstance(former[key], list) and not word.startswith("*"):
        return text
    if word and new.raw_value(new.document, key).startswith("["):
        new.replace_value(new.document, key, word)
    return new.edited()


class K3sScheduler(HostScheduler):
    """One server's kube-scheduler; ``run`` restarts k3s, None leaves that to others."""

    def __init__(
        self,
        files: HostFiles,
        objects: Objects,
        node: str,
        target: FilesTarget,
        run: Run | None = None,
        timeouts: SchedulerTimeouts | None = None,
    ) -> None:
        variables = {
            key: v for _, body in _environments(files) for key, v in body.items()
        }
        starter = K3sFile(_elsewhere(files), variables)
        super().__init__(files, objects, node, starter, target, timeouts)
        self._run = run
        self._unread = False
        """Whether files have changed since k3s was last restarted."""

    def plan(self) -> Sequence[FileChange] | Obstacle:
        planned = super().plan()
        if isinstance(planned, Obstacle):
            return planned
        for each in planned:
            if each.path == self._scheduler_files.config:
                used = load_yaml((each.after or b"").decode())
                path = used["clientConnection"]["kubeconfig"]
                if self._host_files.read(path) is None:
                    return Obstacle(
                        f"{path}, the kubeconfig of kube-scheduler, does not exist: "
                        "start k3s once; if it has another data-dir, write data-dir "
                        f"into {K3sFile.path}"
                    )
        return planned

    def check(self, plan: Sequence[FileChange]) -> str:  # noqa: ARG002
        """Return "": there is no kube-scheduler but the one inside k3s to try it."""
        return ""

    def apply(self, plan: Sequence[FileChange]) -> None:
        self._unread = self._unread or self.is_read(plan)
        super().apply(plan)

    def roll_back(self) -> None:
        self._unread = True
        super().roll_back()

    def wait(self, say: Say) -> str:
        """Restart k3s if files have changed; return why it failed, or "".

        Without ``run`` it only says which command restarts it.
        """
        if not self._unread:
            return ""
        command = " ".join(restart_command(self._host_files))
        if self._run is None:
            say(f"k3s reads this file only at its start. Now run: {command}")
            return ""
        say(command)
        failed = self._run(restart_command(self._host_files))
        if failed:
            return f"{command}: {failed}"
        self._unread = False
        say("waiting for the API server of k3s")
        seconds = self._timeouts.wait_s
        try:
            seen = self._timeouts.pace.until(self._objects.version, seconds)
        except ClusterError as error:
            return f"k3s has restarted, but its API server refuses the request: {error}"
        return "" if seen else f"k3s does not answer within {seconds:g} s"

    def probe(self) -> str:
        """Prove that kube-scheduler calls the extender; why it does not, or "".

        Nothing is proved while k3s has not read the new files.
        """
        if self._unread:
            return ""
        pace, probe_s = self._timeouts.pace, self._timeouts.probe_s
        why = probe_scheduler(self._objects, self._node, _NO_IMAGE, pace, probe_s)
        command = " ".join(restart_command(self._host_files))
        return f"{why}; if k3s was not restarted since, run: {command}" if why else ""


def restart_command(files: HostFiles) -> Sequence[str]:
    """Return the command that restarts k3s on a host, by the service unit there."""
    for folder in _UNITS:
        for name in files.names(folder):
            unit = name.removesuffix(".service")
            if _is_server(unit) and unit != name:
                return ("systemctl", "restart", unit)
    for name in files.names(_OPENRC):
        if _is_server(name):
            return ("rc-service", name, "restart")
    return ("systemctl", "restart", "k3s")


def _elsewhere(files: HostFiles) -> Mapping[str, Any]:
    """Return what other files say, which k3s reads after ``config.yaml``."""
    others: dict[str, Any] = {}
    arguments: list[str] = []
    for _, body in (*_drop_ins(files), *_services(files)):
        arguments += [each for key in _KEYS for each in _listed(body.get(key))]
        others |= {key: body[key] for key in (_DATA_DIR, _DISABLED) if key in body}
    return {**others, ARGS: arguments}


def _drop_ins(files: HostFiles) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what k3s reads after ``config.yaml``, in its order."""
    for path in _drop_in_paths(files):
        # One that cannot be read overrules the file anyway.
        with suppress(Obstacle):
            yield path, _drop_in(files, path)


def _drop_in_paths(files: HostFiles) -> list[str]:
    names = files.names(_DROP_INS)
    return [f"{_DROP_INS}/{name}" for name in names if name.lower().endswith(_YAML)]


def _drop_in(files: HostFiles, path: str) -> Mapping[str, Any]:
    return parse_k3s_settings((files.read(path) or b"").decode(errors="replace"))


def k3s_node_name(files: HostFiles) -> str:
    """Return the node's name that k3s is told here; "" if it takes the host's."""
    try:
        settings = parse_k3s_settings(
            (files.read(K3sFile.path) or b"").decode(errors="replace")
        )
    except Obstacle:
        settings = {}
    bodies = [body for _, body in _environments(files)]
    bodies += [settings, *(body for _, body in (*_drop_ins(files), *_services(files)))]
    names = [str(body[NODE_NAME]) for body in bodies if body.get(NODE_NAME)]
    return names[-1] if names else ""


def _environments(files: HostFiles) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield what variables of k3s's services say, as the flags that they stand for.

    Files of variables come after the units that name them: systemd lets them win.
    """
    services = list(_service_files(files))
    patterns: list[str] = []
    for unit in dict.fromkeys(["k3s", *(unit for unit, _ in services)]):
        patterns += [each.format(unit) for each in _ENVIRONMENTS]
    for unit, path in services:
        if path.startswith(_OPENRC):
            # k3s's own script reads it; systemd does not.
            patterns.append("/etc/environment")
        for named in _ENVIRONMENT_FILE.findall(_text(files, path)):
            plain = named.replace("%n", "%N.service")
            patterns.append(plain.replace("%N", unit).replace("%p", unit))
    paths = [path for _, path in services]
    for folder, pattern in (each.rsplit("/", 1) for each in patterns):
        names = fnmatch.filter(files.names(folder), pattern)
        paths += [f"{folder}/{name}" for name in names]
    for path in dict.fromkeys(paths):
        given = dict(_VARIABLE.findall(_text(files, path)))
        yield (
            path,
            {
                _VARIABLES[name]: value
                for name, value in given.items()
                if name in _VARIABLES and value
            },
        )


def _text(files: HostFiles, path: str) -> str:
    """Return a file of systemd's without its comments; "" if there is none."""
    if not files.place(path).is_file():
        return ""
    lines = (files.read(path) or b"").decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line.lstrip()[:1] not in "#;")


def _services(files: HostFiles) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the settings that each service of k3s passes as flags."""
    for _, path in _service_files(files):
        yield path, _passed(files, path)


def _service_files(files: HostFiles) -> Iterator[tuple[str, str]]:
    """Yield each service of k3s with its file and drop-ins, in the order of systemd.

    Copies with other endings are none: systemd does not read them.
    """
    for folder in reversed(_UNITS):
        for name in files.names(folder):
            unit, _, kind = name.partition(".")
            path = f"{folder}/{name}"
            if _is_server(unit) and kind == "service":
                yield unit, path
            if _is_server(unit) and kind == "service.d":
                drop_ins = fnmatch.filter(files.names(path), "*.conf")
                yield from ((unit, f"{path}/{drop_in}") for drop_in in drop_ins)
    for name in filter(_is_server, files.names(_OPENRC)):
        yield name, f"{_OPENRC}/{name}"


def _passed(files: HostFiles, path: str) -> Mapping[str, Any]:
    """Return the settings among the flags behind ``server`` in a service's file."""
    text = (files.read(path) or b"").decode(errors="replace")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    words = " ".join(lines).translate(str.maketrans("\\'\"", "   ")).split()
    passed: dict[str, Any] = {}
    for word, following in pairwise([*dropwhile("server".__ne__, words), ""]):
        name, equals, value = word.lstrip("-").partition("=")
        name = {"d": _DATA_DIR, "c": CONFIG}.get(name, name)
        if not word.startswith("-"):
            continue
        if name == ARGS:
            passed.setdefault(ARGS, []).append(value if equals else following)
        elif name in (_DATA_DIR, CONFIG, NODE_NAME):
            passed[name] = value if equals else following
        elif name == _DISABLED:
            passed[name] = value if equals else "true"
    return passed


def _is_server(unit: str) -> bool:
    return unit == "k3s" or (unit.startswith("k3s-") and "agent" not in unit)
