"""The chart's generated templates: which manifests, and which values change them.

Each file of ``manifests/`` becomes a template of the same path. Its values are put in
where ``gpusharectl install`` puts its options, and the components of ``manifests/``
become conditions. A test renders both for many options and holds them equal.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from charts.template import Document, Step, finished, steps_of
from gpushare.domain.policies import FRAG
from gpushare.kube.facts import SECOND_SCHEDULER, WEBHOOK
from gpushare.settings import PREFIX
from gpushare.yaml_edit import YamlText
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.manifests import (
    STAMP,
    WORKLOADS,
    compose_install,
    load_manifests,
)
from gpusharectl.installer.options import ISOLATION, POLICY, QUOTA, UI, InstallOptions

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "manifests"
TEMPLATES = Path("charts/gpushare/templates")
_SECOND = '(eq .Values.scheduler.kind "second")'
_EXTENDER = '(eq .Values.scheduler.kind "extended")'
_MONITORING = ".Values.monitoring.enabled"
_OPERATOR = '(include "gpushare.operator" .)'
_WEBHOOK = ".Values.webhook.enabled"
_CERT_MANAGER = '(eq .Values.webhook.certificate.source "cert-manager")'
_FRAG = f'eq .Values.extender.policy "{FRAG}"'
# By the version: without a cluster Helm knows no kinds.
_POLICIES = '(semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version)'
FOLDERS: Mapping[str, str] = {
    "base": "",
    "extender": _EXTENDER,
    "second-scheduler": _SECOND,
    "exporter": _MONITORING,
    "monitoring": _MONITORING,
    "webhook": _WEBHOOK,
    "webhook-cert-manager": f"and {_WEBHOOK} {_CERT_MANAGER}",
}
"""The folders whose files become templates, and when they are rendered."""
FILES: Mapping[str, str] = {
    "base/annotation-guard.yaml": _POLICIES,
    "base/quota-warning.yaml": _POLICIES,
    "monitoring/dashboards.yaml": f"and {_MONITORING} .Values.monitoring.dashboards",
    "monitoring/servicemonitor.yaml": f"and {_MONITORING} {_OPERATOR}",
    "monitoring/prometheusrule.yaml": f"and {_MONITORING} {_OPERATOR}",
}
"""When single files of them are rendered."""
COMPONENTS: Mapping[str, str] = {
    "nvidia-runtime": ".Values.runtimeClassName",
    "tls": ".Values.extender.tls.enabled",
    "exporter-evict": ".Values.monitoring.evict",
    "exporter-compute": '(eq (.Values.monitoring.compute | default "") "share")',
    "webhook-void": ".Values.webhook.void",
    "webhook-cert-manager": _CERT_MANAGER,
}
"""The folders whose patches become conditions."""
WORDS: Mapping[str, str] = {
    # kubelet's --root-dir moves it, but not device-plugins (contracts 2.1).
    "path: /var/lib/kubelet/pod-resources": (
        "path: {{ .Values.kubeletRootDir }}/pod-resources"
    ),
    "path: /etc/kubernetes/vcuda/tls": "path: {{ .Values.extender.tls.folder }}",
    "runtimeClassName: nvidia": (
        "runtimeClassName: {{ .Values.runtimeClassName | quote }}"
    ),
    # Each webhook's own, also that of a component.
    r"(\n +)(  path: /(mutate|validate)\S*)": (
        r"\1\2\1{{- with $certificate.authority }}"
        r"\1caBundle: {{ . }}\1{{- end }}"
    ),
}
"""Patterns, and what is written there: the values, and the webhook's authority."""
_END = "{{- end }}"
_HEAD = "{{{{- /* Made of manifests/{path} by python -m charts: change it there. */}}}}"
_CERTIFICATE = """\
{{- $certificate := include "gpushare.certificate" . | fromYaml }}
{{- with $certificate.secret }}
{{ toYaml . }}
---
{{- end }}"""


def _variable(name: str, value: str) -> list[str]:
    """Return a variable that is set if a value is."""
    entry = [f"- name: {name}", "  value: {{ . | quote }}", _END]
    return [f"{{{{- with .Values.{value} }}}}", *entry]


def _switch(name: str, condition: str) -> list[str]:
    """Return a variable that is ``on`` under a condition."""
    return [f"{{{{- if {condition} }}}}", f"- name: {name}", '  value: "on"', _END]


