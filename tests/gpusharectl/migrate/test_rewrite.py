"""Manifests before and after, and the law that everything else stays."""

import json
from operator import attrgetter
from textwrap import dedent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.yaml_edit import NotEditable
from gpusharectl.migrate.rewrite import rewrite
from gpusharectl.migrate.systems import Options, System

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: app
spec:
  containers:
  - name: main
    resources:
      limits:
"""
MEMORY, CORE = "baidu.com/vcuda-memory", "baidu.com/vcuda-core"


def pod(*limits: str) -> str:
    return POD + "".join(f"        {line}\n" for line in limits)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["aliyun.com/gpu-mem: 3"], [f"{MEMORY}: 12", f"{CORE}: 1"]),
        (["aliyun.com/gpu-mem: '3' # GiB"], [f"{MEMORY}: '12' # GiB", f"{CORE}: '1'"]),
        (
            ["aliyun.com/gpu-count: 1", "cpu: 1", "aliyun.com/gpu-mem: 3"],
            [f"{CORE}: 1", "cpu: 1", f"{MEMORY}: 12"],
        ),
        (
            ["tencent.com/vcuda-core: 50 # half", "tencent.com/vcuda-memory: 30"],
            [f"{CORE}: 50 # half", f"{MEMORY}: 30"],
        ),
        (
            ["nvidia.com/gpu: 1", "nvidia.com/gpumem: 3000", "nvidia.com/gpucores: 30"],
            [f"{MEMORY}: 12", f"{CORE}: 30"],
        ),
        (
            ["nvidia.com/gpumem: 3k", "nvidia.com/gpu: 1"],
            [f"{MEMORY}: 12", f"{CORE}: 1"],
        ),
        (["nvidia.com/gpu: 2", "nvidia.com/gpumem-percentage: 100"], [f"{CORE}: 200"]),
        (
            ["nvidia.com/priority: 1", "nvidia.com/gpumem: 1", "cpu: 1"],
            [f"{CORE}: 1", f"{MEMORY}: 1", "cpu: 1"],
        ),
        (
            ["cpu: 1", "nvidia.com/mig-1g.5gb: 1"],
            ["cpu: 1", "nvidia.com/mig-1g.5gb: 1"],
        ),
    ],
    ids=str,
)
def test_a_container(old: list[str], new: list[str]) -> None:
    """New fields stand in the lines of the old ones, with their comments and quotes."""
    rewritten = rewrite(pod(*old), Options())
    assert rewritten.text == pod(*new)
    assert not any(finding.by_hand for finding in rewritten.findings)
    windows = rewrite(pod(*old).replace("\n", "\r\n"), Options())
    assert windows.text == pod(*new).replace("\n", "\r\n")


@pytest.mark.parametrize("name", ["nvidia.com/vgpu", "hami.io/gpu", "example.com/vgpu"])
def test_another_resource_beside_the_rewritten_ones(name: str) -> None:
    """HAMi's count may have another name; with it no node would take the pod."""
    rewritten = rewrite(pod(f"{name}: 1", "nvidia.com/gpumem: 1"), Options())
    assert rewritten.text == pod(f"{name}: 1", f"{MEMORY}: 1", f"{CORE}: 1")
    (finding,) = rewritten.findings
    assert finding.by_hand
    assert finding.text.startswith(f"{name}: no node offers it")


@pytest.mark.parametrize(
    ("old", "words"),
    [
        (["nvidia.com/gpu: 1"], "--replicas N"),
        (["nvidia.com/gpu.shared: 1"], "--card-mib"),
        (["nvidia.com/gpumem: 16Gi"], '"16Gi" is not a plain whole number'),
        (["aliyun.com/gpu-mem: 5.5"], '"5.5" is not a plain whole number'),
        (["aliyun.com/gpu-mem:"], "it has no number"),
        (["aliyun.com/gpu-mem: -1"], '"-1" is not'),
        (["aliyun.com/gpu-mem: 1", "tencent.com/vcuda-core: 1"], "several systems"),
        (["aliyun.com/gpu-mem: 1", f"{MEMORY}: 1"], "too; keep one of them"),
        (
            ["nvidia.com/gpumem: 1", "nvidia.com/gpu: 2"],
            "nvidia.com/gpumem, nvidia.com/gpu: parts of 2 cards",
        ),
        (
            ["nvidia.com/gpumem: 1", "nvidia.com/gpucores: x"],
            'nvidia.com/gpucores: "x" is not a plain',
        ),
    ],
    ids=str,
)
def test_what_is_left(old: list[str], words: str) -> None:
    """What is not certain stays as it is and is reported, with its line and object."""
    rewritten = rewrite(pod(*old), Options())
    assert rewritten.text == pod(*old)
    assert rewritten.objects == 0
    (finding,) = rewritten.findings
    assert finding.by_hand
    assert (finding.line, finding.where) == (10, "Pod app, container main")
    assert words in finding.text


@pytest.mark.parametrize("name", ["nvidia.com/vgpu", "hami.io/gpu", "example.com/vgpu"])
def test_a_count_of_hami_under_another_name(name: str) -> None:
    """Two cards are no share of one; a MIG profile and a count of one are no cards."""
    lines = [f"{name}: 2", "nvidia.com/gpumem: 300", "nvidia.com/gpucores: 30"]
    rewritten = rewrite(pod(*lines), Options())
    assert rewritten.text == pod(*lines)
    assert f"{name}: 2 may be HAMi's number of cards" in rewritten.findings[0].text
    for beside in (f"{name}: 1", "nvidia.com/mig-1g.5gb: 2", "rdma/hca: 2"):
        assert rewrite(pod(beside, *lines[1:]), Options()).objects == 1


def test_a_refusal_names_a_resource_once() -> None:
    """Also where limits and requests have it."""
    text = (
        'resources: {limits: {"aliyun.com/gpu-mem": x}, '
        'requests: {"aliyun.com/gpu-mem": x}}\n'
    )
    (finding,) = rewrite(text, Options()).findings
    assert finding.text.startswith('aliyun.com/gpu-mem: "x" is not')


@pytest.mark.parametrize(
    "field",
    [
        "tolerations: [{key: nvidia.com/gpu, operator: Exists}]",
        "taints: [{key: nvidia.com/gpu, effect: NoSchedule}]",
        "affinity: {matchExpressions: [{key: nvidia.com/gpu, operator: Exists}]}",
    ],
)
def test_names_that_are_no_resources(field: str) -> None:
    """Taints and labels of nodes have the resource's name; they stay as they are."""
    old = pod("nvidia.com/gpu: 1").replace("spec:\n", f"spec:\n  {field}\n")
    rewritten = rewrite(old, Options(replicas=1))
    assert field in rewritten.text
    assert (rewritten.objects, list(rewritten.findings)) == (1, [])


def test_an_option_says_what_a_card_is() -> None:
    """--replicas and --from decide about nvidia.com/gpu; others stay under --from."""
    old = pod("nvidia.com/gpu: 1")
    slices = Options(card_mib=24259, replicas=10)
    assert rewrite(old, slices).text == pod(f"{MEMORY}: 9", f"{CORE}: 10")
    assert rewrite(old, Options(System.HAMI)).text == pod(f"{CORE}: 100")
    other = rewrite(old, Options(System.GPU_MANAGER))
    assert (other.text, list(other.findings)) == (old, [])
    beside = pod("aliyun.com/gpu-mem: 1")
    assert rewrite(beside, Options(System.HAMI)).text == beside