def _others(container: str, taken: str) -> list[str]:
    """Return the variables that the user adds; none twice, as Helm 4 refuses it."""
    text = (
        f"{container}.env.%s: the chart sets this variable itself; use its value of "
        "values.yaml if it has one, or leave it out"
    )
    return [
        f"{{{{- range $name, $value := .Values.{container}.env }}}}",
        f"{{{{- if {taken} }}}}",
        f'{{{{- fail (printf "{text}" $name) }}}}',
        _END,
        "- name: {{ $name }}",
        "  value: {{ $value | quote }}",
        _END,
    ]


VARIABLES: Mapping[str, Sequence[str]] = {
    "extender": [
        *_switch(UI, ".Values.extender.ui"),
        *_variable(POLICY, "extender.policy"),
    ],
    "devicePlugin": [
        *_switch(QUOTA, f"and {_WEBHOOK} .Values.webhook.bitfusion.quota"),
        *_variable(ISOLATION, "devicePlugin.isolation"),
    ],
    "exporter": [],
    "webhook": [
        *_variable(f"{PREFIX}SET_SCHEDULER", "webhook.setScheduler"),
        *_variable(f"{PREFIX}SET_RUNTIME_CLASS", "webhook.setRuntimeClass"),
        *_variable(f"{PREFIX}ENV_FROM", "webhook.envFrom"),
        *_switch(f"{PREFIX}QUOTAS", ".Values.webhook.quotas"),
        *_variable(f"{PREFIX}BITFUSION_CARD_MIB", "webhook.bitfusion.cardMib"),
        *_variable(f"{PREFIX}BITFUSION_SHELL", "webhook.bitfusion.shell"),
        *_switch(f"{PREFIX}BITFUSION_STRICT", ".Values.webhook.bitfusion.strict"),
        *_switch(QUOTA, ".Values.webhook.bitfusion.quota"),
        '{{- with join "," .Values.webhook.cardClasses }}',
        f"- name: {PREFIX}CARD_CLASSES",
        "  value: {{ . | quote }}",
        _END,
    ],
}
"""What is added to the environment of each container, by its name in the values.

In the order of ``gpusharectl install``. The user's own variables come last.
"""
VALUES_OF: Mapping[str, str] = {
    "extender": "extender",
    "device-plugin": "devicePlugin",
    "exporter": "exporter",
    "webhook": "webhook",
    "kube-scheduler": "scheduler",
}
"""The part of the values that is for a container, by the container's name."""


def render_templates() -> Mapping[str, str]:
    """Return the generated templates by their paths in the repository."""
    return {str(TEMPLATES / path): _template(path) for path in _sources()}


def find_outdated(root: Path = ROOT) -> Mapping[str, str]:
    """Return those whose file is absent or has another text, by their paths."""
    return {
        path: text
        for path, text in render_templates().items()
        if not (root / path).is_file()
        or (root / path).read_text(encoding="utf-8") != text
    }


def write_templates(root: Path = ROOT) -> list[str]:
    """Write what differs, and return the paths."""
    changed = find_outdated(root)
    for path, text in changed.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return list(changed)


def _sources() -> Iterator[str]:
    for folder in FOLDERS:
        listed = _kustomization(folder)["resources"]
        yield from (f"{folder}/{name}" for name in listed if name.endswith(".yaml"))


def _kustomization(folder: str) -> Any:  # noqa: ANN401
    return _read(f"{folder}/kustomization.yaml")


def _read(path: str) -> Any:  # noqa: ANN401
    return yaml.safe_load(_text(path))


def _text(path: str) -> str:
    return (MANIFESTS / path).read_text(encoding="utf-8")


def _template(path: str) -> str:
    """Return the template of a file of ``manifests/``."""
    file = YamlText(_text(path))
    for root in file.documents:
        document = Document(file, root)
        _patch(document)
        change = _CHANGES.get(document.value["kind"])
        if change:
            change(document)
    text = finished(file)
    for old, new in WORDS.items():
        text = re.sub(old, new, text)
    head = _HEAD.format(path=path)
    first = f"{_CERTIFICATE}\n" if path == "webhook/configurations.yaml" else ""
    condition = FILES.get(path, FOLDERS[path.partition("/")[0]])
    if not condition:
        return f"{head}\n{first}{text}"
    if condition.startswith("("):
        condition = condition[1:-1]
    return f"{head}\n{{{{- if {condition} }}}}\n{first}{text}{{{{- end }}}}\n"


def _patch(document: Document) -> None:
    """Make the patches of all components conditions."""
    for condition, steps in _patches(document):
        document.patch(steps, condition)


def _patches(document: Document) -> Iterator[tuple[str, Sequence[Step]]]:
    """Return the patches of components for an object, each with its condition."""
    body = document.value
    here = (body["kind"], body["metadata"]["name"])
    for component, condition in COMPONENTS.items():
        for patch in _kustomization(component).get("patches") or ():
            if here == (patch["target"]["kind"], patch["target"]["name"]):
                yield condition, steps_of(_text(f"{component}/{patch['path']}"))


def _workload(document: Document) -> None:
    """Put in what the values say of a workload and its containers."""
    body = document.value
    name, pod = body["metadata"]["name"], "/spec/template/spec"
    for at, container in enumerate(body["spec"]["template"]["spec"]["containers"]):
        _container(document, f"{pod}/containers/{at}", VALUES_OF[container["name"]])
    secrets = f"{{{{- toYaml . | nindent {document.column(pod)} }}}}"
    document.add(
        f"{pod}/imagePullSecrets",
        ["{{- with .Values.imagePullSecrets }}", "imagePullSecrets:", secrets, _END],
    )
    if name == WEBHOOK:
        document.replace("/spec/replicas", "{{ .Values.webhook.replicas }}")
    if name == SECOND_SCHEDULER:
        choice = f'ternary "{_digest(FRAG)}" "{_digest("")}"'
        stamp = f"{STAMP}: {{{{ {_FRAG} | {choice} }}}}"
        document.add("/spec/template/metadata/annotations/stamp", [stamp])


def _container(document: Document, path: str, values: str) -> None:
    """Put in a container's image, variables and resources."""
    image = '{{ include "gpushare.image" . }}'
    if values == "scheduler":
        image = "{{ .Values.scheduler.image | quote }}"
    else:
        variables = VARIABLES[values]
        others = _others(values, _taken(document, path, variables))
        document.add(f"{path}/env/-", [*variables, *others])
    document.replace(f"{path}/image", image)
    document.replace(f"{path}/imagePullPolicy", "{{ .Values.image.pullPolicy }}")
    resources = f"{path}/resources"
    lines = [f"{{{{- toYaml . | nindent {document.column(resources)} }}}}"]
    document.instead(resources, f"with .Values.{values}.resources", lines)


def _taken(document: Document, path: str, variables: Sequence[str]) -> str:
    """Return the condition that ``$name`` is one that the container has already."""
    taken = [_is_one_of([*document.written(f"{path}/env"), *variables])]
    for condition, steps in _patches(document):
        added = [step for step in steps if step.path == f"{path}/env/-"]
        if added:
            its_own = _is_one_of([line for step in added for line in step.value])
            # In a range the dot is something else.
            taken.append(f"(and {condition.replace('.Values', '$.Values')} {its_own})")
    return f"or {' '.join(taken)}" if taken[1:] else taken[0][1:-1]


def _is_one_of(lines: Sequence[str]) -> str:
    """Return the condition that ``$name`` is a variable in these lines."""
    named = re.findall(r"name: ([A-Z_]\w*)", "\n".join(lines))
    words = " ".join(f'"{name}"' for name in named)
    return f"(has $name (list {words}))"


def _configuration(document: Document) -> None:
    """Let the second scheduler pack with the policy that needs it."""
    if document.value["metadata"]["name"] == SECOND_SCHEDULER:
        ((key, text),) = _of_second(FRAG, "ConfigMap")["data"].items()
        packed = [f"{key}: |", *(f"  {line}" for line in text.splitlines())]
        document.instead(f"/data/{key}", f"if {_FRAG}", packed)


def _of_second(policy: str, kind: str) -> Any:  # noqa: ANN401
    options = InstallOptions(second_scheduler=True, policy=policy or None)
    return next(
        body
        for body in compose_install(load_manifests, Flavour.MANAGED, options, image="")
        if (body["kind"], body["metadata"]["name"]) == (kind, SECOND_SCHEDULER)
    )


def _digest(policy: str) -> str:
    """Return what changes the second scheduler's pods with their configuration."""
    template = _of_second(policy, "Deployment")["spec"]["template"]
    return str(template["metadata"]["annotations"][STAMP])


_CHANGES: Mapping[str, Callable[[Document], None]] = {
    **dict.fromkeys(WORKLOADS, _workload),
    "ConfigMap": _configuration,
}