def test_a_whole_file() -> None:
    """Documents, lists, init containers, annotations, quotas: all else is as it was."""
    old = dedent("""\
        # 一个文件
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: bert, namespace: shop}
        spec:
          template:
            metadata:
              annotations:
                nvidia.com/use-gputype: A100,V100  # 型号
                nvidia.com/vgpu-mode: hami-core
            spec:
              schedulerName: hami-scheduler   # HAMi's
              initContainers:
              - name: load
                resources:
                  limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 512}
              containers:
              - name: main
                resources:
                  requests: &gpu
                    cpu: 1
                    "nvidia.com/gpu": "1"
                    "nvidia.com/gpumem": "3000"
                  limits: *gpu
        ---
        apiVersion: v1
        kind: List
        items:
        - kind: ResourceQuota
          metadata: {name: gpu}
          spec:
            hard:
              limits.nvidia.com/gpumem: 10000
              requests.tencent.com/vcuda-core: "200"
              pods: 10
        - kind: LimitRange
          metadata: {name: gpu}
          spec: {limits: [{type: Container, max: {aliyun.com/gpu-mem: 4}}]}
        - kind: CronJob
          metadata: {name: night}
          spec: {jobTemplate: {spec: {template: {spec: {containers: [
            {name: a, resources: {limits: {tencent.com/vcuda-core: 100}}}]}}}}}
        """)
    new = dedent("""\
        # 一个文件
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: bert, namespace: shop}
        spec:
          template:
            metadata:
              annotations:
                baidu.com/vcuda-models: "*A100*, *V100*"  # 型号
            spec:
              initContainers:
              - name: load
                resources:
                  limits: {baidu.com/vcuda-core: 1, baidu.com/vcuda-memory: 2}
              containers:
              - name: main
                resources:
                  requests: &gpu
                    cpu: 1
                    "baidu.com/vcuda-core": "1"
                    "baidu.com/vcuda-memory": "12"
                  limits: *gpu
        ---
        apiVersion: v1
        kind: List
        items:
        - kind: ResourceQuota
          metadata: {name: gpu}
          spec:
            hard:
              requests.baidu.com/vcuda-memory: 40
              requests.baidu.com/vcuda-core: "200"
              pods: 10
        - kind: LimitRange
          metadata: {name: gpu}
          spec: {limits: [{type: Container, max: {baidu.com/vcuda-memory: 16}}]}
        - kind: CronJob
          metadata: {name: night}
          spec: {jobTemplate: {spec: {template: {spec: {containers: [
            {name: a, resources: {limits: {baidu.com/vcuda-core: 100}}}]}}}}}
        """)
    rewritten = rewrite(old, Options())
    assert rewritten.text == new
    assert rewritten.objects == 4
    assert [(each.line, each.by_hand) for each in rewritten.findings] == [(16, False)]
    crlf = rewrite("\ufeff" + old.replace("\n", "\r\n"), Options())
    assert crlf.text == "\ufeff" + new.replace("\n", "\r\n")


def test_json_stays_json() -> None:
    """A file of kubectl get -o json is YAML, too, and keeps its quotes."""
    body = {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {
            "containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}]
        },
    }
    rewritten = rewrite(json.dumps(body, indent=2), Options())
    (container,) = json.loads(rewritten.text)["spec"]["containers"]
    assert container["resources"]["limits"] == {MEMORY: "4", CORE: "1"}


def test_findings_about_a_pod() -> None:
    """Annotations, variables and sums that do not work here, each with its line."""
    old = dedent("""\
        kind: Pod
        metadata:
          name: app
          annotations:
            tencent.com/vcuda-core-limit: "50"
        spec:
          containers:
          - name: a
            env:
            - name: CUDA_MPS_PIPE_DIRECTORY
              value: /tmp
            resources: {limits: {tencent.com/vcuda-core: 60}}
          - name: b
            resources: {limits: {tencent.com/vcuda-core: 60}}
        """)
    rewritten = rewrite(old, Options())
    reported = [(each.line, each.by_hand, each.text) for each in rewritten.findings]
    assert [line for line, _, _ in reported] == [5, 10, 12]
    assert all(by_hand for _, by_hand, _ in reported)
    assert "baidu.com/vcuda-containers" in reported[2][2]
    small = rewrite(old.replace("60", "40"), Options()).findings[-1]
    assert not small.by_hand
    assert "one card together" in small.text


def test_cores_are_not_filled_up_to_a_whole_card() -> None:
    """A core is set where none is asked, unless 100 cores would come together."""
    old = pod("nvidia.com/gpumem: 256", "nvidia.com/gpucores: 99") + (
        "  - resources: {limits: {nvidia.com/gpumem: 256, nvidia.com/gpu: 1}}\n"
    )
    spec = yaml.safe_load(rewrite(old, Options()).text)["spec"]
    limits = [container["resources"]["limits"] for container in spec["containers"]]
    assert limits == [{MEMORY: 1, CORE: 99}, {MEMORY: 1}]


JUPYTERHUB = """\
singleuser:
  extra_resource_limits:
    nvidia.com/gpumem: 3000
    nvidia.com/gpu: 1
"""
KUEUE = """\
kind: ClusterQueue
spec:
  resourceGroups:
  - flavors:
    - resources:
      - {name: nvidia.com/gpumem, nominalQuota: 3000}
      - {name: nvidia.com/gpu, nominalQuota: 1}
"""


@pytest.mark.parametrize(("text", "lines"), [(JUPYTERHUB, [3, 4]), (KUEUE, [6, 7])])
def test_the_count_of_cards_in_a_place_that_is_not_known(
    text: str, lines: list[int]
) -> None:
    """It is reported as the memory beside it is; alone it may be whole cards."""
    rewritten = rewrite(text, Options())
    assert [each.line for each in rewritten.findings] == lines
    without = text.replace("gpumem", "other")
    assert not rewrite(without, Options()).findings
    # Nor is that of the next document.
    assert len(rewrite(f"{text}---\n{without}", Options()).findings) == len(lines)
    sliced = rewrite(without, Options(replicas=4)).findings
    assert [each.line for each in sliced] == lines[1:]


def test_volcano_gets_a_hint() -> None:
    """Its vGPU plugin is not rewritten, and no node offers its resources here."""
    rewritten = rewrite(pod("volcano.sh/vgpu-memory: 1024"), Options())
    assert rewritten.objects == 0
    assert f"rounded up as {MEMORY}" in rewritten.findings[0].text


UNKNOWN_PLACE = "a:\n  nvidia.com/gpumem: 1\n"
SEVERAL_CARDS = """\
kind: Pod
metadata: {name: a, labels: {aliyun.com/gpu-count: '2'}}
spec:
  containers:
  - resources: {limits: {aliyun.com/gpu-mem: 8}}
"""
BOTH_NAMES = f"""\
kind: ResourceQuota
metadata: {{name: q}}
spec:
  hard:
    requests.{CORE}: 1
    requests.tencent.com/vcuda-core: 2
"""
NO_UUID = """\
kind: Pod
metadata: {name: a, annotations: {nvidia.com/use-gpuuuid: '?'}}
spec: {containers: [{resources: {limits: {nvidia.com/gpumem: 1}}}]}
"""
A_PATCH = """\
- op: add
  path: /spec/containers/0/resources/limits/nvidia.com~1gpumem
  value: 3000
"""
A_FILE = """\
kind: ConfigMap
metadata: {name: a}
data:
  pod.yaml: |
    nvidia.com/gpumem: 3000
"""
A_LIMIT_RANGE = """\
kind: LimitRange
metadata: {name: a}
spec: {limits: [{default: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1}}]}
"""


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (UNKNOWN_PLACE, 2, "change it by hand"),
        (SEVERAL_CARDS, 5, "parts of 2 cards"),
        (BOTH_NAMES, 6, "is there already"),
        (NO_UUID, 2, "give a UUID"),
        (A_PATCH, 2, "a text names it"),
        (A_FILE, 4, "a text names it"),
        (A_LIMIT_RANGE, 3, "no counterpart"),
    ],
)
def test_other_places(text: str, line: int, words: str) -> None:
    """What cannot be rewritten is reported with its line, wherever it is."""
    (finding,) = filter(attrgetter("by_hand"), rewrite(text, Options()).findings)
    assert finding.line == line
    assert words in finding.text


def test_a_chart_is_rendered_first() -> None:
    """A template is not YAML; nothing is written."""
    with pytest.raises(NotEditable, match="line 2"):
        rewrite("a: {{ .Values.x }}\nb: {{- nvidia.com/gpumem }}", Options())


def test_a_layout_that_cannot_be_edited_is_refused() -> None:
    """The result is parsed again, so no broken file is written."""
    with pytest.raises(NotEditable, match="edit it by hand"):
        rewrite(pod("? nvidia.com/gpumem", ": 300"), Options())
    item = "- schedulerName: hami-scheduler\n  containers:\n  - resources: %s\n"
    with pytest.raises(NotEditable, match="does not begin its line"):
        rewrite(item % "{limits: {nvidia.com/gpumem: 1}}", Options())


def test_fields_that_go_take_nothing_along() -> None:
    """Neither the line behind a block, nor that behind a text of several lines."""
    old = pod("nvidia.com/gpumem: 1").replace(
        "  name: app\nspec:\n",
        "  annotations:\n    nvidia.com/vgpu-mode: hami-core\n  # its name\n"
        "  name: app\nspec:\n  schedulerName: >-\n    hami-scheduler\n",
    )
    new = pod(f"{MEMORY}: 1", f"{CORE}: 1").replace(
        "  name: app", "  # its name\n  name: app"
    )
    assert rewrite(old, Options()).text == new
    text = "  annotations:\n    nvidia.com/use-gputype: |\n      A\nspec"
    old = pod("nvidia.com/gpumem: 1").replace("spec", text)
    assert 'vcuda-models: "*A*"\nspec:\n' in rewrite(old, Options()).text


def test_an_anchor_that_means_two_things_is_refused() -> None:
    """A number that 1 GiB and 1 core share cannot become two numbers in one place."""
    text = pod("aliyun.com/gpu-mem: &n 1", "aliyun.com/gpu-core.percentage: *n")
    with pytest.raises(NotEditable, match="anchor"):
        rewrite(text, Options())
    inside_itself = "a: &a {b: *a, nvidia.com/gpumem: 1}"
    assert rewrite(inside_itself, Options()).text == inside_itself
    kept = rewrite(pod("aliyun.com/gpu-mem: &n 1"), Options()).text
    assert f"{MEMORY}: &n 4" in kept


TEXTS = st.text(alphabet=" \n-:{}[]#'\"a0&*/nvidia.com/gpumem", max_size=80)


@given(TEXTS)
def test_nothing_to_migrate_nothing_changes(text: str) -> None:
    """A file without another system's resources comes out byte for byte."""
    try:
        rewritten = rewrite(text, Options())
    except NotEditable:
        return
    if rewritten.objects == 0:
        assert rewritten.text == text


@given(
    st.lists(
        st.sampled_from(
            [
                "nvidia.com/gpu: 1",
                "nvidia.com/gpumem: 300",
                "nvidia.com/gpumem-percentage: 50",
                "nvidia.com/gpucores: 100",
                "nvidia.com/priority: 1",
                "aliyun.com/gpu-mem: 1",
                "cpu: 1 # one",
                "# a comment",
            ]
        ),
        unique=True,
    ),
    st.booleans(),
)
def test_a_second_run_changes_nothing(lines: list[str], flow: bool) -> None:
    """In block and flow style the result is YAML, keeps the rest, and is final."""
    if flow:
        old = (
            POD[:-1] + " {" + ", ".join(x.split(" #")[0] for x in lines if x[0] != "#")
        )
        old += "}\n"
    else:
        old = pod(*lines)
    new = rewrite(old, Options(card_mib=4096)).text
    assert rewrite(new, Options(card_mib=4096)).text == new
    (container,) = yaml.safe_load(new)["spec"]["containers"]
    limits = container["resources"]["limits"] or {}
    assert ("cpu" in limits) == any(line.startswith("cpu") for line in lines)
